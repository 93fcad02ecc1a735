"""The tables of the SQLite state file, version by version."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

from icekeeper.state.sqlite.rekey import key_by_uuid

__all__ = ["NO_LOOK", "SCHEMA_VERSION", "upgrade"]

SCHEMA_VERSION = 15
NO_LOOK = '{"run": "", "looked_ms": 0, "unseen": [], "failure": ""}'
"""The look of a catalog that no run has looked at yet."""
# The key of a table up to version 8.
_NAMES = "catalog TEXT NOT NULL, warehouse TEXT NOT NULL, table_name TEXT NOT NULL, uuid TEXT NOT NULL"
_BY_NAMES = "catalog, warehouse, table_name, uuid"


def _statements(*statements: str) -> Callable[[sqlite3.Connection], None]:
    def run(connection: sqlite3.Connection) -> None:
        for statement in statements:
            connection.execute(statement)

    return run


# Version → the step that upgrades a file from the version before.
_UPGRADES: Mapping[int, Callable[[sqlite3.Connection], None]] = {
    1: _statements(
        f"""CREATE TABLE passes ({_NAMES}, run_id TEXT NOT NULL, started_ms INTEGER NOT NULL,
        finished_ms INTEGER NOT NULL, status TEXT NOT NULL, summary TEXT NOT NULL, metrics TEXT NOT NULL,
        engine TEXT NOT NULL, PRIMARY KEY ({_BY_NAMES}, run_id))""",
        f"CREATE INDEX passes_newest ON passes ({_BY_NAMES}, finished_ms)",
        f"""CREATE TABLE pins ({_NAMES}, name TEXT NOT NULL, snapshot_id INTEGER NOT NULL,
        metadata_location TEXT NOT NULL, expires_ms INTEGER NOT NULL, kind TEXT NOT NULL,
        PRIMARY KEY ({_BY_NAMES}, name))""",
        f"""CREATE TABLE last_seen ({_NAMES}, snapshot_id INTEGER, fingerprint TEXT NOT NULL,
        finished_ms INTEGER NOT NULL, idle INTEGER NOT NULL, PRIMARY KEY ({_BY_NAMES}))""",
    ),
    2: _statements(
        f"""CREATE TABLE clusterings ({_NAMES}, recipe TEXT NOT NULL, snapshot_id INTEGER NOT NULL,
        PRIMARY KEY ({_BY_NAMES}, recipe, snapshot_id))""",
    ),
    3: _statements(
        f"""CREATE TABLE staged_loads ({_NAMES}, name TEXT NOT NULL, origin TEXT NOT NULL, state TEXT NOT NULL,
        prefixes TEXT NOT NULL, changed_ms INTEGER NOT NULL, expires_ms INTEGER, file_count INTEGER NOT NULL,
        PRIMARY KEY ({_BY_NAMES}, name))""",
        f"""CREATE TABLE staged_files ({_NAMES}, name TEXT NOT NULL, part INTEGER NOT NULL, paths TEXT NOT NULL,
        PRIMARY KEY ({_BY_NAMES}, name, part))""",
        "ALTER TABLE pins ADD COLUMN tag TEXT",
    ),
    4: _statements(
        f"""CREATE TABLE quarantine ({_NAMES}, path TEXT NOT NULL, sightings INTEGER NOT NULL,
        first_seen_ms INTEGER NOT NULL, run_id TEXT NOT NULL, PRIMARY KEY ({_BY_NAMES}, path)) WITHOUT ROWID""",
    ),
    5: _statements(
        f"""CREATE TABLE pending_deletions ({_NAMES}, name TEXT NOT NULL, part INTEGER NOT NULL,
        paths TEXT NOT NULL, PRIMARY KEY ({_BY_NAMES}, name, part))""",
    ),
    6: _statements(
        """CREATE TABLE leases (lease_key TEXT NOT NULL PRIMARY KEY, holder TEXT NOT NULL,
        expires_ms INTEGER NOT NULL)""",
    ),
    7: _statements(
        f"""CREATE TABLE requests ({_NAMES}, requested_ms INTEGER NOT NULL, settings TEXT NOT NULL,
        PRIMARY KEY ({_BY_NAMES}))""",
    ),
    8: _statements(
        f"""CREATE TABLE lake_stats ({_NAMES}, observed_ms INTEGER NOT NULL, snapshot_id INTEGER,
        counters TEXT NOT NULL, warnings TEXT NOT NULL, policy TEXT NOT NULL, PRIMARY KEY ({_BY_NAMES}))""",
    ),
    9: key_by_uuid,
    10: _statements(
        """CREATE TABLE claims (catalog TEXT NOT NULL, warehouse TEXT NOT NULL, table_name TEXT NOT NULL,
        uuid TEXT NOT NULL, location TEXT NOT NULL, folders TEXT NOT NULL, data_roots TEXT NOT NULL,
        seen_sequence_number INTEGER NOT NULL, seen_ms INTEGER NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name))""",
        """CREATE TABLE claimed_folders (folder TEXT NOT NULL, catalog TEXT NOT NULL, warehouse TEXT NOT NULL,
        table_name TEXT NOT NULL, PRIMARY KEY (folder, catalog, warehouse, table_name)) WITHOUT ROWID""",
    ),
    11: _statements(
        """CREATE TABLE schedule_runs (table_key TEXT NOT NULL, place TEXT NOT NULL, schedule TEXT NOT NULL,
        counted_ms INTEGER NOT NULL, finished_ms INTEGER NOT NULL, snapshot_id INTEGER, fingerprint TEXT NOT NULL,
        idle INTEGER NOT NULL, PRIMARY KEY (table_key, place, schedule))""",
    ),
    12: _statements("ALTER TABLE last_seen ADD COLUMN slack TEXT"),
    13: _statements(
        """CREATE TABLE used (hour TEXT NOT NULL, name TEXT NOT NULL, amount INTEGER NOT NULL,
        PRIMARY KEY (hour, name)) WITHOUT ROWID""",
    ),
    14: _statements(
        """CREATE TABLE unreadable_files (table_key TEXT NOT NULL, place TEXT NOT NULL, path TEXT NOT NULL,
        why TEXT NOT NULL, schema_digest TEXT NOT NULL, tried_ms INTEGER NOT NULL,
        PRIMARY KEY (table_key, place, path)) WITHOUT ROWID""",
        """CREATE TABLE catalog_looks (catalog TEXT NOT NULL, warehouse TEXT NOT NULL, look TEXT NOT NULL,
        PRIMARY KEY (catalog, warehouse))""",
        "CREATE INDEX claimed_folders_of_entry ON claimed_folders (catalog, warehouse, table_name)",
        f"INSERT INTO catalog_looks SELECT DISTINCT catalog, warehouse, '{NO_LOOK}' FROM claims",
    ),
    15: _statements(
        """CREATE TABLE cut_offs (catalog TEXT NOT NULL, warehouse TEXT NOT NULL, table_name TEXT NOT NULL,
        work TEXT NOT NULL, times INTEGER NOT NULL, cut_ms INTEGER NOT NULL, why TEXT NOT NULL,
        PRIMARY KEY (catalog, warehouse, table_name, work)) WITHOUT ROWID""",
    ),
}


def upgrade(connection: sqlite3.Connection, version: int, *, to: int = SCHEMA_VERSION) -> None:
    """Bring a file of an earlier version up to date, from 0 for an empty one; in the caller's transaction."""
    for number in range(version + 1, to + 1):
        _UPGRADES[number](connection)
    connection.execute(f"PRAGMA user_version = {to}")
