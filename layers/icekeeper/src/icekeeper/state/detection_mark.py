"""Whether anything looks for requests on a schedule: each scheduled detection leaves a mark that runs out by itself.

The mark is a lease that all of them share, so it needs no store of its own.
"""

from __future__ import annotations

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.leases import LONGEST_LEASE_MS, LeaseStore

__all__ = ["SEEN_FOR_HOURS", "is_scheduled", "note_detection"]

SEEN_FOR_HOURS = 25
"""So long after a detection another one is expected; long enough for a schedule that runs once a day."""
_KEY = "schedule"


def note_detection(leases: LeaseStore, *, now_ms: int, interval_ms: int = 0) -> None:
    """Leave the mark; ``interval_ms`` is the time until the next detection, where that is known.

    Raises:
        StorageError: the state does not answer.
    """
    ttl_ms = min(LONGEST_LEASE_MS, max(SEEN_FOR_HOURS * HOUR_MS, 2 * interval_ms))
    leases.acquire(_KEY, _KEY, now_ms=now_ms, ttl_ms=ttl_ms)


def is_scheduled(leases: LeaseStore, *, now_ms: int) -> bool:
    """Whether a detection has left a mark that has not run out.

    Raises:
        StorageError: the state does not answer.
    """
    return leases.current(_KEY, now_ms=now_ms) is not None
