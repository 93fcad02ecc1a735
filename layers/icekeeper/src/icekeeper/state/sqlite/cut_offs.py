"""What was cut off, in the SQLite state file."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.state.claims import CutOff, CutWork, Entry
from icekeeper.state.sqlite.file import SqliteFile

__all__ = ["SqliteCutOffs"]


class SqliteCutOffs:
    """A :class:`icekeeper.state.claims.CutOffStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def record(self, cut: CutOff) -> None:
        row = (*cut.entry, cut.work.value, cut.times, cut.cut_ms, cut.why)
        self._file.write("INSERT OR REPLACE INTO cut_offs VALUES (?, ?, ?, ?, ?, ?, ?)", *row)

    def of_catalog(self, catalog: str, warehouse: str) -> Sequence[CutOff]:
        with self._file.reading() as read:
            rows = read(
                "SELECT table_name, work, times, cut_ms, why FROM cut_offs WHERE catalog = ? AND warehouse = ? "
                "ORDER BY table_name, work",
                catalog,
                warehouse,
            )
            return [
                CutOff(entry=(catalog, warehouse, table), work=CutWork(work), times=times, cut_ms=cut_ms, why=why)
                for table, work, times, cut_ms, why in rows
            ]

    def forget(self, entry: Entry, work: CutWork) -> None:
        statement = "DELETE FROM cut_offs WHERE catalog = ? AND warehouse = ? AND table_name = ? AND work = ?"
        self._file.write(statement, *entry, work.value)
