"""What a scan remembers of its tables, gathered and written many tables at a time (rule 154).

A write waits for the disk or for an answer, and one for each of ten thousand tables costs more than all that a scan
decides.  So this is for what a scan finds out again where it is lost, and for nothing that protects a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

__all__ = ["Gathered"]

Record = TypeVar("Record")

# Eight requests to DynamoDB, or a commit to SQLite that takes no longer than one of a single row.
_AT_ONCE = 200


class Gathered(Generic[Record]):
    """Records of several threads; those that no :meth:`write_rest` has followed are lost with the process."""

    def __init__(self, write: Callable[[Sequence[Record]], None]) -> None:
        """``write`` is called with some records at a time, by whoever adds the last of them."""
        self._write = write
        self._lock = Lock()
        self._waiting: list[Record] = []

    def add(self, record: Record) -> None:
        """Keep a record, and write those that have gathered if they are enough; raises what ``write`` raises."""
        with self._lock:
            self._waiting.append(record)
            is_enough = len(self._waiting) >= _AT_ONCE
        if is_enough:
            self.write_rest()

    def write_rest(self) -> None:
        """Write what has gathered; raises what ``write`` raises, and then these records are lost."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        if taken:
            self._write(taken)
