"""The time of one pass, by the clock of the table's store: only that one says how old a file is.

A machine whose clock is days ahead would take files in flight for old ones.  So the store is asked once, and from then
on its time is our own clock less the difference, for as long as nobody sets our clock: then the store is asked again.
A difference of more than a minute is told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from icekeeper.clock import HOUR_MS, TOLD_SKEW_MS, Clock, ahead_ms, steady_s
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


@dataclass(frozen=True, slots=True)
class _Measured:
    """A difference, and when it was measured: by our clock, and by the seconds that nobody can set."""

    skew: ClockSkew
    ours_ms: int
    steady_ms: int

    def holds_at(self, ours_ms: int, steady_ms: int) -> bool:
        """Whether our clock went on since as clocks do."""
        return ahead_ms(ours_ms - self.ours_ms, steady_ms - self.steady_ms) == 0


class StoreTime:
    """The clocks of the stores of one pass, each measured once, and again whenever our own clock was set meanwhile."""

    def __init__(self, clock: Clock, store_clock: StoreClock) -> None:
        self._clock, self._store_clock = clock, store_clock
        self._measured: dict[str, _Measured] = {}
        self._told: list[int] = []

    def now_ms(self, storage: Storage, location: str, *, may_write: bool) -> int:
        """Epoch milliseconds by the store's clock, and by ours where the store does not tell."""
        skew, ours_ms = self._look(storage, location, may_write)
        return ours_ms - skew.ahead_ms

    def skew(self, storage: Storage, location: str, *, may_write: bool) -> ClockSkew:
        """How far our clock is ahead; told in the log when it is measured."""
        return self._look(storage, location, may_write)[0]

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
        return {CLOCK_SKEW: max(self._told, key=abs)} if self._told else {}

    def _look(self, storage: Storage, location: str, may_write: bool) -> tuple[ClockSkew, int]:
        """The difference that holds now, and our time from which to take it."""
        ours_ms, steady_ms = self._clock(), int(steady_s() * 1000)
        known = self._measured.get(location)
        if known is None or not known.holds_at(ours_ms, steady_ms):
            stores_ms = self._store_clock(storage, location, may_write)
            ours_ms = self._clock()
            known = _Measured(ClockSkew(ahead_ms(ours_ms, stores_ms)), ours_ms, int(steady_s() * 1000))
            self._measured[location] = known
            if known.skew.is_told:
                self._told.append(known.skew.ahead_s)
                log.warning("%s: %s", location, skew_sentence(known.skew.ahead_s))
        return known.skew, ours_ms
