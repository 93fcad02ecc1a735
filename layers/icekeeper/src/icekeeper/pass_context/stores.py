"""The stores of one pass, and the time by the clock of each: only a store's own clock says how old a file is.

A machine whose clock is days ahead would take files in flight for old ones.  So the store is asked once, and from then
on its time is our own clock less the difference, for as long as nobody sets our clock: then the store is asked again.
A difference of more than a minute is told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import OperationRefused
from icekeeper.machine.clock import HOUR_MS, TOLD_SKEW_MS, Clock, ahead_ms, steady_s
from icekeeper.pass_context.shared_reads import SharedReads
from icekeeper.report.clock_skew import CLOCK_SKEW, skew_sentence
from icekeeper.storage.listing import LISTING_THREADS
from icekeeper.storage.storage import Storage
from icekeeper.storage.store_clock import StoreClock

__all__ = ["ClockSkew", "Stores"]

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
    """A clock difference, and when it was measured: by our clock, and by one that nobody can set."""

    skew: ClockSkew
    ours_ms: int
    steady_ms: int

    def holds_at(self, ours_ms: int, steady_ms: int) -> bool:
        """Whether nobody has set our clock since: it went on as much as the steady one."""
        return ahead_ms(ours_ms - self.ours_ms, steady_ms - self.steady_ms) == 0


class Stores:
    """One client per set of credentials; each clock measured once, and again whenever our own was set meanwhile."""

    def __init__(
        self,
        clock: Clock,
        store_clock: StoreClock,
        *,
        may_write: bool,
        listing_threads: int = LISTING_THREADS,
        shared: SharedReads | None = None,
    ) -> None:
        """``may_write``: whether a store without a clock of its own may be asked by writing a probe.

        ``shared`` has the clients; those are new ones unless it is given.
        """
        self._listing_threads = listing_threads
        self._shared = shared or SharedReads()
        self._clock, self._store_clock, self._may_write = clock, store_clock, may_write
        self._measured: dict[str, _Measured] = {}
        self._told: list[int] = []

    def storage(self, loaded: LoadedTable) -> Storage:
        """The table's files."""
        return self._shared.storage(loaded.io_properties, self._listing_threads)

    def now_ms(self, loaded: LoadedTable) -> int:
        """Epoch milliseconds by the clock of the table's store, and by ours where it does not tell."""
        skew, ours_ms = self._look(loaded)
        return ours_ms - skew.ahead_ms

    def trusted_now_ms(self, loaded: LoadedTable, period_ms: int, key: str) -> int:
        """As :meth:`now_ms`, for what deletes; ``key`` is the policy key that says how long to wait.

        Raises:
            OperationRefused: our clock and the store's differ by more than that.
        """
        skew, ours_ms = self._look(loaded)
        if skew.is_told and abs(skew.ahead_ms) > period_ms:
            raise OperationRefused(
                f"{skew_sentence(skew.ahead_s)}, or the store's: with a difference of more than {key} "
                f"({period_ms / HOUR_MS:g} h) no age can be trusted; nothing was deleted"
            )
        return ours_ms - skew.ahead_ms

    @property
    def metrics(self) -> Mapping[str, int]:
        """The largest difference of clocks met so far, where people should know of it."""
        return {CLOCK_SKEW: max(self._told, key=abs)} if self._told else {}

    def _look(self, loaded: LoadedTable) -> tuple[ClockSkew, int]:
        """The difference that holds now, and our time (epoch milliseconds); a large difference is logged once."""
        location = loaded.metadata.location
        ours_ms, steady_ms = self._clock(), int(steady_s() * 1000)
        known = self._measured.get(location)
        if known is None or not known.holds_at(ours_ms, steady_ms):
            stores_ms = self._store_clock(self.storage(loaded), location, self._may_write)
            ours_ms = self._clock()
            known = _Measured(ClockSkew(ahead_ms(ours_ms, stores_ms)), ours_ms, int(steady_s() * 1000))
            self._measured[location] = known
            if known.skew.is_told:
                self._told.append(known.skew.ahead_s)
                log.warning("%s: %s", location, skew_sentence(known.skew.ahead_s))
        return known.skew, ours_ms
