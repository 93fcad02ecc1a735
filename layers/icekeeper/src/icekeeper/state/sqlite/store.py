"""The state store of one machine: items in a SQLite file that all processes of a user share, and how it is opened.

Each call opens a connection, so threads share nothing and a fork inherits nothing.  That costs a quarter of a
millisecond, and as much again after a write, because the last connection to close removes the write-ahead log.  A pass
makes dozens of calls, so it keeps one connection for its thread (:meth:`SqliteFile.kept_open`).
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from icekeeper.errors import StorageError
from icekeeper.state.items import Decision, FoundItem, Item, decoded_items, understood
from icekeeper.state.store import StateStore

SCHEMA_VERSION = 18
"""The ``user_version`` of a state file; a file with any other is refused."""
_STATEMENTS = (
    """CREATE TABLE items (pk TEXT NOT NULL, sk TEXT NOT NULL, attributes TEXT NOT NULL, paths BLOB,
    finished_ms INTEGER, PRIMARY KEY (pk, sk)) WITHOUT ROWID""",
    "CREATE INDEX items_newest ON items (pk, finished_ms) WHERE finished_ms IS NOT NULL",
)
BUSY_TIMEOUT_S = 30.0
# In SQLite's errors about bytes that are not text and about damaged pages.
_SIGNS_OF_DAMAGE = ("Could not decode", "malformed")
_AFTER_DAMAGE = (
    "put a copy of it in its place, or name another file with ICEKEEPER_STATE, where pins and staged loads must be "
    "created again before anything is deleted"
)
_ELSEWHERE = "or name another file with ICEKEEPER_STATE"
# What to do, by the text of SQLite's error.
_ADVICE = {
    "disk is full": f"; free space there, {_ELSEWHERE}",
    "disk I/O error": f"; if its disk is full, free space there, {_ELSEWHERE}",
    "not a database": f"; it belongs to another program, or is damaged: {_AFTER_DAMAGE}",
    "is locked": "; another program holds it: end that program, or try again later",
    "readonly": f"; let this user write the file and its folder, {_ELSEWHERE}",
    "unable to open": f"; let this user read and write the file and its folder, {_ELSEWHERE}",
}


@dataclass(slots=True)
class _Kept:
    """The connection of one thread inside :meth:`SqliteFile.kept_open`."""

    process: int
    """A forked child must open its own (https://www.sqlite.org/howtocorrupt.html, section 2.6)."""
    connection: sqlite3.Connection | None = None
    file: tuple[int, int] | None = None
    """Device and inode of the opened file, which may have been replaced since."""
    is_in_use: bool = False

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


class SqliteFile:
    """A state file, which the first call creates; every method raises StorageError when it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._of_thread = threading.local()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Inside the block, all calls of this thread use one connection; blocks may be nested."""
        if self._kept() is not None:
            yield
            return
        kept = self._of_thread.kept = _Kept(os.getpid())
        try:
            yield
        finally:
            self._of_thread.kept = None
            if kept.process == os.getpid():
                kept.close()

    def _kept(self) -> _Kept | None:
        kept: _Kept | None = getattr(self._of_thread, "kept", None)
        return kept if kept is not None and kept.process == os.getpid() else None

    def _damaged(self, error: Exception) -> StorageError:
        return StorageError(f"the state file {self.path} is damaged ({error}); {_AFTER_DAMAGE}")

    def write(self, statement: str, *values: Any) -> None:
        with self.connection() as connection:
            connection.execute(statement, values)

    @contextmanager
    def transaction(self, *, to_read: bool = False) -> Iterator[sqlite3.Connection]:
        """Inside the block, all calls of this thread are one transaction, which is rolled back if the block raises.

        ``to_read``: nothing is written, so others may write meanwhile.
        """
        if (joined := self._joined()) is not None:
            yield joined
            return
        with self.connection() as connection:
            connection.execute("BEGIN" if to_read else "BEGIN IMMEDIATE")
            self._of_thread.joined = os.getpid(), connection
            try:
                yield connection  # an error closes the connection, which rolls back
            finally:
                self._of_thread.joined = None
            connection.execute("COMMIT")

    def _joined(self) -> sqlite3.Connection | None:
        """The connection of this thread's transaction."""
        process, connection = getattr(self._of_thread, "joined", None) or (0, None)
        return connection if process == os.getpid() else None

    def require_writable(self) -> None:
        with self.connection() as connection:
            connection.execute("BEGIN IMMEDIATE")  # takes the write lock, which fails for a read-only file
            connection.execute("ROLLBACK")

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        kept = self._kept()
        joined = self._joined()
        try:
            if joined is not None:
                yield joined
            elif kept is None or kept.is_in_use:  # a call inside a call gets its own connection
                with closing(self._open()) as connection:
                    self._prepare(connection)
                    yield connection
            else:
                with self._using(kept) as connection:
                    yield connection
        except (sqlite3.Error, OSError, ValueError) as error:
            if any(sign in str(error) for sign in _SIGNS_OF_DAMAGE):
                raise self._damaged(error) from error
            raise StorageError(f"the state file {self.path} cannot be used: {error}{self._advice(error)}") from error

    def _advice(self, error: Exception) -> str:
        """What to do about an error, as the end of its sentence; may be empty."""
        if self.path.is_dir():
            return "; it is a folder, so name a file in it with ICEKEEPER_STATE"
        return next((advice for sign, advice in _ADVICE.items() if sign in str(error)), "")

    @contextmanager
    def _using(self, kept: _Kept) -> Iterator[sqlite3.Connection]:
        """The kept connection, opened if necessary; any error closes it, which rolls back."""
        kept.is_in_use = True
        try:
            if kept.connection is not None and kept.file != self._identity():
                kept.close()
            if kept.connection is None:
                kept.connection = self._open()
                self._prepare(kept.connection)
                kept.file = self._identity()
            else:
                self._prepare(kept.connection)
            yield kept.connection
        except BaseException:
            kept.close()
            raise
        finally:
            kept.is_in_use = False

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _open(self) -> sqlite3.Connection:
        # 0700 and 0600: other users must not see the names of tables and files (rule: state-is-private).  SQLite
        # gives its other files the same mode.
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(OSError):  # the file exists, or SQLite reports what is wrong
            # O_EXCL: closing an existing file would drop all locks of this process on it.
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        # Autocommit: each statement is a transaction, unless a transaction was begun.
        return sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = _schema_version(connection)
        if version == 0:
            version = self._create(connection)
        if version != SCHEMA_VERSION:
            raise StorageError(
                f"the state file {self.path} has schema version {version}, and this Icekeeper reads only "
                f"{SCHEMA_VERSION}; use the Icekeeper that wrote it, or name another file with ICEKEEPER_STATE, where "
                "pins and staged loads must be created again before anything is deleted"
            )

    def _create(self, connection: sqlite3.Connection) -> int:
        """Create the tables of an empty file, and return the file's version."""
        connection.execute("BEGIN IMMEDIATE")
        # Read again under the lock: another process may have created the tables.
        version = _schema_version(connection)
        if version == 0:
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise StorageError(f"the file {self.path} is a database of another application, not a state file")
            for statement in (*_STATEMENTS, f"PRAGMA user_version = {SCHEMA_VERSION}"):
                connection.execute(statement)
        connection.execute("COMMIT")
        if version == 0:
            _use_write_ahead_log(connection)
        return version or SCHEMA_VERSION


def _schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    # Changing the journal mode needs exclusive access and, unlike a transaction, does not wait for it.  The mode is
    # stored in the file; if it cannot be set, the rollback journal is as safe, but less concurrent.
    for _ in range(100):
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
            return
        time.sleep(0.01)


# Bytes of attributes and paths that a query reads at a time; other processes can write in between.
_PAGE = 4_000_000
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

    is_local = True

    def __init__(self, file: SqliteFile) -> None:
        self.file = file
        self.kept_open = file.kept_open
        self.require_writable = file.require_writable

    def get(self, pk: str, sk: str) -> Item | None:
        return next(self._found("pk = ? AND sk = ?", pk, sk), None)

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
            yield from decoded_items(rows, self._item, passed_over)
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

    def add(self, pk: str, sk: str, more: Mapping[str, int], *, keep_ms: int) -> None:
        def added(found: Item | None) -> Item:
            known = found or {}
            with understood(known):
                sums = {name: known.get(name, 0) + added for name, added in more.items()}
            return {**known, **sums}

        self.change(pk, sk, added)

    def delete(self, pk: str, sk: str) -> None:
        self.file.write(_DELETE, pk, sk)

    def delete_all(self, pk: str, sks: Iterable[str]) -> None:
        with self.file.transaction() as connection:
            connection.executemany(_DELETE, ((pk, sk) for sk in sks))

    def clear(self, pk: str) -> None:
        self.file.write("DELETE FROM items WHERE pk = ?", pk)

    def change(self, pk: str, sk: str, decide: Decision, *, is_likely_new: bool = False) -> bool:
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
    # Sets become lists.  A lone surrogate, which UTF-8 cannot encode, raises a ValueError.
    return item["pk"], item["sk"], to_json(attributes).decode(), item.get("paths"), item.get("finished_ms")
