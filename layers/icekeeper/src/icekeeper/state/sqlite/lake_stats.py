"""Lake stats in the SQLite state file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.file import SqliteFile
from icekeeper.state.store import LakeStats

__all__ = ["SqliteLakeStats"]

_TABLES_PER_READ = 1000
_THIS_ENTRY = "catalog = ? AND warehouse = ? AND table_name = ? AND uuid = ?"
_COLUMNS = "observed_ms, snapshot_id, counters, warnings, policy"


class SqliteLakeStats:
    """A :class:`icekeeper.state.store.LakeStatsStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def record(self, *stats: LakeStats) -> None:
        rows = (
            (
                *_entry(one.identity),
                one.observed_ms,
                one.snapshot_id,
                *(json.dumps(dict(some), sort_keys=True) for some in (one.counters, one.warnings, one.policy)),
                one.identity.location,
            )
            for one in stats
        )
        self._file.write_all("INSERT OR REPLACE INTO lake_stats VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def of_table(self, identity: TableIdentity) -> LakeStats | None:
        with self._file.reading() as read:
            rows = read(f"SELECT {_COLUMNS} FROM lake_stats WHERE {_THIS_ENTRY}", *_entry(identity))
            return _stats(identity, rows[0]) if rows else None

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[LakeStats]:
        after = ("", "")
        while True:
            with self._file.reading() as read:
                rows = read(
                    f"SELECT table_name, uuid, location, {_COLUMNS} FROM lake_stats WHERE catalog = ? "
                    "AND warehouse = ? AND (table_name, uuid) > (?, ?) ORDER BY table_name, uuid LIMIT ?",
                    catalog,
                    warehouse,
                    *after,
                    _TABLES_PER_READ,
                )
                found = [
                    _stats(TableIdentity(catalog, warehouse, TableName.recorded(table), uuid, location), row)
                    for table, uuid, location, *row in rows
                ]
            if not found:
                return
            yield from found
            after = rows[-1][:2]

    def forget(self, identity: TableIdentity) -> None:
        self._file.write(f"DELETE FROM lake_stats WHERE {_THIS_ENTRY}", *_entry(identity))


def _entry(identity: TableIdentity) -> tuple[str, str, str, str]:
    """The key of a row: the catalog's own names for the table, because stats are kept per catalog."""
    return identity.catalog, identity.warehouse, identity.table.key, identity.uuid


def _stats(identity: TableIdentity, row: Sequence[Any]) -> LakeStats:
    observed_ms, snapshot_id, counters, warnings, policy = row
    return LakeStats(
        identity=identity,
        observed_ms=observed_ms,
        snapshot_id=snapshot_id,
        counters=json.loads(counters),
        warnings=json.loads(warnings),
        policy=json.loads(policy),
    )
