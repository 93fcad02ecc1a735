"""The quarantine ledger in the SQLite state file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.file import THIS_COPY, SqliteFile, copy_columns
from icekeeper.state.store import Sighting

__all__ = ["SqliteQuarantine"]

# Rows per transaction: others may write in between.
_BATCH = 10_000
# Below SQLITE_MAX_VARIABLE_NUMBER of every SQLite (999 before 3.32).
_QUESTION = 900


class SqliteQuarantine:
    """See :class:`icekeeper.state.store.QuarantineLedger`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def see(self, identity: TableIdentity, run_id: str, paths: Iterable[str], *, now_ms: int) -> None:
        columns = copy_columns(identity)
        for batch in _batches(paths, _BATCH):
            with self._file.transaction() as connection:
                connection.executemany(
                    "INSERT INTO quarantine VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT (table_key, place, path) DO UPDATE "
                    "SET sightings = sightings + (run_id <> excluded.run_id), run_id = excluded.run_id",
                    ((*columns, path, now_ms, run_id) for path in batch),
                )

    def counts(self, identity: TableIdentity, run_id: str, paths: Iterable[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        with self._file.connection() as connection:
            for batch in _batches(paths, _QUESTION):
                marks = ", ".join("?" * len(batch))
                rows = connection.execute(
                    f"SELECT path, sightings - (run_id = ?) FROM quarantine WHERE {THIS_COPY} AND path IN ({marks})",
                    (run_id, *copy_columns(identity), *batch),
                )
                found.update(rows)
        return found

    def forget_unseen(self, identity: TableIdentity, run_id: str) -> None:
        self._file.write(f"DELETE FROM quarantine WHERE {THIS_COPY} AND run_id <> ?", *copy_columns(identity), run_id)

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        columns = copy_columns(identity)
        for batch in _batches(paths, _BATCH):
            with self._file.transaction() as connection:
                connection.executemany(
                    f"DELETE FROM quarantine WHERE {THIS_COPY} AND path = ?", ((*columns, path) for path in batch)
                )

    def sightings(self, identity: TableIdentity) -> Iterator[Sighting]:
        rows = self._file.read(
            f"SELECT path, sightings, first_seen_ms, run_id FROM quarantine WHERE {THIS_COPY} ORDER BY path",
            *copy_columns(identity),
        )
        return (Sighting(*row) for row in rows)


def _batches(paths: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(paths)
    while batch := list(islice(rest, size)):
        yield batch
