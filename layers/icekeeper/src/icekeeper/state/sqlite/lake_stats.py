"""Lake stats in the SQLite state file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.sqlite.file import THIS_TABLE, SqliteFile, identity_columns

__all__ = ["SqliteLakeStats"]

_TABLES_PER_READ = 1000
_COLUMNS = "observed_ms, snapshot_id, counters, warnings, policy"


class SqliteLakeStats:
    """A :class:`icekeeper.state.lake_stats.LakeStatsStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def record(self, stats: LakeStats) -> None:
        self._file.write(
            "INSERT OR REPLACE INTO lake_stats VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *identity_columns(stats.identity),
            stats.observed_ms,
            stats.snapshot_id,
            *(json.dumps(dict(some), sort_keys=True) for some in (stats.counters, stats.warnings, stats.policy)),
        )

    def of_table(self, identity: TableIdentity) -> LakeStats | None:
        rows = self._file.read(f"SELECT {_COLUMNS} FROM lake_stats WHERE {THIS_TABLE}", *identity_columns(identity))
        return _stats(identity, rows[0]) if rows else None

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[LakeStats]:
        after = ("", "")
        while rows := self._file.read(
            f"SELECT table_name, uuid, {_COLUMNS} FROM lake_stats WHERE catalog = ? AND warehouse = ? "
            "AND (table_name, uuid) > (?, ?) ORDER BY table_name, uuid LIMIT ?",
            catalog,
            warehouse,
            *after,
            _TABLES_PER_READ,
        ):
            for table, uuid, *row in rows:
                yield _stats(TableIdentity(catalog, warehouse, TableName.parse(table), uuid), row)
            after = rows[-1][:2]

    def forget(self, identity: TableIdentity) -> None:
        self._file.write(f"DELETE FROM lake_stats WHERE {THIS_TABLE}", *identity_columns(identity))


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
