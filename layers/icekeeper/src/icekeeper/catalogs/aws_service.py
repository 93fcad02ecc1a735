"""The common part of AWS's catalogs: clients from PyIceberg's properties, errors of a swap, and retries of throttled
requests (rule: throttles-are-failures).

Errors are distinguished by their codes, because boto3's typed exceptions do not match the answers of other servers.
"""

from __future__ import annotations

import random
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

from icekeeper.aws.origins import require_members
from icekeeper.aws.session import aws_session, client_config
from icekeeper.catalogs.commit_answer import AWS_BUSY_CODES, CommitAnswer, answer_of_aws, error_of
from icekeeper.errors import CommitConflict, MaintenanceError, PolicyError, StorageError
from icekeeper.machine.metering import RequestKind, note_request
from icekeeper.model import TableName
from icekeeper.storage.failures import describe_failure
from icekeeper.text import mask

# Throttled requests are sent again for half a minute, beyond boto3's own attempts.  boto3's own limit applies to all
# failures: if it were as high, a refused connection would also take half a minute.
ATTEMPTS = 8
_LONGEST_PAUSE_S = 8.0
# "Too many requests" and "service unavailable": services throttle with both.
_STATUSES = frozenset({429, 503})
# As in botocore.retries.standard.ThrottledRetryableChecker; Glue throttles with status 400.
_CODES = AWS_BUSY_CODES.union(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
    }
)


def outlast_throttles(client: Any) -> None:
    """Make a boto3 client send a throttled request up to eight times, with pauses that grow to eight seconds."""
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register_last(f"needs-retry.{service}", _pause_s)


def is_throttle(answer: Mapping[str, Any]) -> bool:
    """Whether an answer, as parsed by boto3, says that there are too many requests."""
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status in _STATUSES or answer.get("Error", {}).get("Code") in _CODES


def _pause_s(attempts: int, response: tuple[Any, Mapping[str, Any]] | None = None, **_: Any) -> float | None:
    """The pause before botocore.endpoint sends a request again; ``None`` leaves it to boto3's own rules."""
    if response is None or attempts >= ATTEMPTS or not is_throttle(response[1]):
        return None
    return random.uniform(0.5, 1) * min(_LONGEST_PAUSE_S, 2.0 ** (attempts - 1))


AWS_ERRORS = (BotoCoreError, ClientError, ResponseParserError)


@dataclass(frozen=True, slots=True)
class AwsClients:
    """Two clients of a service: ``repeating`` repeats failed and throttled requests, ``once`` repeats nothing."""

    repeating: Any
    once: Any
    """For swaps, because a swap that is sent twice conflicts with itself."""

    def close(self) -> None:
        self.repeating.close()
        self.once.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsService:
    """A service of AWS that holds pointers to tables."""

    title: str
    client: str
    """Its name in boto3, and the first prefix of its properties: ``glue`` for ``glue.endpoint``."""
    prefixes: tuple[str, ...]
    """Prefixes of the properties for region and credentials, in this order; boto3's own chain comes after them."""
    conflict_codes: frozenset[str]
    missing_codes: frozenset[str]
    members: Mapping[str, str]
    """Operation → a member that every answer to it contains."""
    unknown_codes: frozenset[str] = frozenset()
    """Codes that come with a status below 500 although the service may have carried out the request."""

    def connect(self, properties: Mapping[str, str]) -> AwsClients:
        """Prepare the clients; only requests for credentials are sent.

        Raises:
            PolicyError: no region is known.
            BotoCoreError: there is no such profile, or the source of credentials failed.
        """
        session = aws_session(properties, self.prefixes)
        if session.region_name is None:
            raise PolicyError(
                f"the region of {self.title} is not set: set {self.client}.region or client.region of the catalog,"
                " AWS_REGION, or the region of the AWS profile"
            )
        endpoint = properties.get(f"{self.client}.endpoint")

        def client(attempts: int) -> Any:
            config = client_config(properties, attempts=attempts)
            made = session.client(self.client, endpoint_url=endpoint, config=config)
            made.meta.events.register("before-send", _count)
            require_members(made, self.members)
            return made

        repeating = client(3)
        outlast_throttles(repeating)
        return AwsClients(repeating=repeating, once=client(1))

    def describe(self, error: Exception, properties: Mapping[str, str]) -> str:
        """The failure in words, without secrets, as the end of a sentence that begins with the catalog."""
        return mask(describe_failure(error, properties.get(f"{self.client}.endpoint")), properties)

    def is_missing(self, error: Exception) -> bool:
        """Whether the service answered that the table, namespace or bucket does not exist."""
        return isinstance(error, ClientError) and error_code(error) in self.missing_codes

    def swap_error(
        self, error: Exception, table: TableName, unusable: Callable[[Exception], StorageError]
    ) -> MaintenanceError:
        """The error to raise for a failed swap: ``unusable`` if the swap was certainly never sent, else the error that
        fits the answer (:mod:`icekeeper.catalogs.commit_answer`).
        """
        if isinstance(error, ClientError):
            answer = answer_of_aws(
                error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0),
                error_code(error),
                conflict_codes=self.conflict_codes,
                unknown_codes=self.unknown_codes,
            )
            if answer is CommitAnswer.CONFLICT:
                return CommitConflict(f"{table} has changed: another writer committed first")
            unknown = f"{self.title} answered with {error_code(error)}"
            return error_of(answer, table, unknown if answer is CommitAnswer.UNKNOWN else str(unusable(error)))
        never_sent = isinstance(error, EndpointConnectionError | ConnectTimeoutError | ProxyConnectionError)
        if isinstance(error, HTTPClientError | ResponseParserError) and not never_sent:
            return error_of(CommitAnswer.UNKNOWN, table, f"{self.title} did not answer")
        return unusable(error)  # nothing answers, wrong parameters, or no credentials: the swap was never sent


def _count(**_: Any) -> None:
    """Count each request as it is sent; boto3 sends it because this returns ``None``."""
    note_request(RequestKind.CATALOG)


def error_code(error: ClientError) -> str:
    """The code of an error of AWS."""
    return str(error.response["Error"].get("Code", ""))
