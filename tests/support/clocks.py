"""Clocks of stores, for tests that set their own time."""

from __future__ import annotations

from collections.abc import Callable

from icekeeper.storage.storage import Storage

__all__ = ["same_clock", "store_at"]


def same_clock(storage: Storage, location: str, may_write: bool) -> int | None:
    """The store has the clock that the test has set: whatever that says, nothing is skewed."""
    return None


def store_at(now_ms: Callable[[], int]) -> Callable[[Storage, str, bool], int | None]:
    """A store with a clock of its own."""
    return lambda storage, location, may_write: now_ms()
