"""Clocks of stores, for tests that set their own time."""

from __future__ import annotations

from collections.abc import Callable

from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.storage.storage import Storage


def ahead(hours: float) -> Callable[[], int]:
    """A clock that is so many hours ahead of this machine's."""
    return lambda: system_clock() + int(hours * HOUR_MS)


def same_clock(storage: Storage, location: str, may_write: bool) -> int | None:
    """The store has the clock that the test has set: whatever that says, nothing is skewed."""
    return None


def store_at(now_ms: Callable[[], int]) -> Callable[[Storage, str, bool], int | None]:
    """A store with a clock of its own."""
    return lambda storage, location, may_write: now_ms()
