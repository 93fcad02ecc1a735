"""The state store of one machine, in a SQLite file that all processes of a user share; claims and cut-offs in it.

The Protocols in ``state/store`` and ``state/claims`` document the methods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from icekeeper.model import TableName
from icekeeper.state.claims import CatalogLook, CutOff, CutWork, Entry, TableClaims, folders_around
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.file import THIS_COPY, THIS_TABLE, Read, Records, SqliteFile, copy_columns
from icekeeper.state.sqlite.records import (
    SqliteLakeStats,
    SqliteLeases,
    SqlitePendingDeletions,
    SqliteQuarantine,
    SqliteRequests,
    SqliteSchedules,
    SqliteStaging,
    SqliteUnreadableFiles,
    SqliteUsage,
    read_loads,
    read_schedules,
    read_unreadable_files,
)
from icekeeper.state.store import (
    OVERLAP_MS,
    Glance,
    LastSeen,
    PassRecord,
    Pin,
    PinKind,
    idle_since_text,
    read_idle_since,
)

_NO_LOOK = '{"run": "", "looked_ms": 0, "unseen": [], "failure": "", "hidden": []}'
"""The look of a catalog that no run has looked at yet."""

_CLAIM_COLUMNS = "catalog, warehouse, table_name, uuid, location, folders, data_roots, seen_sequence_number, seen_ms"
_ENTRY = "catalog = ? AND warehouse = ? AND table_name = ?"


class SqliteClaims(Records):
    """A :class:`.ClaimStore`: a row per catalog entry, and a row per claimed folder to find entries by."""

    def record(self, claims: TableClaims, *, replaces: TableClaims | None = None) -> None:
        self.record_first_looks([claims])

    def record_first_looks(self, claims: Sequence[TableClaims]) -> None:
        with self.state_file.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_row, claims)
            )
            connection.executemany(f"DELETE FROM claimed_folders WHERE {_ENTRY}", [one.entry for one in claims])
            connection.executemany(
                "INSERT OR REPLACE INTO claimed_folders VALUES (?, ?, ?, ?)",
                [(folder, *one.entry) for one in claims for folder in {one.location, *one.folders}],
            )
            connection.executemany(
                "INSERT OR IGNORE INTO catalog_looks VALUES (?, ?, ?)",
                {(one.catalog, one.warehouse, _NO_LOOK) for one in claims},
            )

    def looks(self) -> Sequence[CatalogLook]:
        with self.state_file.reading() as read:
            rows = read("SELECT catalog, warehouse, look FROM catalog_looks ORDER BY catalog, warehouse")
            return [CatalogLook.from_json(catalog, warehouse, json.loads(look)) for catalog, warehouse, look in rows]

    def record_look(self, look: CatalogLook) -> None:
        self.state_file.write(
            "INSERT OR REPLACE INTO catalog_looks VALUES (?, ?, ?)", *look.key, json.dumps(look.to_json())
        )

    def of_entry(self, entry: Entry) -> TableClaims | None:
        return next(self._found(f"SELECT {_CLAIM_COLUMNS} FROM claims WHERE {_ENTRY}", *entry), None)

    def touching(self, folder: str) -> Iterator[TableClaims]:
        around = folders_around(folder)
        below = folder if folder.endswith("/") else f"{folder}/"
        # "0" is the character after "/": all paths inside the folder are between these two bounds.
        return self._found(
            f"SELECT DISTINCT {_CLAIM_COLUMNS} FROM claims JOIN claimed_folders USING (catalog, warehouse, table_name) "
            f"WHERE folder IN ({', '.join('?' * len(around))}) OR (folder >= ? AND folder < ?) "
            "ORDER BY catalog, warehouse, table_name",
            *around,
            below,
            f"{below[:-1]}0",
        )

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[TableClaims]:
        return self._found(
            f"SELECT {_CLAIM_COLUMNS} FROM claims WHERE catalog = ? AND warehouse = ? ORDER BY table_name",
            catalog,
            warehouse,
        )

    def forget(self, entry: Entry) -> None:
        with self.state_file.transaction() as connection:
            for table in ("claims", "claimed_folders"):
                connection.execute(f"DELETE FROM {table} WHERE {_ENTRY}", entry)

    def _found(self, statement: str, *values: str) -> Iterator[TableClaims]:
        with self.state_file.reading() as read:
            return iter([_claims(row) for row in read(statement, *values)])


def _row(claims: TableClaims) -> tuple[str | int, ...]:
    return (
        *claims.entry,
        claims.uuid,
        claims.location,
        _text(claims.folders),
        _text(claims.data_roots),
        claims.seen_sequence_number,
        claims.seen_ms,
    )


def _text(folders: frozenset[str]) -> str:
    return json.dumps(sorted(folders))


def _claims(row: Sequence[Any]) -> TableClaims:
    catalog, warehouse, table, uuid, location, folders, data_roots, seen_sequence_number, seen_ms = row
    return TableClaims(
        catalog=catalog,
        warehouse=warehouse,
        table=TableName.recorded(table),
        uuid=uuid,
        location=location,
        folders=frozenset(json.loads(folders)),
        data_roots=frozenset(json.loads(data_roots)),
        seen_sequence_number=seen_sequence_number,
        seen_ms=seen_ms,
    )


class SqliteCutOffs(Records):
    """A :class:`.CutOffStore`."""

    def record(self, cut: CutOff) -> None:
        row = (*cut.entry, cut.work.value, cut.times, cut.cut_ms, cut.why)
        self.state_file.write("INSERT OR REPLACE INTO cut_offs VALUES (?, ?, ?, ?, ?, ?, ?)", *row)

    def of_catalog(self, catalog: str, warehouse: str) -> Sequence[CutOff]:
        with self.state_file.reading() as read:
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
        self.state_file.write(statement, *entry, work.value)


class SqliteStateStore:
    """A :class:`.StateStore` in one file, which the first call creates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = SqliteFile(path)
        self.staging = SqliteStaging(self._file)
        self.pending_deletions = SqlitePendingDeletions(self._file)
        self.quarantine = SqliteQuarantine(self._file)
        self.leases = SqliteLeases(self._file)
        self.requests = SqliteRequests(self._file)
        self.lake_stats = SqliteLakeStats(self._file)
        self.schedules = SqliteSchedules(self._file)
        self.claims = SqliteClaims(self._file)
        self.unreadable_files = SqliteUnreadableFiles(self._file)
        self.cut_offs = SqliteCutOffs(self._file)
        self.usage = SqliteUsage(self._file)

    def kept_open(self) -> AbstractContextManager[None]:
        return self._file.kept_open()

    def glance(self, identity: TableIdentity, *, now_ms: int) -> Glance:
        with self._file.reading() as read:
            return Glance(
                _pins(read, identity, now_ms=now_ms),
                _last_seen(read, identity),
                read_loads(read, identity),
                read_schedules(read, identity),
                read_unreadable_files(read, identity),
            )

    def require_writable(self) -> None:
        self._file.require_writable()

    def record_pass(self, record: PassRecord) -> None:
        self._file.write(
            "INSERT OR REPLACE INTO passes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            record.identity.key,
            record.identity.place,
            record.identity.catalog,
            record.identity.warehouse,
            str(record.identity.table),
            record.identity.uuid,
            record.run_id,
            record.started_ms,
            record.finished_ms,
            record.status,
            record.summary,
            json.dumps(dict(record.metrics), sort_keys=True),
            record.engine,
        )

    def history(self, identity: TableIdentity, *, limit: int = 100) -> tuple[PassRecord, ...]:
        with self._file.reading() as read:
            rows = read(
                "SELECT run_id, started_ms, finished_ms, status, summary, metrics, engine FROM passes "
                f"WHERE {THIS_COPY} ORDER BY finished_ms DESC, rowid DESC LIMIT ?",
                *copy_columns(identity),
                limit,
            )
            return tuple(
                PassRecord(
                    identity=identity,
                    run_id=run_id,
                    started_ms=started_ms,
                    finished_ms=finished_ms,
                    status=status,
                    summary=summary,
                    metrics=json.loads(metrics),
                    engine=engine,
                )
                for run_id, started_ms, finished_ms, status, summary, metrics, engine in rows
            )

    def add_pin(self, pin: Pin) -> None:
        self._file.write(
            "INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?, ?, ?, ?)",
            pin.identity.key,
            pin.name,
            pin.snapshot_id,
            pin.metadata_location,
            pin.expires_ms,
            pin.kind.value,
            pin.tag,
        )

    def pins(self, identity: TableIdentity, *, now_ms: int) -> tuple[Pin, ...]:
        with self._file.reading() as read:
            return _pins(read, identity, now_ms=now_ms)

    def remove_pin(self, identity: TableIdentity, name: str) -> bool:
        return self._file.write(f"DELETE FROM pins WHERE {THIS_TABLE} AND name = ?", identity.key, name) > 0

    def remember(self, identity: TableIdentity, seen: LastSeen) -> None:
        self._file.write(
            "INSERT INTO last_seen (table_key, place, snapshot_id, fingerprint, finished_ms, idle, idle_since) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (table_key, place) DO UPDATE SET snapshot_id = excluded.snapshot_id, "
            "fingerprint = excluded.fingerprint, finished_ms = excluded.finished_ms, idle = excluded.idle, "
            "idle_since = excluded.idle_since "
            "WHERE last_seen.finished_ms NOT BETWEEN excluded.finished_ms + 1 AND excluded.finished_ms + ?",
            identity.key,
            identity.place,
            seen.snapshot_id,
            seen.fingerprint,
            seen.finished_ms,
            seen.idle,
            idle_since_text(seen.idle_since),
            OVERLAP_MS,
        )

    def record_clustering(self, identity: TableIdentity, snapshot_id: int, recipe: str) -> None:
        self._file.write(
            "INSERT OR REPLACE INTO clusterings VALUES (?, ?, ?, ?)",
            identity.key,
            identity.place,
            recipe,
            snapshot_id,
        )

    def clustered_snapshots(self, identity: TableIdentity, recipe: str) -> frozenset[int]:
        rows = self._file.read(
            f"SELECT snapshot_id FROM clusterings WHERE {THIS_COPY} AND recipe = ?",
            *copy_columns(identity),
            recipe,
        )
        return frozenset(snapshot_id for (snapshot_id,) in rows)

    def last_seen(self, identity: TableIdentity) -> LastSeen | None:
        return _last_seen(self._file.read, identity)


def _pins(read: Read, identity: TableIdentity, *, now_ms: int) -> tuple[Pin, ...]:
    rows = read(
        "SELECT name, snapshot_id, metadata_location, expires_ms, kind, tag FROM pins "
        f"WHERE {THIS_TABLE} AND expires_ms > ? ORDER BY name",
        identity.key,
        now_ms,
    )
    return tuple(
        Pin(
            identity=identity,
            name=name,
            snapshot_id=snapshot_id,
            metadata_location=metadata_location,
            expires_ms=expires_ms,
            kind=PinKind(kind),
            tag=tag,
        )
        for name, snapshot_id, metadata_location, expires_ms, kind, tag in rows
    )


def _last_seen(read: Read, identity: TableIdentity) -> LastSeen | None:
    rows = read(
        f"SELECT snapshot_id, fingerprint, finished_ms, idle, idle_since FROM last_seen WHERE {THIS_COPY}",
        *copy_columns(identity),
    )
    if not rows:
        return None
    snapshot_id, fingerprint, finished_ms, idle, idle_since = rows[0]
    return LastSeen(
        snapshot_id=snapshot_id,
        fingerprint=fingerprint,
        finished_ms=finished_ms,
        idle=bool(idle),
        idle_since=read_idle_since(idle_since),
    )
