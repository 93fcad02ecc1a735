"""When each named schedule of a table last ran: one record per copy of the table and schedule (rule 111)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from icekeeper.state.identity import TableIdentity

__all__ = ["ScheduleRun", "ScheduleStore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    """The last turn of a schedule in which no operation failed; times in epoch milliseconds."""

    schedule: str
    """A name that begins with ``#`` is none of a policy: the last sweep for orphans, for example."""
    counted_ms: int
    """From when the next turn is counted: it is due one interval later."""
    finished_ms: int
    snapshot_id: int | None
    """The head before the turn."""
    fingerprint: str
    """Digest of the settings that held for it."""
    idle: bool
    """Whether it found nothing to do."""


class ScheduleStore(Protocol):
    """Each method raises StorageError when the store fails."""

    def record(self, identity: TableIdentity, run: ScheduleRun) -> None:
        """Replace the schedule's record, also one that a clock which was ahead has left."""
        ...

    def record_all(self, runs: Iterable[tuple[TableIdentity, ScheduleRun]]) -> None:
        """As :meth:`record`, of many tables; of two for one table and schedule the last stays.

        When that fails, some may be recorded.
        """
        ...

    def of_table(self, identity: TableIdentity) -> Mapping[str, ScheduleRun]:
        """The records of one copy of a table, by schedule."""
        ...
