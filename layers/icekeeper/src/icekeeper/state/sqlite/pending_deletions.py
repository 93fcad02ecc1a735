"""Unfinished deletions in the SQLite state file; the paths of a list lie in rows of a thousand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.file import THIS_COPY, SqliteFile, copy_columns

__all__ = ["SqlitePendingDeletions"]

_PATHS_PER_ROW = 1000
_THIS_LIST = f"{THIS_COPY} AND name = ?"


class SqlitePendingDeletions:
    """A :class:`icekeeper.state.pending_deletions.PendingDeletionStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        key, pending = (identity.key, identity.place, name), iter(paths)
        with self._file.transaction() as connection:
            connection.execute(f"DELETE FROM pending_deletions WHERE {_THIS_LIST}", (*copy_columns(identity), name))
            part = 0
            while some := list(islice(pending, _PATHS_PER_ROW)):
                row = (*key, part, json.dumps(some))
                connection.execute("INSERT INTO pending_deletions VALUES (?, ?, ?, ?, ?)", row)
                part += 1

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        rows = self._file.read(
            f"SELECT DISTINCT name FROM pending_deletions WHERE {THIS_COPY} ORDER BY name", *copy_columns(identity)
        )
        return tuple(name for (name,) in rows)

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        part = -1
        while True:
            with self._file.reading() as read:
                rows = read(
                    f"SELECT part, paths FROM pending_deletions WHERE {_THIS_LIST} AND part > ? ORDER BY part LIMIT 1",
                    *copy_columns(identity),
                    name,
                    part,
                )
                found = [(part, json.loads(paths)) for part, paths in rows]
            if not found:
                return
            ((part, some),) = found
            yield some

    def forget(self, identity: TableIdentity, name: str) -> None:
        self._file.write(f"DELETE FROM pending_deletions WHERE {_THIS_LIST}", *copy_columns(identity), name)
