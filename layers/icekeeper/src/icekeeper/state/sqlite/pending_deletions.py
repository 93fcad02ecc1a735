"""Unfinished deletions in the SQLite state file; the paths of a list lie in rows of a thousand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.file import THIS_COPY, SqliteFile, copy_columns
from icekeeper.state.sqlite.path_lists import read_paths, write_paths

__all__ = ["SqlitePendingDeletions"]

_THIS_LIST = f"{THIS_COPY} AND name = ?"


class SqlitePendingDeletions:
    """A :class:`icekeeper.state.store.PendingDeletionStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        with self._file.transaction() as connection:
            connection.execute(f"DELETE FROM pending_deletions WHERE {_THIS_LIST}", (*copy_columns(identity), name))
            write_paths(connection, "pending_deletions", (identity.key, identity.place, name), paths)

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        rows = self._file.read(
            f"SELECT DISTINCT name FROM pending_deletions WHERE {THIS_COPY} ORDER BY name", *copy_columns(identity)
        )
        return tuple(name for (name,) in rows)

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        return read_paths(self._file, "pending_deletions", _THIS_LIST, *copy_columns(identity), name)

    def forget(self, identity: TableIdentity, name: str) -> None:
        self._file.write(f"DELETE FROM pending_deletions WHERE {_THIS_LIST}", *copy_columns(identity), name)
