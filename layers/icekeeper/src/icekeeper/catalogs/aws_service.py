"""What the catalogs of AWS share: clients by PyIceberg's properties, and what became of a swap that AWS was asked for.

Errors are told apart by their codes: a typed boto3 exception does not match what other servers answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

from icekeeper.errors import CommitConflict, CommitStateUnknown, MaintenanceError, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.storage.s3 import aws_session, client_config, describe_failure, scrub

__all__ = ["AWS_ERRORS", "AwsClients", "AwsService", "error_code"]

AWS_ERRORS = (BotoCoreError, ClientError, ResponseParserError)
# Answered instead of acting, although the status is above 499 or the code is about load.
NOT_DONE_CODES = frozenset({"ThrottlingException", "TooManyRequestsException"})


@dataclass(frozen=True, slots=True)
class AwsClients:
    """Two clients of one service: one that repeats what failed, and one that sends every request once."""

    repeating: Any
    once: Any
    """For swaps: one that is sent twice would lose against itself, and its document be deleted as a loser's."""

    def close(self) -> None:
        """Close the connections."""
        self.repeating.close()
        self.once.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsService:
    """One service of AWS that holds pointers to tables."""

    title: str
    client: str
    """Its name in boto3, and the first prefix of its properties: ``glue`` for ``glue.endpoint``."""
    prefixes: tuple[str, ...]
    """Where region and credentials are looked for, in this order; then boto3's default chain."""
    conflict_codes: frozenset[str]
    missing_codes: frozenset[str]
    unknown_codes: frozenset[str] = frozenset()
    """Answered with a status below 500 although the request may have been carried out."""

    def connect(self, properties: Mapping[str, str]) -> AwsClients:
        """Prepare the clients; nothing is sent, unless a role is to be assumed.

        Raises:
            BotoCoreError: there is no such profile, or no region is known.
            ClientError: the role may not be assumed.
        """
        session = aws_session(properties, self.prefixes)
        endpoint = properties.get(f"{self.client}.endpoint")

        def client(attempts: int) -> Any:
            config = client_config(properties, attempts=attempts)
            return session.client(self.client, endpoint_url=endpoint, config=config)

        return AwsClients(repeating=client(3), once=client(1))

    def describe(self, error: Exception, properties: Mapping[str, str]) -> str:
        """What went wrong, without secrets, as the end of a sentence that begins with the catalog."""
        return scrub(describe_failure(error, properties.get(f"{self.client}.endpoint")), properties)

    def is_missing(self, error: Exception) -> bool:
        """Whether the answer was that there is no such thing."""
        return isinstance(error, ClientError) and error_code(error) in self.missing_codes

    def swap_error(
        self, error: Exception, table: TableName, catalog: str, unusable: Callable[[Exception], StorageError]
    ) -> MaintenanceError:
        """What to raise about a swap that failed, by whether it may have happened nevertheless; in doubt, it may.

        ``CommitConflict``, ``PolicyError`` (there is no such table) and what ``unusable`` makes of the rest mean that
        the table surely was not changed; ``CommitStateUnknown`` that nobody knows.
        """
        if isinstance(error, ClientError):
            code, status = error_code(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in self.conflict_codes:
                return CommitConflict(f"{table} changed meanwhile: another writer committed first")
            if code in self.unknown_codes or (status >= 500 and code not in NOT_DONE_CODES):
                return self._unknown(table, f"answered with {code}")
            if code in self.missing_codes:
                return PolicyError(f"there is no table {table} in catalog {catalog}")
            return unusable(error)
        never_sent = isinstance(error, EndpointConnectionError | ConnectTimeoutError | ProxyConnectionError)
        if isinstance(error, HTTPClientError | ResponseParserError) and not never_sent:
            return self._unknown(table, "did not answer")
        return unusable(error)  # nothing answers; or wrong parameters, no credentials: it was never sent

    def _unknown(self, table: TableName, what: str) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"{table}: the commit was sent, but {self.title} {what}; whether it landed is not known"
        )


def error_code(error: ClientError) -> str:
    """The code by which AWS names an error."""
    return str(error.response["Error"].get("Code", ""))
