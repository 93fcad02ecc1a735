"""Claims in the SQLite state file: a row per catalog entry, and a row per folder by which entries are found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from icekeeper.model import TableName
from icekeeper.state.claims import CatalogLook, Entry, TableClaims, folders_around
from icekeeper.state.sqlite.file import SqliteFile

__all__ = ["SqliteClaims"]

_NO_LOOK = '{"run": "", "looked_ms": 0, "unseen": [], "failure": "", "hidden": []}'
"""The look of a catalog that no run has looked at yet."""

_COLUMNS = "catalog, warehouse, table_name, uuid, location, folders, data_roots, seen_sequence_number, seen_ms"
_ENTRY = "catalog = ? AND warehouse = ? AND table_name = ?"


class SqliteClaims:
    """A :class:`icekeeper.state.claims.ClaimStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def record(self, claims: TableClaims, *, replaces: TableClaims | None = None) -> None:
        self.record_first_looks([claims])

    def record_first_looks(self, claims: Sequence[TableClaims]) -> None:
        with self._file.transaction() as connection:
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
        with self._file.reading() as read:
            rows = read("SELECT catalog, warehouse, look FROM catalog_looks ORDER BY catalog, warehouse")
            return [CatalogLook.from_json(catalog, warehouse, json.loads(look)) for catalog, warehouse, look in rows]

    def record_look(self, look: CatalogLook) -> None:
        self._file.write("INSERT OR REPLACE INTO catalog_looks VALUES (?, ?, ?)", *look.key, json.dumps(look.to_json()))

    def of_entry(self, entry: Entry) -> TableClaims | None:
        return next(self._found(f"SELECT {_COLUMNS} FROM claims WHERE {_ENTRY}", *entry), None)

    def touching(self, folder: str) -> Iterator[TableClaims]:
        around = folders_around(folder)
        below = folder if folder.endswith("/") else f"{folder}/"
        # "0" is the character after "/": everything that begins with the folder and a slash lies between the two.
        return self._found(
            f"SELECT DISTINCT {_COLUMNS} FROM claims JOIN claimed_folders USING (catalog, warehouse, table_name) "
            f"WHERE folder IN ({', '.join('?' * len(around))}) OR (folder >= ? AND folder < ?) "
            "ORDER BY catalog, warehouse, table_name",
            *around,
            below,
            f"{below[:-1]}0",
        )

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[TableClaims]:
        return self._found(
            f"SELECT {_COLUMNS} FROM claims WHERE catalog = ? AND warehouse = ? ORDER BY table_name", catalog, warehouse
        )

    def forget(self, entry: Entry) -> None:
        with self._file.transaction() as connection:
            for table in ("claims", "claimed_folders"):
                connection.execute(f"DELETE FROM {table} WHERE {_ENTRY}", entry)

    def _found(self, statement: str, *values: str) -> Iterator[TableClaims]:
        with self._file.reading() as read:
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
