"""A state file that a pass keeps open means what one means that is opened for every call."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from icekeeper.errors import StorageError
from icekeeper.state.sqlite.file import SqliteFile

COUNT = "SELECT count(*) FROM clusterings"
ADD = "INSERT INTO clusterings VALUES (?, 'place', 'recipe', 1)"


@pytest.fixture
def file(tmp_path: Path) -> SqliteFile:
    file = SqliteFile(tmp_path / "state.db")
    file.require_writable()
    return file


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Every connection that is opened."""
    paths: list[str] = []
    connect = sqlite3.connect

    def watched(path: Path, **options: object) -> sqlite3.Connection:
        paths.append(str(path))
        return connect(path, **options)  # type: ignore[call-overload,no-any-return]  # as the caller has it

    with mock.patch.object(sqlite3, "connect", watched):
        yield paths


def count(file: SqliteFile) -> int:
    return int(file.read(COUNT)[0][0])


def add_and_raise(file: SqliteFile, error: type[BaseException]) -> None:
    with file.transaction() as connection:
        connection.execute(ADD, ("lost",))
        raise error


def test_calls_of_a_block_share_a_connection_which_ends_with_it(file: SqliteFile, opened: list[str]) -> None:
    with file.kept_open():
        file.write(ADD, "a")
        with file.kept_open():
            assert count(file) == 1
        with file.transaction() as connection:
            connection.execute(ADD, ("b",))
        assert len(opened) == 1
    assert list(file.path.parent.iterdir()) == [file.path]  # the last one to close removes the write-ahead log
    assert count(file) == 2
    assert len(opened) == 2


def test_what_others_write_meanwhile_is_seen_and_nobody_is_kept_waiting(file: SqliteFile) -> None:
    with file.kept_open(), closing(sqlite3.connect(file.path, timeout=0)) as other:
        assert count(file) == 0
        with other:
            other.execute(ADD, ("theirs",))
        assert count(file) == 1
        file.write(ADD, "ours")
        assert other.execute(COUNT).fetchone() == (2,)


def test_a_transaction_that_fails_is_rolled_back_and_the_next_call_works(file: SqliteFile) -> None:
    with file.kept_open():
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises((StorageError, KeyboardInterrupt)):
                add_and_raise(file, error)
        assert count(file) == 0
        file.write(ADD, "kept")
    assert count(file) == 1


def test_a_call_within_a_call_sees_what_others_see(file: SqliteFile) -> None:
    with file.kept_open(), file.transaction() as connection:
        connection.execute(ADD, ("a",))
        assert count(file) == 0


def test_other_threads_and_forked_processes_open_their_own(file: SqliteFile, opened: list[str]) -> None:
    with file.kept_open():
        file.write(ADD, "a")
        thread = threading.Thread(target=count, args=(file,))
        thread.start()
        thread.join()
        assert len(opened) == 2
        with mock.patch.object(os, "getpid", return_value=os.getpid() + 1):
            assert count(file) == 1
        assert len(opened) == 3
        assert count(file) == 1
        assert len(opened) == 3


def test_a_file_in_the_place_of_the_old_one_is_used_from_then_on(file: SqliteFile, tmp_path: Path) -> None:
    """A lease that the new file does not know must not look held."""
    with file.kept_open():
        file.write(ADD, "a")
        file.path.rename(tmp_path / "away.db")
        assert count(file) == 0
        file.write(ADD, "b")
        file.write(ADD, "c")
    assert count(file) == 2


def test_a_newer_version_that_upgrades_the_file_meanwhile_is_noticed(file: SqliteFile) -> None:
    with file.kept_open():
        assert count(file) == 0
        with closing(sqlite3.connect(file.path)) as other:
            other.execute("PRAGMA user_version = 99")
        with pytest.raises(StorageError, match="has schema version 99"):
            count(file)
