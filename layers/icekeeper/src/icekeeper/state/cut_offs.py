"""Tables whose reading or maintenance was cut off because it took too long, by catalog entry (rule 271).

They are filed under the names by which a catalog lists them, because a table that cannot be read has no other; so a
copied UUID makes nobody else wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from icekeeper.machine.clock import HOUR_MS, iso_utc
from icekeeper.state.claims import Entry

__all__ = [
    "LATEST_LOOK_S",
    "LEAST_LIMIT_S",
    "CutOff",
    "CutOffStore",
    "CutWork",
    "cut_again",
    "forget_cut",
    "look_reason",
    "waiting_cuts",
]

LEAST_LIMIT_S = 60
"""Whoever may ask for a run may ask for shorter times; what does not end with them takes long for nobody else."""
LATEST_LOOK_S = 60
"""So much later at the latest a look that hangs is seen by whoever can kill this process."""
_FIRST_WAIT_MS = 3 * HOUR_MS
_LONGEST_WAIT_MS = 7 * 24 * HOUR_MS
_MOST_DOUBLINGS = 10


class CutWork(StrEnum):
    """What was cut off: ``look``, reading the table's metadata, or ``pass``, its maintenance."""

    LOOK = "look"
    PASS = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """What was cut off of one catalog entry, as often in a row as ``times`` says."""

    entry: Entry
    work: CutWork
    times: int
    cut_ms: int
    """When the last time was, in epoch milliseconds."""
    why: str
    """A sentence that names the setting by which it was cut off."""

    @property
    def until_ms(self) -> int:
        """Until when it is not tried again: three hours after the first time, then twice as long, at most a week."""
        return self.cut_ms + min(_LONGEST_WAIT_MS, _FIRST_WAIT_MS << min(self.times - 1, _MOST_DOUBLINGS))

    def waits(self, now_ms: int) -> bool:
        """Whether it is not yet to be tried; a record of a clock that was ahead bars nothing (rule 170)."""
        return self.cut_ms <= now_ms < self.until_ms

    @property
    def sentence(self) -> str:
        """For people: what happened, how often, and until when it waits."""
        often = f", {self.times} times in a row" if self.times > 1 else ""
        return f"{self.why}{often}; it is tried again after {iso_utc(self.until_ms)}"


class CutOffStore(Protocol):
    """Each method raises StorageError when the store fails."""

    def record(self, cut: CutOff) -> None:
        """Replace the record of an entry and a kind of work."""
        ...

    def of_catalog(self, catalog: str, warehouse: str) -> Sequence[CutOff]:
        """The records of a catalog, by table and kind of work; read in few requests."""
        ...

    def forget(self, entry: Entry, work: CutWork) -> None:
        """Remove a record, as far as it is known: the work has ended in time."""
        ...


def cut_again(
    store: CutOffStore, entry: Entry, work: CutWork, why: str, *, now_ms: int, begun_ms: int | None = None
) -> CutOff:
    """Record that a table was cut off once more, unless that is recorded of this work, which began at ``begun_ms``.

    Raises:
        StorageError: the store failed.
    """
    before = next((one for one in store.of_catalog(*entry[:2]) if (one.entry, one.work) == (entry, work)), None)
    if before is not None and begun_ms is not None and begun_ms <= before.cut_ms <= now_ms:
        return before
    cut = CutOff(entry=entry, work=work, times=1 + (before.times if before else 0), cut_ms=now_ms, why=why)
    store.record(cut)
    return cut


def forget_cut(store: CutOffStore, entry: Entry, *works: CutWork) -> None:
    """Remove the records of work that has ended in time, where there are any; they are read once.

    Raises:
        StorageError: the store failed.
    """
    for cut in store.of_catalog(*entry[:2]):
        if cut.entry == entry and cut.work in works:
            store.forget(entry, cut.work)


def look_reason(limit_s: int) -> str:
    """Why a look at a table was cut off."""
    return f"looking at it did not end within detection_timeout_s {limit_s}"


def waiting_cuts(cuts: Sequence[CutOff], work: CutWork, now_ms: int) -> Mapping[str, CutOff]:
    """The tables, by the key of their names, of which this kind of work waits."""
    return {one.entry[2]: one for one in cuts if one.work is work and one.waits(now_ms)}
