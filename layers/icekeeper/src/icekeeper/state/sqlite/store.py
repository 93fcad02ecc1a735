"""The state store of one machine: items in a SQLite file that all processes of a user share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from icekeeper.errors import StorageError
from icekeeper.state.items import Decision, FoundItem, Item, understood
from icekeeper.state.sqlite.file import SqliteFile
from icekeeper.state.store import StateStore

# Bytes of attributes and paths that a query reads at a time; other processes can write in between.
_PAGE = 4_000_000
# Keys per query: below SQLITE_MAX_VARIABLE_NUMBER of every SQLite (999 before 3.32).
_QUESTION = 900
# What is stored in columns of its own.
_COLUMNS = frozenset({"pk", "sk", "paths"})
_FOUND = "SELECT pk, sk, attributes, paths, length(attributes) + ifnull(length(paths), 0) FROM items WHERE"
_PUT = "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM items WHERE pk = ? AND sk = ?"


class SqliteStateStore(StateStore):
    """A :class:`.StateStore` in one file, which the first call creates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(SqliteTable(SqliteFile(path)))


class SqliteTable:
    """An :class:`.ItemTable`, which documents the methods, in a file; an item's attributes are JSON."""

    at_once = 10_000
    is_local = True

    def __init__(self, file: SqliteFile) -> None:
        self.file = file
        self.kept_open = file.kept_open
        self.require_writable = file.require_writable

    def get(self, pk: str, sk: str) -> Item | None:
        return next(self._found("pk = ? AND sk = ?", pk, sk), None)

    def get_all(self, pk: str, sks: Iterable[str]) -> Iterator[Item]:
        rest = iter(sks)
        while some := list(islice(rest, _QUESTION)):
            yield from self._found(f"pk = ? AND sk IN ({', '.join('?' * len(some))})", pk, *some)

    def query(
        self,
        pk: str,
        prefix: str = "",
        *,
        attributes: tuple[str, ...] = (),  # all are read
        passed_over: Callable[[StorageError], None] | None = None,
    ) -> Iterator[Item]:
        condition, start = "pk = ? AND sk >= ? ORDER BY sk", prefix
        while True:
            rows, is_all = self._page(condition, pk, start, prefix)
            for row in rows:
                try:
                    item = self._item(row)
                except StorageError as error:
                    if passed_over is None:
                        raise
                    passed_over(error)
                else:
                    yield item
            if is_all:
                return
            condition, start = "pk = ? AND sk > ? ORDER BY sk", rows[-1][1]

    def newest(self, pk: str, limit: int) -> Iterator[Item]:
        return self._found("pk = ? AND finished_ms IS NOT NULL ORDER BY finished_ms DESC LIMIT ?", pk, limit)

    def put(self, item: Item) -> None:
        self.put_all([item])

    def put_all(self, items: Iterable[Item]) -> None:
        with self.file.transaction() as connection:
            connection.executemany(_PUT, map(_row, items))

    def add(self, pk: str, sk: str, more: Mapping[str, int | frozenset[str]], *, keep_ms: int) -> None:
        def added(found: Item | None) -> Item:
            known = found or {}
            with understood(known):
                sums = {
                    name: known.get(name, 0) + one if isinstance(one, int) else one.union(known.get(name, ()))
                    for name, one in more.items()
                }
            return {**known, **sums}

        self.change(pk, sk, added)

    def delete(self, pk: str, sk: str) -> None:
        self.file.write(_DELETE, pk, sk)

    def delete_all(self, pk: str, sks: Iterable[str]) -> None:
        with self.file.transaction() as connection:
            connection.executemany(_DELETE, ((pk, sk) for sk in sks))

    def clear(self, pk: str) -> None:
        self.file.write("DELETE FROM items WHERE pk = ?", pk)

    def change(self, pk: str, sk: str, decide: Decision) -> bool:
        with self.file.transaction():
            wanted = decide(self.get(pk, sk))
            if wanted:
                self.put({**wanted, "pk": pk, "sk": sk})
            elif wanted is not None:
                self.delete(pk, sk)
        return wanted is not None

    def set_if(
        self, pk: str, sk: str, values: Item, *, equal: Item, outside: Mapping[str, tuple[int, int]]
    ) -> Item | None:
        with self.file.transaction():
            found = self.get(pk, sk)
            if (
                found is not None
                and all(found[name] == value for name, value in equal.items())
                and not any(least <= found[name] <= most for name, (least, most) in outside.items())
            ):
                found |= values
                self.put(found)
            return found

    @contextmanager
    def together(self, *, to_read: bool = False) -> Iterator[None]:
        with self.file.transaction(to_read=to_read):
            yield

    def expires_s(self, keep_ms: int, *, at_least_ms: int = 0) -> None:
        return None

    def to_table_clock(self, now_ms: int) -> int:
        return now_ms

    def _found(self, condition: str, *values: Any) -> Iterator[Item]:
        with self.file.connection() as connection:
            rows = connection.execute(f"{_FOUND} {condition}", values).fetchall()
        return map(self._item, rows)

    def _page(self, condition: str, pk: str, start: str, prefix: str) -> tuple[list[tuple[Any, ...]], bool]:
        """Rows of a query, and whether there are no more."""
        found, size = [], 0
        with self.file.connection() as connection:
            for row in connection.execute(f"{_FOUND} {condition}", (pk, start)):
                if not (isinstance(row[1], str) and row[1].startswith(prefix)):
                    break
                found.append(row)
                size += row[4]
                if size > _PAGE:
                    return found, False
        return found, True

    def _item(self, row: tuple[Any, ...]) -> Item:
        pk, sk, attributes, paths, _ = row
        store, key = f"the state file {self.file.path}", {"pk": pk, "sk": sk}
        with understood(FoundItem(store, key)):
            item = {**from_json(attributes), **key}
        return FoundItem(store, item if paths is None else {**item, "paths": paths})


def _row(item: Item) -> tuple[Any, ...]:
    attributes = {name: value for name, value in item.items() if value is not None and name not in _COLUMNS}
    # Sets become lists.  A lone surrogate, of which there is no UTF-8, raises a ValueError.
    return item["pk"], item["sk"], to_json(attributes).decode(), item.get("paths"), item.get("finished_ms")
