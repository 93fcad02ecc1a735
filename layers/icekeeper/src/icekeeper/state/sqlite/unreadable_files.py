"""Files that a pass could not read, in the SQLite state file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.file import THIS_COPY, Read, SqliteFile, copy_columns
from icekeeper.state.store import UnreadableFile

__all__ = ["SqliteUnreadableFiles", "read_unreadable_files"]


class SqliteUnreadableFiles:
    """A :class:`icekeeper.state.store.UnreadableFileStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def record(self, identity: TableIdentity, files: Iterable[UnreadableFile]) -> None:
        rows = ((identity.key, identity.place, one.path, one.why, one.schema_digest, one.tried_ms) for one in files)
        self._file.write_all("INSERT OR REPLACE INTO unreadable_files VALUES (?, ?, ?, ?, ?, ?)", rows)

    def of_table(self, identity: TableIdentity) -> Mapping[str, UnreadableFile]:
        return read_unreadable_files(self._file.read, identity)

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        columns = copy_columns(identity)
        self._file.write_all(
            f"DELETE FROM unreadable_files WHERE {THIS_COPY} AND path = ?", ((*columns, path) for path in paths)
        )


def read_unreadable_files(read: Read, identity: TableIdentity) -> dict[str, UnreadableFile]:
    """The files of one copy of a table, by path."""
    rows = read(
        f"SELECT path, why, schema_digest, tried_ms FROM unreadable_files WHERE {THIS_COPY} ORDER BY path",
        *copy_columns(identity),
    )
    return {
        path: UnreadableFile(path=path, why=why, schema_digest=schema_digest, tried_ms=tried_ms)
        for path, why, schema_digest, tried_ms in rows
    }
