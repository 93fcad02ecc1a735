"""Threads that record something at once share a commit, and each still learns what became of its own change."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

import pytest

from icekeeper.errors import StorageError
from icekeeper.state.sqlite.file import SqliteFile
from icekeeper.state.sqlite.group_commit import GroupCommit, _Change

INSERT = "INSERT INTO seen VALUES (?)"


class Slow:
    """A database whose first commit lasts until ``go`` is set; counts the commits."""

    def __init__(self, path: Path) -> None:
        self.path, self.begun, self.go, self.commits = path, Event(), Event(), 0
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE seen (number INTEGER PRIMARY KEY)")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            self.commits += 1
            self.begun.set()
            assert self.go.wait(20)
            yield connection

    def rows(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [number for (number,) in connection.execute("SELECT number FROM seen ORDER BY number")]


def written_at_once(slow: Slow, numbers: list[object]) -> list[Future[int]]:
    """The first is under way while the others come."""
    group = GroupCommit(slow.connect)
    with ThreadPoolExecutor(len(numbers)) as pool:
        first = pool.submit(group.write, INSERT, numbers[0])
        assert slow.begun.wait(20)
        others = [pool.submit(group.write, INSERT, number) for number in numbers[1:]]
        while len(group._waiting) < len(others):
            Event().wait(0.001)
        assert not any(future.done() for future in (first, *others))
        slow.go.set()
    return [first, *others]


def test_what_came_during_a_commit_shares_the_next_one(tmp_path: Path) -> None:
    """(rule 150)"""
    slow = Slow(tmp_path / "a.db")
    done = written_at_once(slow, [*range(9)])
    assert [future.result() for future in done] == [1] * 9
    assert (slow.rows(), slow.commits) == ([*range(9)], 2)


def test_a_change_that_fails_takes_none_of_the_others_with_it(tmp_path: Path) -> None:
    """(rule 150)"""
    slow = Slow(tmp_path / "a.db")
    done = written_at_once(slow, [0, 1, 0, 2, object(), 3])
    failed = [type(future.exception()).__name__ if future.exception() else None for future in done]
    assert [name is None for name in failed] == [True, True, False, True, False, True]
    assert failed[2] == "IntegrityError"
    assert slow.rows() == [0, 1, 2, 3]


def test_an_interrupted_writer_leaves_nobody_in_the_belief_to_have_written(tmp_path: Path) -> None:
    """(rule 150)"""
    slow = Slow(tmp_path / "a.db")

    @contextmanager
    def interrupted() -> Iterator[sqlite3.Connection]:
        with slow.connect() as connection:
            yield connection
            if slow.commits > 1:
                raise KeyboardInterrupt

    slow.go.set()
    group = GroupCommit(interrupted)
    group.write(INSERT, 0)
    with pytest.raises(KeyboardInterrupt):
        group.write(INSERT, 1)

    changes = [_Change(INSERT, (2,)), _Change(INSERT, (3,))]
    with pytest.raises(KeyboardInterrupt):
        group._carry_out(changes)
    assert all(isinstance(change.error, StorageError) or change.rows for change in changes)


def test_a_child_that_was_forked_in_the_midst_of_a_commit_writes_too(tmp_path: Path) -> None:
    """Locks that another thread held at the fork are never given back in the child."""
    slow = Slow(tmp_path / "a.db")
    group = GroupCommit(slow.connect)
    group._turn.acquire()
    child = os.fork()
    if child == 0:
        slow.go.set()
        os._exit(0 if group.write(INSERT, 7) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert slow.rows() == [7]


def test_a_state_file_says_which_it_is_when_it_cannot_be_written(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "state.db")
    with pytest.raises(StorageError, match=r"state\.db cannot be used: no such table: nowhere"):
        file.write("INSERT INTO nowhere VALUES (1)")
