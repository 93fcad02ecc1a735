"""What this process is at, in a file that another one reads: which tables, and by when each must have ended.

``icekeeper run`` maintains tables in a process that can be killed.  Whoever kills it must know which table was to
blame, also where that process does not answer any more, so it says so before it begins with one.  Without a board, as
in every other process, nothing is written.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock, get_native_id

from icekeeper.errors import StorageError

__all__ = ["AtWork", "Board", "at_work", "read_board", "show_on"]

_SLOT_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """One table that a process is at."""

    work: str
    """A :class:`icekeeper.state.cut_offs.CutWork`."""
    catalog: str
    warehouse: str
    table: str
    limit_s: float
    why: str
    """What people are told of a table that is cut off; it names the setting."""
    begun_s: float
    """By the monotonic clock, which all processes of a machine share."""
    thread: int
    """The number by which the system knows the thread that began it."""

    def is_late(self, now_s: float) -> bool:
        """Whether it has taken longer than it may."""
        return now_s > self.begun_s + self.limit_s


class Board:
    """The file; threads of one process may share it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR)
        self._lock = Lock()
        self._free: list[int] = []
        self._slots = 1

    def beat(self) -> None:
        """Show that this process still runs Python."""
        self._write(0, json.dumps(time.monotonic()).encode())

    def enter(self, one: AtWork) -> int:
        """Show a table, and return the slot where it stands.

        Raises:
            StorageError: its name is so long that it does not fit.
        """
        text = json.dumps(asdict(one)).encode()
        if len(text) > _SLOT_BYTES:
            raise StorageError(f"the name of a table of catalog {one.catalog} has {len(one.table)} characters")
        with self._lock:
            slot = self._free.pop() if self._free else self._slots
            self._slots = max(self._slots, slot + 1)
        self._write(slot, text)
        return slot

    def leave(self, slot: int) -> None:
        """Remove a table: the work has ended."""
        self._write(slot, b"")
        with self._lock:
            self._free.append(slot)

    def _write(self, slot: int, text: bytes) -> None:
        os.pwrite(self._file, text.ljust(_SLOT_BYTES), slot * _SLOT_BYTES)


_boards: list[Board] = []


def show_on(board: Board) -> None:
    """Have this process say on a board what it is at."""
    _boards[:] = [board]


@contextmanager
def at_work(work: str, entry: tuple[str, str, str], *, limit_s: float, why: str) -> Iterator[None]:
    """Say, while the block runs, that this process is at the table of an entry, for at most ``limit_s`` seconds.

    Raises:
        StorageError: the table's name is too long to be told.
    """
    if not _boards:
        yield
        return
    (board,) = _boards
    catalog, warehouse, table = entry
    slot = board.enter(
        AtWork(
            work=work,
            catalog=catalog,
            warehouse=warehouse,
            table=table,
            limit_s=limit_s,
            why=why,
            begun_s=time.monotonic(),
            thread=get_native_id(),
        )
    )
    try:
        yield
    finally:
        board.leave(slot)


def read_board(path: Path) -> tuple[float | None, tuple[AtWork, ...]]:
    """When the process last showed that it runs Python, ``None`` if never; and the tables that it is at.

    A slot that is being written just now is left out.
    """
    content = path.read_bytes()
    texts = [content[at : at + _SLOT_BYTES].strip(b" \0") for at in range(0, len(content), _SLOT_BYTES)]
    beat: float | None = None
    found = []
    for number, text in enumerate(texts):
        try:
            document = json.loads(text) if text else None
        except ValueError:
            continue
        if number == 0:
            beat = document
        elif document is not None:
            found.append(AtWork(**document))
    return beat, tuple(found)
