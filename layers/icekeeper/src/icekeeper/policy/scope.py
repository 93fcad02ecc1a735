"""Which keys a call can set: one of detection or scheduling does nothing for a single pass, and is refused (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from icekeeper.errors import PolicyError
from icekeeper.policy.keys import DEPLOYMENT_KEYS

__all__ = ["Scope", "refuse_meaningless"]


class Scope(StrEnum):
    """What a call is about; the value says so to people."""

    TABLE = "one table"
    SCAN = "one detection"
    CYCLE = "icekeeper run"


_OF_EVERY_PASS = frozenset({"job_timeout_s", "job_retry_limit"})
_OF_SCANS = frozenset(
    {"bucket_filter", "namespace_filter", "table_filter", "max_jobs_per_detection", "detection_timeout_s"}
)
_MEANINGFUL = {
    Scope.TABLE: _OF_EVERY_PASS,
    Scope.SCAN: _OF_EVERY_PASS | _OF_SCANS,
    Scope.CYCLE: DEPLOYMENT_KEYS,
}


def refuse_meaningless(keys: Iterable[str], scope: Scope) -> None:
    """Raise PolicyError for a key of detection or scheduling that a call of this scope does not read."""
    for key in keys:
        if key in DEPLOYMENT_KEYS and key not in _MEANINGFUL[scope]:
            readers = "icekeeper detect and icekeeper run read" if key in _OF_SCANS else "icekeeper run reads"
            raise PolicyError(f"policy key {key} has no meaning for {scope.value}: {readers} it")
