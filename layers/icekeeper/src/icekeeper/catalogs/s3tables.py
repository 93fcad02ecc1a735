"""S3 table buckets through the S3 Tables API, swapped by the version token that AWS keeps for every table.

Errors are told apart by their codes: a typed boto3 exception does not match what other servers answer.
Source: Amazon S3 API reference, "GetTableMetadataLocation" and "UpdateTableMetadataLocation".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
)
from botocore.parsers import ResponseParserError

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.io_properties import file_io_properties
from icekeeper.catalogs.pointer import commit_document, load_document
from icekeeper.clock import Clock, system_clock
from icekeeper.errors import CommitConflict, CommitStateUnknown, MetadataUnreadable, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.storage import Storage
from icekeeper.storage_s3 import aws_session, client_config, describe_failure, scrub

__all__ = ["S3TablesCatalog"]

PREFIXES = ("s3tables", "client", "s3")
# Answered instead of acting, although the status is above 499 or the code is about load.
NOT_DONE_CODES = frozenset({"ThrottlingException", "TooManyRequestsException"})


class S3TablesCatalog:
    """The tables of one table bucket; ``warehouse`` is the bucket's ARN.

    Properties: ``s3tables.endpoint``, ``s3tables.region`` (else the ARN's), credentials as ``s3tables.*``, ``client.*``
    or ``s3.*``, else boto3's default chain; ``s3.*`` for the files, as PyIceberg has them.
    """

    def __init__(self, name: str, properties: Mapping[str, Any], *, clock: Clock = system_clock) -> None:
        """Prepare the clients; nothing is sent.

        Raises:
            PolicyError: ``warehouse`` is not the ARN of a table bucket.
            StorageError: the profile or role of the properties cannot be used.
        """
        self._name = name
        self._clock = clock
        self._arn = str(properties.get("warehouse") or "")
        parts = self._arn.split(":")
        if len(parts) < 6 or parts[0] != "arn" or not parts[5].startswith("bucket/"):
            raise PolicyError(
                f"catalog {name}: warehouse is '{self._arn}', but must be the ARN of a table bucket, for example"
                " arn:aws:s3tables:us-east-1:111122223333:bucket/NAME"
            )
        self._properties = {key: value for key, value in properties.items() if isinstance(value, str)}
        if parts[3]:
            self._properties.setdefault("s3tables.region", parts[3])
            self._properties.setdefault("s3.region", self._properties.get("client.region") or parts[3])
        self._io_properties = file_io_properties(self._properties)
        self._storage = Storage(self._io_properties)
        try:
            session = aws_session(self._properties, PREFIXES)
            self._client = self._connect(session, attempts=3)
            # A swap that is sent twice would lose against itself, and its document be deleted as a loser's.
            self._swap_client = self._connect(session, attempts=1)
        except (BotoCoreError, ClientError) as error:
            raise self._unusable(error) from error

    @property
    def name(self) -> str:
        return self._name

    @property
    def warehouse(self) -> str:
        return self._arn

    def list_tables(self) -> Iterator[TableName]:
        try:
            for page in self._client.get_paginator("list_tables").paginate(tableBucketARN=self._arn):
                for table in page["tables"]:
                    yield TableName(tuple(table["namespace"]), table["name"])
        except (BotoCoreError, ClientError, ResponseParserError) as error:
            raise self._unusable(error) from error

    def load(self, table: TableName) -> LoadedTable:
        try:
            # The token first: if another commit comes in between, the document is newer than the token, and the swap
            # fails.  The other way round it would succeed and undo that commit.
            pointer = self._client.get_table_metadata_location(**self._address(table))
        except ClientError as error:
            if _code(error) == "NotFoundException":
                raise PolicyError(f"there is no table {table} in catalog {self._name}") from error
            raise self._unusable(error) from error
        except (BotoCoreError, ResponseParserError) as error:
            raise self._unusable(error) from error
        location = pointer.get("metadataLocation")
        if not location:
            raise MetadataUnreadable(f"{table} has no metadata file yet: nothing was ever committed to it")
        metadata = load_document(self._storage, location)
        return LoadedTable(table, metadata, location, pointer["versionToken"], self._io_properties)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        return commit_document(self._storage, base, requirements, updates, swap=self._swap(base), clock=self._clock)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._swap_client.close()

    def _swap(self, base: LoadedTable) -> Callable[[str], str]:
        table = base.name

        def swap(location: str) -> str:
            try:
                answer = self._swap_client.update_table_metadata_location(
                    **self._address(table), versionToken=base.token, metadataLocation=location
                )
            except ClientError as error:
                code, status = _code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                if code == "ConflictException":
                    raise CommitConflict(f"{table} changed meanwhile: another writer committed first") from error
                if status >= 500 and code not in NOT_DONE_CODES:
                    raise self._unknown(table, f"answered with {code}") from error
                if code == "NotFoundException":
                    raise PolicyError(f"there is no table {table} in catalog {self._name}") from error
                raise self._unusable(error) from error
            except (HTTPClientError, ResponseParserError) as error:
                if isinstance(error, EndpointConnectionError | ConnectTimeoutError | ProxyConnectionError):
                    raise self._unusable(error) from error
                raise self._unknown(table, "did not answer") from error
            except BotoCoreError as error:  # wrong parameters, no credentials: it was never sent
                raise self._unusable(error) from error
            return str(answer["versionToken"])

        return swap

    def _connect(self, session: Any, *, attempts: int) -> Any:
        return session.client(
            "s3tables",
            endpoint_url=self._properties.get("s3tables.endpoint"),
            config=client_config(self._properties, attempts=attempts),
        )

    def _address(self, table: TableName) -> dict[str, str]:
        return {"tableBucketARN": self._arn, "namespace": ".".join(table.namespace), "name": table.name}

    def _unknown(self, table: TableName, what: str) -> CommitStateUnknown:
        return CommitStateUnknown(f"{table}: the commit was sent, but S3 Tables {what}; whether it landed is not known")

    def _unusable(self, error: Exception) -> StorageError:
        reason = scrub(describe_failure(error, self._properties.get("s3tables.endpoint")), self._properties)
        if isinstance(error, ClientError) and _code(error) in ("404", "NotImplemented", "NoSuchKey"):
            reason += "; a server without this part of the S3 Tables API is reached as a REST catalog (type: rest)"
        return StorageError(f"catalog {self._name} ({self._arn}) {reason}")


def _code(error: ClientError) -> str:
    return str(error.response["Error"].get("Code", ""))
