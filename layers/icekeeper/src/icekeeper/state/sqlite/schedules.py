"""Schedules' last turns in the SQLite state file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.file import THIS_COPY, Read, SqliteFile, copy_columns
from icekeeper.state.store import ScheduleRun

__all__ = ["SqliteSchedules", "read_schedules"]


class SqliteSchedules:
    """A :class:`icekeeper.state.store.ScheduleStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def record(self, identity: TableIdentity, run: ScheduleRun) -> None:
        self.record_all([(identity, run)])

    def record_all(self, runs: Iterable[tuple[TableIdentity, ScheduleRun]]) -> None:
        rows = (
            (
                identity.key,
                identity.place,
                run.schedule,
                run.counted_ms,
                run.finished_ms,
                run.snapshot_id,
                run.fingerprint,
                run.idle,
            )
            for identity, run in runs
        )
        self._file.write_all("INSERT OR REPLACE INTO schedule_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def of_table(self, identity: TableIdentity) -> Mapping[str, ScheduleRun]:
        return read_schedules(self._file.read, identity)


def read_schedules(read: Read, identity: TableIdentity) -> dict[str, ScheduleRun]:
    """The records of one copy of a table, by schedule."""
    rows = read(
        "SELECT schedule, counted_ms, finished_ms, snapshot_id, fingerprint, idle FROM schedule_runs "
        f"WHERE {THIS_COPY}",
        *copy_columns(identity),
    )
    return {
        schedule: ScheduleRun(
            schedule=schedule,
            counted_ms=counted_ms,
            finished_ms=finished_ms,
            snapshot_id=snapshot_id,
            fingerprint=fingerprint,
            idle=bool(idle),
        )
        for schedule, counted_ms, finished_ms, snapshot_id, fingerprint, idle in rows
    }
