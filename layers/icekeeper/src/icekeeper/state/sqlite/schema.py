"""The tables of the SQLite state file.

``table_key`` is :attr:`TableIdentity.key` and ``place`` is :attr:`TableIdentity.place`.
"""

from __future__ import annotations

import sqlite3

__all__ = ["SCHEMA_VERSION", "create_tables"]

SCHEMA_VERSION = 15
"""The ``user_version`` of a state file; a file with another one is refused."""
_TABLE = "table_key TEXT NOT NULL"
_COPY = f"{_TABLE}, place TEXT NOT NULL"
_ENTRY = "catalog TEXT NOT NULL, warehouse TEXT NOT NULL, table_name TEXT NOT NULL"
_STATEMENTS = (
    f"""CREATE TABLE passes ({_COPY}, {_ENTRY}, uuid TEXT NOT NULL, run_id TEXT NOT NULL, started_ms INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL, status TEXT NOT NULL, summary TEXT NOT NULL, metrics TEXT NOT NULL,
    engine TEXT NOT NULL, PRIMARY KEY (table_key, place, run_id))""",
    "CREATE INDEX passes_newest ON passes (table_key, place, finished_ms)",
    f"""CREATE TABLE pins ({_TABLE}, name TEXT NOT NULL, snapshot_id INTEGER NOT NULL, metadata_location TEXT NOT NULL,
    expires_ms INTEGER NOT NULL, kind TEXT NOT NULL, tag TEXT, PRIMARY KEY (table_key, name))""",
    f"""CREATE TABLE last_seen ({_COPY}, snapshot_id INTEGER, fingerprint TEXT NOT NULL, finished_ms INTEGER NOT NULL,
    idle INTEGER NOT NULL, slack TEXT, PRIMARY KEY (table_key, place))""",
    f"""CREATE TABLE clusterings ({_COPY}, recipe TEXT NOT NULL, snapshot_id INTEGER NOT NULL,
    PRIMARY KEY (table_key, place, recipe, snapshot_id))""",
    f"""CREATE TABLE staged_loads ({_TABLE}, name TEXT NOT NULL, origin TEXT NOT NULL, state TEXT NOT NULL,
    prefixes TEXT NOT NULL, changed_ms INTEGER NOT NULL, expires_ms INTEGER, file_count INTEGER NOT NULL,
    PRIMARY KEY (table_key, name))""",
    f"""CREATE TABLE staged_files ({_TABLE}, name TEXT NOT NULL, part INTEGER NOT NULL, paths TEXT NOT NULL,
    PRIMARY KEY (table_key, name, part))""",
    f"""CREATE TABLE quarantine ({_COPY}, path TEXT NOT NULL, sightings INTEGER NOT NULL,
    first_seen_ms INTEGER NOT NULL, run_id TEXT NOT NULL, PRIMARY KEY (table_key, place, path)) WITHOUT ROWID""",
    f"""CREATE TABLE pending_deletions ({_COPY}, name TEXT NOT NULL, part INTEGER NOT NULL, paths TEXT NOT NULL,
    PRIMARY KEY (table_key, place, name, part))""",
    """CREATE TABLE leases (lease_key TEXT NOT NULL PRIMARY KEY, holder TEXT NOT NULL, expires_ms INTEGER NOT NULL,
    name TEXT NOT NULL)""",
    f"""CREATE TABLE requests ({_TABLE} PRIMARY KEY, {_ENTRY}, uuid TEXT NOT NULL, location TEXT NOT NULL,
    requested_ms INTEGER NOT NULL, settings TEXT NOT NULL)""",
    f"""CREATE TABLE lake_stats ({_ENTRY}, uuid TEXT NOT NULL, observed_ms INTEGER NOT NULL, snapshot_id INTEGER,
    counters TEXT NOT NULL, warnings TEXT NOT NULL, policy TEXT NOT NULL, location TEXT NOT NULL,
    PRIMARY KEY (catalog, warehouse, table_name, uuid))""",
    f"""CREATE TABLE claims ({_ENTRY}, uuid TEXT NOT NULL, location TEXT NOT NULL, folders TEXT NOT NULL,
    data_roots TEXT NOT NULL, seen_sequence_number INTEGER NOT NULL, seen_ms INTEGER NOT NULL,
    PRIMARY KEY (catalog, warehouse, table_name))""",
    f"""CREATE TABLE claimed_folders (folder TEXT NOT NULL, {_ENTRY},
    PRIMARY KEY (folder, catalog, warehouse, table_name)) WITHOUT ROWID""",
    "CREATE INDEX claimed_folders_of_entry ON claimed_folders (catalog, warehouse, table_name)",
    """CREATE TABLE catalog_looks (catalog TEXT NOT NULL, warehouse TEXT NOT NULL, look TEXT NOT NULL,
    PRIMARY KEY (catalog, warehouse))""",
    f"""CREATE TABLE schedule_runs ({_COPY}, schedule TEXT NOT NULL, counted_ms INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL, snapshot_id INTEGER, fingerprint TEXT NOT NULL, idle INTEGER NOT NULL,
    PRIMARY KEY (table_key, place, schedule))""",
    f"""CREATE TABLE unreadable_files ({_COPY}, path TEXT NOT NULL, why TEXT NOT NULL, schema_digest TEXT NOT NULL,
    tried_ms INTEGER NOT NULL, PRIMARY KEY (table_key, place, path)) WITHOUT ROWID""",
    f"""CREATE TABLE cut_offs ({_ENTRY}, work TEXT NOT NULL, times INTEGER NOT NULL, cut_ms INTEGER NOT NULL,
    why TEXT NOT NULL, PRIMARY KEY (catalog, warehouse, table_name, work)) WITHOUT ROWID""",
    """CREATE TABLE used (hour TEXT NOT NULL, name TEXT NOT NULL, amount INTEGER NOT NULL,
    PRIMARY KEY (hour, name)) WITHOUT ROWID""",
)


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty file, in the caller's transaction."""
    for statement in _STATEMENTS:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
