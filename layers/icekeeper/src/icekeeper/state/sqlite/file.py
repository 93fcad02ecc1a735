"""The SQLite file that holds the state of one machine: its tables, their upgrades, and how it is opened.

A connection is opened per call: it costs about a millisecond against passes of seconds, and leaves nothing to share
between threads or to inherit over a fork.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from icekeeper.errors import StorageError
from icekeeper.state.identity import TableIdentity

__all__ = ["SCHEMA_VERSION", "THIS_TABLE", "Read", "SqliteFile", "identity_columns"]

SCHEMA_VERSION = 9
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
_UPGRADES: Mapping[int, tuple[str, ...]] = {
    2: (
        f"""CREATE TABLE clusterings ({_IDENTITY}, recipe TEXT NOT NULL, snapshot_id INTEGER NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, uuid, recipe, snapshot_id))""",
    ),
    3: (
        f"""CREATE TABLE staged_loads ({_IDENTITY}, name TEXT NOT NULL, origin TEXT NOT NULL, state TEXT NOT NULL,
        prefixes TEXT NOT NULL, changed_ms INTEGER NOT NULL, expires_ms INTEGER, file_count INTEGER NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, uuid, name))""",
        f"""CREATE TABLE staged_files ({_IDENTITY}, name TEXT NOT NULL, part INTEGER NOT NULL, paths TEXT NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, uuid, name, part))""",
        "ALTER TABLE pins ADD COLUMN tag TEXT",
    ),
    4: (
        f"""CREATE TABLE quarantine ({_IDENTITY}, path TEXT NOT NULL, sightings INTEGER NOT NULL,
        first_seen_ms INTEGER NOT NULL, run_id TEXT NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, uuid, path)) WITHOUT ROWID""",
    ),
    5: (
        f"""CREATE TABLE pending_deletions ({_IDENTITY}, name TEXT NOT NULL, part INTEGER NOT NULL,
        paths TEXT NOT NULL, PRIMARY KEY (catalog, warehouse, table_name, uuid, name, part))""",
    ),
    6: (
        """CREATE TABLE leases (lease_key TEXT NOT NULL PRIMARY KEY, holder TEXT NOT NULL,
        expires_ms INTEGER NOT NULL)""",
    ),
    7: (
        f"""CREATE TABLE requests ({_IDENTITY}, requested_ms INTEGER NOT NULL, settings TEXT NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, uuid))""",
    ),
    8: (
        f"""CREATE TABLE lake_stats ({_IDENTITY}, observed_ms INTEGER NOT NULL, snapshot_id INTEGER,
        counters TEXT NOT NULL, warnings TEXT NOT NULL, policy TEXT NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, uuid))""",
    ),
    9: (
        f"""CREATE TABLE claims ({_IDENTITY}, location TEXT NOT NULL, folders TEXT NOT NULL, data_roots TEXT NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name))""",
        """CREATE TABLE claimed_folders (folder TEXT NOT NULL, catalog TEXT NOT NULL, warehouse TEXT NOT NULL,
        table_name TEXT NOT NULL, PRIMARY KEY (folder, catalog, warehouse, table_name)) WITHOUT ROWID""",
    ),
}
THIS_TABLE = "catalog = ? AND warehouse = ? AND table_name = ? AND uuid = ?"
"""The condition that :func:`identity_columns` fills."""


class Read(Protocol):
    """Asks the file one question."""

    def __call__(self, statement: str, *values: Any) -> list[tuple[Any, ...]]: ...


class SqliteFile:
    """One state file, which the first call creates; every method raises StorageError when it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.connection() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """Several questions about the file as it is at one moment, over one connection."""
        with self.connection() as connection:
            connection.execute("BEGIN")
            yield lambda statement, *values: connection.execute(statement, values).fetchall()
            connection.execute("COMMIT")

    def write(self, statement: str, *values: Any) -> int:
        with self.connection() as connection:
            return connection.execute(statement, values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Several statements that happen together or, when the block is left by an error, not at all."""
        with self.connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection  # an error closes the connection, which rolls back
            connection.execute("COMMIT")

    def require_writable(self) -> None:
        with self.connection() as connection:
            connection.execute("BEGIN IMMEDIATE")  # takes the lock for writing, which a read-only file refuses
            connection.execute("ROLLBACK")

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        try:
            # 0700: the journal names tables and files that others on the machine need not know.
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Autocommit: a statement is a transaction, unless one was begun.
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
                for statement in _UPGRADES[number]:
                    connection.execute(statement)
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


def identity_columns(identity: TableIdentity) -> tuple[str, str, str, str]:
    """What identifies a table, in the order of the columns."""
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
