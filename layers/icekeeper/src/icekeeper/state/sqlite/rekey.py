"""Version 9 of the SQLite state file: tables are known by their UUID, not by what a catalog calls them.

In the new tables, ``table_key`` is :attr:`TableIdentity.key` and ``place`` is :attr:`TableIdentity.place`.  Rows of
earlier versions have no location, so their place is the spelling of their table.
"""

from __future__ import annotations

import sqlite3

from icekeeper.state.identity import EarlierIdentity

__all__ = ["key_by_uuid"]

_NAMES = "catalog, warehouse, table_name, uuid"
_TOLD = "catalog TEXT NOT NULL, warehouse TEXT NOT NULL, table_name TEXT NOT NULL, uuid TEXT NOT NULL"
_KEY = "table_key TEXT NOT NULL"
_COPY = f"{_KEY}, place TEXT NOT NULL"
# The columns of each new table; the first ones are its key.
_SHAPES = {
    "pins": f"""({_KEY}, name TEXT NOT NULL, snapshot_id INTEGER NOT NULL, metadata_location TEXT NOT NULL,
        expires_ms INTEGER NOT NULL, kind TEXT NOT NULL, tag TEXT, PRIMARY KEY (table_key, name))""",
    "staged_loads": f"""({_KEY}, name TEXT NOT NULL, origin TEXT NOT NULL, state TEXT NOT NULL,
        prefixes TEXT NOT NULL, changed_ms INTEGER NOT NULL, expires_ms INTEGER, file_count INTEGER NOT NULL,
        PRIMARY KEY (table_key, name))""",
    "staged_files": f"""({_KEY}, name TEXT NOT NULL, part INTEGER NOT NULL, paths TEXT NOT NULL,
        PRIMARY KEY (table_key, name, part))""",
    "passes": f"""({_COPY}, {_TOLD}, run_id TEXT NOT NULL, started_ms INTEGER NOT NULL, finished_ms INTEGER NOT NULL,
        status TEXT NOT NULL, summary TEXT NOT NULL, metrics TEXT NOT NULL, engine TEXT NOT NULL,
        PRIMARY KEY (table_key, place, run_id))""",
    "last_seen": f"""({_COPY}, snapshot_id INTEGER, fingerprint TEXT NOT NULL, finished_ms INTEGER NOT NULL,
        idle INTEGER NOT NULL, PRIMARY KEY (table_key, place))""",
    "clusterings": f"""({_COPY}, recipe TEXT NOT NULL, snapshot_id INTEGER NOT NULL,
        PRIMARY KEY (table_key, place, recipe, snapshot_id))""",
    "quarantine": f"""({_COPY}, path TEXT NOT NULL, sightings INTEGER NOT NULL, first_seen_ms INTEGER NOT NULL,
        run_id TEXT NOT NULL, PRIMARY KEY (table_key, place, path)) WITHOUT ROWID""",
    "pending_deletions": f"""({_COPY}, name TEXT NOT NULL, part INTEGER NOT NULL, paths TEXT NOT NULL,
        PRIMARY KEY (table_key, place, name, part))""",
    "requests": f"""({_KEY}, {_TOLD}, location TEXT NOT NULL, requested_ms INTEGER NOT NULL, settings TEXT NOT NULL,
        PRIMARY KEY (table_key))""",
}
_OF_COPIES = {
    "passes": f"{_NAMES}, run_id, started_ms, finished_ms, status, summary, metrics, engine",
    "last_seen": "snapshot_id, fingerprint, finished_ms, idle",
    "clusterings": "recipe, snapshot_id",
    "quarantine": "path, sightings, first_seen_ms, run_id",
    "pending_deletions": "name, part, paths",
}


def key_by_uuid(connection: sqlite3.Connection) -> None:
    """Move every row to the new tables; rows that were filed under two names of one table are merged."""
    connection.create_function("key_of", 4, lambda *names: EarlierIdentity(*names).key, deterministic=True)
    connection.create_function("place_of", 4, lambda *names: EarlierIdentity(*names).spelling, deterministic=True)
    connection.execute("DROP INDEX passes_newest")
    for name, shape in _SHAPES.items():
        connection.execute(f"ALTER TABLE {name} RENAME TO former_{name}")
        connection.execute(f"CREATE TABLE {name} {shape}")
    for name, columns in _OF_COPIES.items():
        # One UUID in two cases is one table: the later of two entries with one key stays.
        connection.execute(
            f"INSERT OR REPLACE INTO {name} SELECT key_of({_NAMES}), place_of({_NAMES}), {columns} FROM former_{name}"
        )
    _carry_pins(connection)
    _carry_loads(connection)
    connection.execute(
        f"INSERT OR REPLACE INTO requests SELECT key_of({_NAMES}), {_NAMES}, '', requested_ms, settings "
        "FROM former_requests ORDER BY requested_ms"
    )
    _carry_leases(connection)
    connection.execute("UPDATE OR REPLACE lake_stats SET uuid = lower(uuid)")
    connection.execute("ALTER TABLE lake_stats ADD COLUMN location TEXT NOT NULL DEFAULT ''")
    for name in _SHAPES:
        connection.execute(f"DROP TABLE former_{name}")
    connection.execute("CREATE INDEX passes_newest ON passes (table_key, place, finished_ms)")


def _carry_pins(connection: sqlite3.Connection) -> None:
    columns = "name, snapshot_id, metadata_location, expires_ms, kind, tag"
    rows = connection.execute(f"SELECT key_of({_NAMES}), {columns} FROM former_pins ORDER BY expires_ms DESC")
    taken: set[tuple[str, str]] = set()
    for key, name, *rest in rows.fetchall():
        row = (key, _free_name(taken, key, name), *rest)
        connection.execute("INSERT INTO pins VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def _carry_loads(connection: sqlite3.Connection) -> None:
    columns = "name, origin, state, prefixes, changed_ms, expires_ms, file_count"
    former = f"SELECT key_of({_NAMES}), {_NAMES}, {columns} FROM former_staged_loads ORDER BY changed_ms DESC"
    taken: set[tuple[str, str]] = set()
    for key, catalog, warehouse, table, uuid, name, *rest in connection.execute(former).fetchall():
        chosen = _free_name(taken, key, name)
        connection.execute("INSERT INTO staged_loads VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (key, chosen, *rest))
        connection.execute(
            "INSERT INTO staged_files SELECT ?, ?, part, paths FROM former_staged_files "
            "WHERE catalog = ? AND warehouse = ? AND table_name = ? AND uuid = ? AND name = ?",
            (key, chosen, catalog, warehouse, table, uuid, name),
        )


def _free_name(taken: set[tuple[str, str]], key: str, name: str) -> str:
    """A name that no other row of this table has: rows filed under two names of a table may both be called "reader"."""
    chosen, number = name, 2
    while (key, chosen) in taken:
        chosen, number = f"{name}-{number}", number + 1
    taken.add((key, chosen))
    return chosen


def _carry_leases(connection: sqlite3.Connection) -> None:
    """Move leases.  If two runs hold the same table, the lease that ends later stays; the other run stops before its
    next commit, with LeaseLost."""
    connection.execute("ALTER TABLE leases ADD COLUMN name TEXT NOT NULL DEFAULT ''")
    rows = connection.execute("SELECT lease_key, holder, expires_ms FROM leases ORDER BY expires_ms").fetchall()
    for former, holder, expires_ms in rows:
        identity = EarlierIdentity.parse(former)
        if identity is not None:
            connection.execute("DELETE FROM leases WHERE lease_key = ?", (former,))
            row = (identity.key, holder, expires_ms, identity.table)
            connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", row)
