"""The state store of one machine: a SQLite file, shared safely by every process of its user."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

from icekeeper.state.identity import TableIdentity
from icekeeper.state.slack import read_slack, slack_text
from icekeeper.state.sqlite.claims import SqliteClaims
from icekeeper.state.sqlite.cut_offs import SqliteCutOffs
from icekeeper.state.sqlite.file import THIS_COPY, THIS_TABLE, Read, SqliteFile, copy_columns
from icekeeper.state.sqlite.lake_stats import SqliteLakeStats
from icekeeper.state.sqlite.leases import SqliteLeases
from icekeeper.state.sqlite.pending_deletions import SqlitePendingDeletions
from icekeeper.state.sqlite.quarantine import SqliteQuarantine
from icekeeper.state.sqlite.requests import SqliteRequests
from icekeeper.state.sqlite.schedules import SqliteSchedules, read_schedules
from icekeeper.state.sqlite.staging import SqliteStaging, read_loads
from icekeeper.state.sqlite.unreadable_files import SqliteUnreadableFiles, read_unreadable_files
from icekeeper.state.sqlite.usage import SqliteUsage
from icekeeper.state.store import OVERLAP_MS, Glance, LastSeen, PassRecord, Pin, PinKind

__all__ = ["SqliteStateStore"]


class SqliteStateStore:
    """A :class:`icekeeper.state.store.StateStore` in one file, which the first call creates."""

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
            "INSERT INTO last_seen (table_key, place, snapshot_id, fingerprint, finished_ms, idle, slack) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (table_key, place) DO UPDATE SET snapshot_id = excluded.snapshot_id, "
            "fingerprint = excluded.fingerprint, finished_ms = excluded.finished_ms, idle = excluded.idle, "
            "slack = excluded.slack "
            "WHERE last_seen.finished_ms NOT BETWEEN excluded.finished_ms + 1 AND excluded.finished_ms + ?",
            identity.key,
            identity.place,
            seen.snapshot_id,
            seen.fingerprint,
            seen.finished_ms,
            seen.idle,
            slack_text(seen.slack),
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
        f"SELECT snapshot_id, fingerprint, finished_ms, idle, slack FROM last_seen WHERE {THIS_COPY}",
        *copy_columns(identity),
    )
    if not rows:
        return None
    snapshot_id, fingerprint, finished_ms, idle, slack = rows[0]
    return LastSeen(
        snapshot_id=snapshot_id,
        fingerprint=fingerprint,
        finished_ms=finished_ms,
        idle=bool(idle),
        slack=read_slack(slack),
    )
