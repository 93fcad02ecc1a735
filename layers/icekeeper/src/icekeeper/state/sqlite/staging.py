"""Staged loads in the SQLite state file; the paths of a load lie in rows of a thousand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.file import THIS_TABLE, Read, SqliteFile
from icekeeper.state.sqlite.path_lists import read_paths, write_paths
from icekeeper.state.store import LoadOrigin, LoadState, StagedLoad

__all__ = ["SqliteStaging", "read_loads"]

_COLUMNS = "name, origin, state, prefixes, changed_ms, expires_ms, file_count"
_THIS_LOAD = f"{THIS_TABLE} AND name = ?"
# "IS" compares null with null.
_UNCHANGED = f"{_THIS_LOAD} AND state = ? AND changed_ms = ? AND expires_ms IS ? AND file_count = ?"


class SqliteStaging:
    """A :class:`icekeeper.state.store.StagingStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def stage(self, load: StagedLoad, files: Iterable[str]) -> StagedLoad:
        key = load.identity.key, load.name
        with self._file.transaction() as connection:
            last = connection.execute(f"SELECT max(part) FROM staged_files WHERE {_THIS_LOAD}", key).fetchone()[0]
            count = write_paths(connection, "staged_files", key, files, 0 if last is None else last + 1)
            connection.execute(
                "INSERT INTO staged_loads VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (table_key, name) DO UPDATE SET origin = excluded.origin, "
                "state = excluded.state, prefixes = excluded.prefixes, changed_ms = excluded.changed_ms, "
                "expires_ms = excluded.expires_ms, file_count = file_count + excluded.file_count",
                (
                    *key,
                    load.origin.value,
                    load.state.value,
                    json.dumps(load.prefixes),
                    load.changed_ms,
                    load.expires_ms,
                    count,
                ),
            )
            row = connection.execute(f"SELECT {_COLUMNS} FROM staged_loads WHERE {_THIS_LOAD}", key).fetchone()
            return _load(load.identity, row)

    def loads(self, identity: TableIdentity) -> tuple[StagedLoad, ...]:
        with self._file.reading() as read:
            return read_loads(read, identity)

    def files(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        return read_paths(self._file, "staged_files", _THIS_LOAD, identity.key, name)

    def change(self, before: StagedLoad, after: StagedLoad) -> bool:
        statement = f"UPDATE staged_loads SET state = ?, changed_ms = ?, expires_ms = ? WHERE {_UNCHANGED}"
        now = (after.state.value, after.changed_ms, after.expires_ms)
        return self._file.write(statement, *now, *_unchanged(before)) > 0

    def forget(self, load: StagedLoad) -> bool:
        with self._file.transaction() as connection:
            gone = connection.execute(f"DELETE FROM staged_loads WHERE {_UNCHANGED}", _unchanged(load)).rowcount > 0
            if gone:
                key = load.identity.key, load.name
                connection.execute(f"DELETE FROM staged_files WHERE {_THIS_LOAD}", key)
            return gone


def read_loads(read: Read, identity: TableIdentity) -> tuple[StagedLoad, ...]:
    """Every load of a table that is not forgotten, by name."""
    rows = read(f"SELECT {_COLUMNS} FROM staged_loads WHERE {THIS_TABLE} ORDER BY name", identity.key)
    return tuple(_load(identity, row) for row in rows)


def _load(identity: TableIdentity, row: Sequence[Any]) -> StagedLoad:
    name, origin, state, prefixes, changed_ms, expires_ms, file_count = row
    return StagedLoad(
        identity=identity,
        name=name,
        origin=LoadOrigin(origin),
        state=LoadState(state),
        prefixes=tuple(json.loads(prefixes)),
        changed_ms=changed_ms,
        expires_ms=expires_ms,
        file_count=file_count,
    )


def _unchanged(load: StagedLoad) -> tuple[Any, ...]:
    """The values for :data:`_UNCHANGED`: a record as it was read."""
    return (
        load.identity.key,
        load.name,
        load.state.value,
        load.changed_ms,
        load.expires_ms,
        load.file_count,
    )
