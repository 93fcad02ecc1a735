"""Single statements of several threads in one transaction, so that they wait for the disk once.

A commit waits until the disk has it, some milliseconds, and SQLite lets one through at a time; detection has sixteen
threads that all record what they saw.  A statement that comes while a commit is under way waits, and all that have come
meanwhile share the next one.  Each call still returns only when its own change is on disk (rule 150).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from icekeeper.errors import StorageError

__all__ = ["GroupCommit"]


@dataclass(slots=True, eq=False)
class _Change:
    """A statement; afterwards how many rows it changed, or why it failed."""

    statement: str
    values: tuple[Any, ...]
    rows: int | None = None
    error: Exception | None = None

    @property
    def is_answered(self) -> bool:
        return self.rows is not None or self.error is not None

    def run(self, connection: sqlite3.Connection) -> int:
        return connection.execute(self.statement, self.values).rowcount


class GroupCommit:
    """Carries changes out; safe to share between threads, and after a fork."""

    def __init__(self, connect: Callable[[], AbstractContextManager[sqlite3.Connection]]) -> None:
        """``connect`` opens a connection in autocommit mode."""
        self._connect = connect
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._process = os.getpid()
        self._turn, self._lock = Lock(), Lock()
        self._waiting: list[_Change] = []

    def write(self, statement: str, *values: Any) -> int:
        """Run a statement and wait until its change is on disk; the number of rows that it changed.

        Raises:
            StorageError: the change was not made, or it is not known whether it was.
        """
        if self._process != os.getpid():  # a fork has left the other threads behind, and whatever they held
            self._begin_anew()
        change = _Change(statement, values)
        with self._lock:
            self._waiting.append(change)
        with self._turn:
            if not change.is_answered:
                with self._lock:
                    taken, self._waiting = self._waiting, []
                self._carry_out(taken)
        if change.error is not None:
            raise change.error
        return change.rows or 0

    def _carry_out(self, changes: list[_Change]) -> None:
        try:
            # Where they fail together, each is tried and answered alone.
            if len(changes) > 1 and self._together(changes):
                return
            for change in changes:
                try:
                    with self._connect() as connection:
                        change.rows = change.run(connection)
                except Exception as error:
                    change.error = error
        finally:  # a person's interrupt of this thread must not leave others to believe that they have written
            for change in changes:
                if not change.is_answered:
                    change.error = StorageError("the state was not written: its writer was interrupted")

    def _together(self, changes: list[_Change]) -> bool:
        with suppress(Exception), self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            rows = [change.run(connection) for change in changes]
            connection.execute("COMMIT")
            for change, number in zip(changes, rows, strict=True):
                change.rows = number
            return True
        return False
