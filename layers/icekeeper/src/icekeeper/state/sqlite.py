"""The state store of one machine: a SQLite file, shared safely by every process of its user.

A connection is opened per call: it costs about a millisecond against passes of seconds, and leaves nothing to share
between threads or to inherit over a fork.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.state.store import LastSeen, PassRecord, Pin, PinKind, TableIdentity

__all__ = ["SqliteStateStore", "state_path"]

SCHEMA_VERSION = 2
BUSY_TIMEOUT_S = 30.0
_IDENTITY = "catalog TEXT NOT NULL, warehouse TEXT NOT NULL, table_name TEXT NOT NULL, uuid TEXT NOT NULL"
_SCHEMA = (
    f"""CREATE TABLE passes ({_IDENTITY}, run_id TEXT NOT NULL, started_ms INTEGER NOT NULL,
        finished_ms INTEGER NOT NULL, status TEXT NOT NULL, summary TEXT NOT NULL, metrics TEXT NOT NULL,
        engine TEXT NOT NULL, PRIMARY KEY (catalog, warehouse, table_name, uuid, run_id))""",
    "CREATE INDEX passes_newest ON passes (catalog, warehouse, table_name, uuid, finished_ms)",
    f"""CREATE TABLE pins ({_IDENTITY}, name TEXT NOT NULL, snapshot_id INTEGER NOT NULL,
        metadata_location TEXT NOT NULL, expires_ms INTEGER NOT NULL, kind TEXT NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, uuid, name))""",
    f"""CREATE TABLE last_seen ({_IDENTITY}, snapshot_id INTEGER, fingerprint TEXT NOT NULL,
        finished_ms INTEGER NOT NULL, idle INTEGER NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, uuid))""",
)
# Version → what brings a file of the version before up to it.
_UPGRADES: Mapping[int, str] = {
    2: f"""CREATE TABLE clusterings ({_IDENTITY}, recipe TEXT NOT NULL, snapshot_id INTEGER NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, uuid, recipe, snapshot_id))""",
}
_THIS_TABLE = "catalog = ? AND warehouse = ? AND table_name = ? AND uuid = ?"


def state_path(environment: Mapping[str, str]) -> Path:
    """Where the state lives: ``ICEKEEPER_STATE``, else ``icekeeper/state.db`` in the user's state folder.

    The state folder is ``$XDG_STATE_HOME`` or ``~/.local/state`` (XDG Base Directory Specification, by which a
    relative ``XDG_STATE_HOME`` is invalid and ignored).
    """
    if explicit := environment.get("ICEKEEPER_STATE"):
        return Path(explicit).expanduser()
    state_home = Path(environment.get("XDG_STATE_HOME") or "")
    if not state_home.is_absolute():
        home = environment.get("HOME")
        state_home = (Path(home) if home else Path.home()) / ".local" / "state"
    return state_home / "icekeeper" / "state.db"


class SqliteStateStore:
    """A :class:`icekeeper.state.store.StateStore` in one file, which the first call creates."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def require_writable(self) -> None:
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")  # takes the lock for writing, which a read-only file refuses
            connection.execute("ROLLBACK")

    def record_pass(self, record: PassRecord) -> None:
        self._write(
            "INSERT OR REPLACE INTO passes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *_columns(record.identity),
            record.run_id,
            record.started_ms,
            record.finished_ms,
            record.status,
            record.summary,
            json.dumps(dict(record.metrics), sort_keys=True),
            record.engine,
        )

    def history(self, identity: TableIdentity, *, limit: int = 100) -> tuple[PassRecord, ...]:
        rows = self._read(
            "SELECT run_id, started_ms, finished_ms, status, summary, metrics, engine FROM passes "
            f"WHERE {_THIS_TABLE} ORDER BY finished_ms DESC, rowid DESC LIMIT ?",
            *_columns(identity),
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
        self._write(
            "INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *_columns(pin.identity),
            pin.name,
            pin.snapshot_id,
            pin.metadata_location,
            pin.expires_ms,
            pin.kind.value,
        )

    def pins(self, identity: TableIdentity, *, now_ms: int) -> tuple[Pin, ...]:
        rows = self._read(
            "SELECT name, snapshot_id, metadata_location, expires_ms, kind FROM pins "
            f"WHERE {_THIS_TABLE} AND expires_ms > ? ORDER BY name",
            *_columns(identity),
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
            )
            for name, snapshot_id, metadata_location, expires_ms, kind in rows
        )

    def remove_pin(self, identity: TableIdentity, name: str) -> bool:
        return self._write(f"DELETE FROM pins WHERE {_THIS_TABLE} AND name = ?", *_columns(identity), name) > 0

    def remember(self, identity: TableIdentity, seen: LastSeen) -> None:
        self._write(
            "INSERT INTO last_seen VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (catalog, warehouse, table_name, uuid) DO UPDATE SET snapshot_id = excluded.snapshot_id, "
            "fingerprint = excluded.fingerprint, finished_ms = excluded.finished_ms, idle = excluded.idle "
            "WHERE excluded.finished_ms >= last_seen.finished_ms",
            *_columns(identity),
            seen.snapshot_id,
            seen.fingerprint,
            seen.finished_ms,
            seen.idle,
        )

    def record_clustering(self, identity: TableIdentity, snapshot_id: int, recipe: str) -> None:
        self._write(
            "INSERT OR REPLACE INTO clusterings VALUES (?, ?, ?, ?, ?, ?)", *_columns(identity), recipe, snapshot_id
        )

    def clustered_snapshots(self, identity: TableIdentity, recipe: str) -> frozenset[int]:
        rows = self._read(
            f"SELECT snapshot_id FROM clusterings WHERE {_THIS_TABLE} AND recipe = ?", *_columns(identity), recipe
        )
        return frozenset(snapshot_id for (snapshot_id,) in rows)

    def last_seen(self, identity: TableIdentity) -> LastSeen | None:
        rows = self._read(
            f"SELECT snapshot_id, fingerprint, finished_ms, idle FROM last_seen WHERE {_THIS_TABLE}",
            *_columns(identity),
        )
        if not rows:
            return None
        snapshot_id, fingerprint, finished_ms, idle = rows[0]
        return LastSeen(snapshot_id=snapshot_id, fingerprint=fingerprint, finished_ms=finished_ms, idle=bool(idle))

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection() as connection:
            return connection.execute(statement, values).fetchall()

    def _write(self, statement: str, *values: Any) -> int:
        with self._connection() as connection:
            return connection.execute(statement, values).rowcount

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            # 0700: the journal names tables and files that others on the machine need not know.
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Autocommit: every call is one statement, so one transaction.
            with closing(sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
                self._prepare(connection)
                yield connection
        except (sqlite3.Error, OSError, ValueError) as error:
            raise StorageError(f"the state file {self.path} cannot be used: {error}") from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = _schema_version(connection)
        if version < SCHEMA_VERSION:
            connection.execute("BEGIN IMMEDIATE")
            # Asked again under the lock: another process may have been faster.
            version = _schema_version(connection)
            is_ours_to_create = version == 0
            if is_ours_to_create:
                if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                    raise StorageError(f"the file {self.path} is a database of another application, not a state file")
                for statement in _SCHEMA:
                    connection.execute(statement)
                version = 1
            for number in range(version + 1, SCHEMA_VERSION + 1):
                connection.execute(_UPGRADES[number])
            if version < SCHEMA_VERSION:
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                version = SCHEMA_VERSION
            connection.execute("COMMIT")
            if is_ours_to_create:
                _use_write_ahead_log(connection)
        if version != SCHEMA_VERSION:
            raise StorageError(
                f"the state file {self.path} has schema version {version}, this Icekeeper knows {SCHEMA_VERSION}; "
                "upgrade, or name another file with ICEKEEPER_STATE"
            )


def _columns(identity: TableIdentity) -> tuple[str, str, str, str]:
    return identity.catalog, identity.warehouse, str(identity.table), identity.uuid


def _schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # Changing the journal mode needs the file alone and, unlike a transaction, does not wait for the others.  The
    # mode stays with the file; where it cannot be had, the rollback journal is as safe and only less concurrent.
    for _ in range(100):
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
            return
        time.sleep(0.01)
