"""S3 table buckets through the S3 Tables API, swapped by the version token that AWS keeps for every table.

Source: Amazon S3 API reference, "GetTableMetadataLocation" and "UpdateTableMetadataLocation".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from icekeeper.catalogs.aws_service import AWS_ERRORS, AwsService, error_code
from icekeeper.catalogs.bucket_maintenance import TableBucketMaintenance
from icekeeper.catalogs.catalog import LoadedTable, missing_table
from icekeeper.catalogs.commit_answer import CommitAnswer, error_of
from icekeeper.catalogs.configured import ConfiguredCatalog, TableBucketArn
from icekeeper.catalogs.pointer import TableFiles, commit_document
from icekeeper.errors import MetadataUnreadable, PolicyError, StorageError
from icekeeper.model import TableName

S3_TABLES = AwsService(
    title="S3 Tables",
    client="s3tables",
    prefixes=("s3tables", "client", "s3"),
    conflict_codes=frozenset({"ConflictException"}),
    missing_codes=frozenset({"NotFoundException"}),
    members={"GetTableMetadataLocation": "versionToken", "ListTables": "tables"},
)


class S3TablesCatalog:
    """The tables of a table bucket; ``warehouse`` is the bucket's ARN.

    Properties: ``s3tables.endpoint``, ``s3tables.region`` (else the ARN's), credentials as ``s3tables.*``, ``client.*``
    or ``s3.*``, else boto3's default chain; PyIceberg's ``s3.*`` for the files.
    """

    def __init__(self, configured: ConfiguredCatalog) -> None:
        """Prepare the clients; nothing is sent.

        Raises:
            PolicyError: ``warehouse`` is not the ARN of a table bucket.
            StorageError: the profile or role of the properties cannot be used.
        """
        self.id = configured.id
        try:
            region = TableBucketArn.parse(self.id.warehouse).region
        except ValueError as error:
            raise PolicyError(f"catalog {self.id}: warehouse is {error}") from error
        self._properties = configured.texts
        if region:
            self._properties.setdefault("s3tables.region", region)
            self._properties.setdefault("s3.region", self._properties.get("client.region") or region)
        self._files = TableFiles(replace(configured, properties=self._properties))
        try:
            self._clients = S3_TABLES.connect(self._properties)
        except AWS_ERRORS as error:
            raise self._unusable(error) from error
        self.built_in_maintenance = TableBucketMaintenance(
            self.id.warehouse, lambda: self._clients.repeating, self._properties
        )

    def list_tables(self) -> Iterator[TableName]:
        try:
            for page in self._clients.repeating.get_paginator("list_tables").paginate(tableBucketARN=self.id.warehouse):
                for table in page["tables"]:
                    yield TableName(tuple(table["namespace"]), table["name"])
        except AWS_ERRORS as error:
            raise self._unusable(error) from error

    def load(self, table: TableName) -> LoadedTable:
        try:
            # The token is read before the metadata: a commit in between changes the token, and our swap fails.  In the
            # other order the swap would succeed and undo that commit (platform: s3tables-version-token).
            pointer = self._clients.repeating.get_table_metadata_location(**self._address(table))
        except AWS_ERRORS as error:
            if S3_TABLES.is_missing(error):
                raise missing_table(self, table) from error
            raise self._unusable(error) from error
        location = pointer.get("metadataLocation")
        if not location:
            raise MetadataUnreadable(f"{table} has no metadata file yet: it has no commits")
        return self._files.load(table, location, pointer["versionToken"], pointer.get("warehouseLocation"))

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        swap = partial(self._swap, base)
        return commit_document(base, requirements, updates, swap=swap, storage=self._files.storage, load=self.load)

    def close(self) -> None:
        self._clients.close()

    def _swap(self, base: LoadedTable, location: str) -> str:
        try:
            answer = self._clients.once.update_table_metadata_location(
                **self._address(base.name), versionToken=base.token, metadataLocation=location
            )
        except AWS_ERRORS as error:
            raise S3_TABLES.swap_error(error, base.name, self._unusable) from error
        if answer.get("metadataLocation") != location or not answer.get("versionToken"):
            raise error_of(CommitAnswer.UNKNOWN, base.name, "S3 Tables answered without the new metadata location")
        return str(answer["versionToken"])

    def _address(self, table: TableName) -> dict[str, str]:
        return {"tableBucketARN": self.id.warehouse, "namespace": ".".join(table.namespace), "name": table.name}

    def _unusable(self, error: Exception) -> StorageError:
        reason = S3_TABLES.describe(error, self._properties)
        if isinstance(error, ClientError) and error_code(error) in ("404", "NotImplemented", "NoSuchKey"):
            reason += "; if the server lacks this part of the S3 Tables API, use it as a REST catalog (type: rest)"
        return StorageError(f"catalog {self.id} ({self.id.warehouse}) {reason}")
