"""The time of one pass, by the clock of the table's store: only that one says how old a file is.

A machine whose clock is days ahead would take files in flight for old ones.  So the store is asked once, and from then
on its time is our own clock less the difference.  A difference of more than a minute is told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from icekeeper.clock import HOUR_MS, TOLD_SKEW_MS, Clock, ahead_ms
from icekeeper.errors import OperationRefused
from icekeeper.report.clock_skew import CLOCK_SKEW, skew_sentence
from icekeeper.storage.storage import Storage
from icekeeper.storage.store_clock import StoreClock

__all__ = ["ClockSkew", "StoreTime"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """How far this machine's clock is ahead of the clock of a store (negative: behind it), in milliseconds."""

    ahead_ms: int

    @property
    def is_told(self) -> bool:
        """Whether people should know."""
        return abs(self.ahead_ms) > TOLD_SKEW_MS

    @property
    def ahead_s(self) -> int:
        """In seconds, towards zero."""
        return int(self.ahead_ms / 1000)


class StoreTime:
    """The clocks of the stores of one pass, each measured once."""

    def __init__(self, clock: Clock, store_clock: StoreClock) -> None:
        self._clock, self._store_clock = clock, store_clock
        self._skews: dict[str, ClockSkew] = {}

    def now_ms(self, storage: Storage, location: str, *, may_write: bool) -> int:
        """Epoch milliseconds by the store's clock, and by ours where the store does not tell."""
        return self._clock() - self.skew(storage, location, may_write=may_write).ahead_ms

    def skew(self, storage: Storage, location: str, *, may_write: bool) -> ClockSkew:
        """How far our clock is ahead; told in the log when it is first measured."""
        found = self._skews.get(location)
        if found is None:
            found = self._skews[location] = self._measured(storage, location, may_write)
            if found.is_told:
                log.warning("%s: %s", location, skew_sentence(found.ahead_s))
        return found

    def require_trusted(self, skew: ClockSkew, period_ms: int, key: str) -> None:
        """Raises OperationRefused when the clocks differ by more than the period that a policy key asks to wait."""
        if skew.is_told and abs(skew.ahead_ms) > period_ms:
            raise OperationRefused(
                f"{skew_sentence(skew.ahead_s)}, or the store's: with a difference of more than {key} "
                f"({period_ms / HOUR_MS:g} h) no age can be trusted; nothing was deleted"
            )

    @property
    def metrics(self) -> Mapping[str, int]:
        """The largest difference met so far, where people should know of it."""
        told = [skew.ahead_s for skew in self._skews.values() if skew.is_told]
        return {CLOCK_SKEW: max(told, key=abs)} if told else {}

    def _measured(self, storage: Storage, location: str, may_write: bool) -> ClockSkew:
        store_ms = self._store_clock(storage, location, may_write)
        return ClockSkew(ahead_ms(self._clock(), store_ms))
