"""Requests that AWS throttles are sent again for half a minute, beyond boto3's own attempts (rule 139).

The number of attempts that boto3 is given holds for whatever fails: one that outlasts a throttle would let a refused
connection take as long.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

__all__ = ["is_throttle", "outlast_throttles"]

ATTEMPTS = 8
_LONGEST_PAUSE_S = 8.0
# "Too many requests" and "service unavailable": services slow their callers down with both.
_STATUSES = frozenset({429, 503})
# Those of botocore.retries.standard.ThrottledRetryableChecker; Glue answers with status 400.
_CODES = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottledException",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)


def outlast_throttles(client: Any) -> None:
    """Have a boto3 client send a throttled request up to eight times, with pauses that grow to eight seconds."""
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register_last(f"needs-retry.{service}", _pause_s)


def is_throttle(answer: Mapping[str, Any]) -> bool:
    """Whether an answer, as boto3 has parsed it, says that requests come too fast."""
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status in _STATUSES or answer.get("Error", {}).get("Code") in _CODES


def _pause_s(attempts: int, response: tuple[Any, Mapping[str, Any]] | None = None, **_: Any) -> float | None:
    """Seconds after which boto3 sends a request again; ``None`` leaves it to boto3's own rules, which are asked first.

    An answer of a handler of ``needs-retry`` is what botocore.endpoint waits.
    """
    if response is None or attempts >= ATTEMPTS or not is_throttle(response[1]):
        return None
    return random.uniform(0.5, 1) * min(_LONGEST_PAUSE_S, 2.0 ** (attempts - 1))
