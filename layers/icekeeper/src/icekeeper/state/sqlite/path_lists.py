"""Lists of paths in the SQLite state file, in rows of a thousand: key, the number of the row, the paths as JSON."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from icekeeper.state.sqlite.file import SqliteFile

__all__ = ["read_paths", "write_paths"]

_PATHS_PER_ROW = 1000


def write_paths(
    connection: sqlite3.Connection, table: str, key: Sequence[str], paths: Iterable[str], first_part: int = 0
) -> int:
    """Write paths as rows of ``table`` from number ``first_part`` on; returns how many paths there were."""
    part, count, rest = first_part, 0, iter(paths)
    while some := list(islice(rest, _PATHS_PER_ROW)):
        row = (*key, part, json.dumps(some))
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        part, count = part + 1, count + len(some)
    return count


def read_paths(file: SqliteFile, table: str, condition: str, *values: Any) -> Iterator[Sequence[str]]:
    """The paths of the rows of ``table`` that fulfil the condition with these values, one row in memory at a time.

    Raises:
        StorageError: the file is damaged, or cannot be used.
    """
    part = -1
    while True:
        with file.reading() as read:
            rows = read(
                f"SELECT part, paths FROM {table} WHERE {condition} AND part > ? ORDER BY part LIMIT 1", *values, part
            )
            found = [(part, json.loads(paths)) for part, paths in rows]
        if not found:
            return
        ((part, some),) = found
        yield some
