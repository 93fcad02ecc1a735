"""What a catalog's answer says about the outcome of a commit (pure).  Only the table's metadata prove that it failed
(rule: metadata-decides-over-answers).

A server may carry out a request and still answer with any status, and a proxy, load balancer or gateway in between may
answer in place of a slow server.  So an answer counts as the catalog's own only if it has the catalog's error document,
and even then the newest head decides (``commit/transaction.py``).
Sources: the Iceberg REST catalog specification (``ErrorModel``, ``CommitStateUnknownException``); RFC 9110.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from icekeeper.errors import CatalogBusy, CommitConflict, CommitRefused, CommitStateUnknown, MaintenanceError
from icekeeper.model import TableName


class CommitAnswer(Enum):
    """What the answer says about the commit; only the table's metadata prove ``LANDED`` or ``REFUSED``."""

    LANDED = "landed"
    CONFLICT = "conflict"
    """The table is not in the state that the commit requires."""
    REFUSED = "refused"
    BUSY = "busy"
    """Refused because of too many requests."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ErrorDocument:
    """The error that a REST catalog describes in its answer."""

    message: str
    type: str
    code: int | None = None
    """The status that the catalog itself answered with."""


# SeaweedFS answers 400, not 409, when another commit has already used a sequence number or first row id
# (platform: seaweedfs-conflict-is-400).
_OVERTAKEN = re.compile(
    r"must be > than last sequence number|is behind table next-row-id|older than last sequence number"
)
_STATE_UNKNOWN = "CommitStateUnknownException"
# A catalog sends 501 if it does not offer commits; a gateway sends 501 for a method that it does not know.
_NOT_OFFERED = re.compile(r"^(Unsupported|NotImplemented|NotSupported)", re.IGNORECASE)
# The codes with which AWS refuses because of load, with any status; and the codes of failures midway, which some AWS
# services, and servers that imitate them, send with status 400.  Source: botocore's
# ``retries.standard`` (``ThrottledRetryableChecker``, ``TransientRetryableChecker``), AWS "Common Errors".
AWS_BUSY_CODES = frozenset(
    {
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_AWS_UNKNOWN_CODES = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServerErrorException",
        "InternalServiceException",
        "PriorRequestNotComplete",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
    }
)


def answer_of_rest(status: int, error: ErrorDocument | None) -> CommitAnswer:
    """What a REST catalog's answer says; ``error`` is ``None`` if the body is not a catalog's error document."""
    if error is not None and error.type == _STATE_UNKNOWN:
        return CommitAnswer.UNKNOWN
    if 200 <= status < 300:
        return CommitAnswer.LANDED
    if error is None or error.code not in (None, status):  # a proxy answered, or changed the answer
        return CommitAnswer.UNKNOWN
    if status == 409 or (status == 400 and _OVERTAKEN.search(error.message)):
        return CommitAnswer.CONFLICT
    if status == 501 and _NOT_OFFERED.search(error.type):
        return CommitAnswer.REFUSED
    return _by_status(status)


def answer_of_aws(
    status: int, code: str, *, conflict_codes: Collection[str], unknown_codes: Collection[str]
) -> CommitAnswer:
    """What an AWS error says, by its code; if the body is not an AWS error, boto3 uses the status as the code."""
    if code in conflict_codes:
        return CommitAnswer.CONFLICT
    if code in AWS_BUSY_CODES:
        return CommitAnswer.BUSY
    if code in unknown_codes or code in _AWS_UNKNOWN_CODES or not code or code.isdigit():
        return CommitAnswer.UNKNOWN
    return _by_status(status)


def _by_status(status: int) -> CommitAnswer:
    if status == 429:
        return CommitAnswer.BUSY
    # 3xx names another address; 408: the server gave up waiting; 5xx: the server failed midway.
    return CommitAnswer.REFUSED if 400 <= status < 500 and status != 408 else CommitAnswer.UNKNOWN


def error_of(answer: CommitAnswer, table: TableName, words: str) -> MaintenanceError:
    """The error that the commit loop gets for an answer; ``words`` name the catalog and quote it."""
    if answer is CommitAnswer.CONFLICT:
        return CommitConflict(f"{table}: {words}")
    if answer is CommitAnswer.REFUSED:
        return CommitRefused(f"{table}: {words}")
    if answer is CommitAnswer.BUSY:
        return CatalogBusy(f"{table}: {words}")
    return CommitStateUnknown(f"{table}: the commit was sent, but {words}; it is unknown whether it landed")


def read_error(body: Any) -> ErrorDocument | None:
    """The error in a decoded JSON body; ``None`` if it is not a REST catalog's error document."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return None
    message, kind, code = error.get("message"), error.get("type"), error.get("code")
    if not (isinstance(message, str) and isinstance(kind, str)):
        return None
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    return ErrorDocument(message, kind, code if isinstance(code, int) else None)
