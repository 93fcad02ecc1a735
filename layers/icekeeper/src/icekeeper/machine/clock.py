"""Clocks, work within a time limit, and a file that shows what this process works on, and until when."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Lock, get_native_id
from typing import Any, TypeAlias, TypeVar

from icekeeper.errors import StorageError

# What this process is at, in a file that another one reads: which tables, and by when each must have ended.
#
# ``icekeeper run`` maintains tables in a process that can be killed.  Whoever kills it must know which table was to
# blame, also where that process does not answer any more, so it says so before it begins with one.  Without a board, as
# in every other process, nothing is written.

_SLOT_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """One table that a process is at."""

    work: str
    """A :class:`icekeeper.state.claims.CutWork`."""
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


# Clocks: the system's, one that tests can set in its place, and the time that a server tells.

HOUR_MS = 3_600_000
TOLD_SKEW_MS = 60_000
"""Clocks that differ by more milliseconds than this are reported."""
# A Date header has whole seconds, as have times of some file systems; and an answer takes a while to arrive.
_PRECISION_MS = 2_000

Clock: TypeAlias = Callable[[], int]
"""Returns epoch milliseconds."""


def system_clock() -> int:
    """Epoch milliseconds from the operating system."""
    return time.time_ns() // 1_000_000


def steady_s() -> float:
    """Seconds from an arbitrary start, which setting the clock does not change.

    On Linux they include the time that the machine was asleep.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def iso_utc(epoch_ms: int) -> str:
    """A moment for people, to the second: ``2026-01-31T12:00:00Z`` (ISO 8601)."""
    return datetime.fromtimestamp(epoch_ms // 1000, UTC).isoformat().replace("+00:00", "Z")


def ahead_ms(ours_ms: int, theirs_ms: int | None) -> int:
    """How many milliseconds our clock is ahead of another one (negative: behind it).

    0 where the other time is not known, or the difference is within the two seconds that measuring is exact to.
    """
    difference = 0 if theirs_ms is None else ours_ms - theirs_ms
    return difference if abs(difference) > _PRECISION_MS else 0


class ServerClock:
    """A server's time, by the ``Date`` header of its newest answer, which is exact to the second (RFC 9110, 6.6.1).

    Never ahead of the server's own clock; behind it by a second and the time an answer takes.  Threads may share it.
    """

    def __init__(self) -> None:
        self._heard: tuple[int, float] | None = None

    def listen(self, client: Any) -> None:
        """Take the time from every answer that a boto3 client gets, errors included."""
        client.meta.events.register("after-call", self._answered)

    def now_ms(self) -> int | None:
        """Epoch milliseconds; ``None`` while no answer has told the time."""
        if self._heard is None:
            return None
        said_ms, heard_s = self._heard
        return said_ms + int((steady_s() - heard_s) * 1000)

    def hear(self, date: str) -> None:
        """Take the time from the text of a ``Date`` header; a malformed one is ignored."""
        try:
            said = parsedate_to_datetime(date)
        except ValueError:
            return
        # Without a zone it is GMT, as the RFC wants it, and not this machine's time.
        said = said if said.tzinfo is not None else said.replace(tzinfo=UTC)
        self._heard = int(said.timestamp() * 1000), steady_s()

    def _answered(self, http_response: Any, **_: Any) -> None:
        self.hear(str(http_response.headers.get("Date", "")))


@contextmanager
def stopwatch() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the whole milliseconds since entering."""
    started_s = time.perf_counter()
    yield lambda: int((time.perf_counter() - started_s) * 1000)


# Work that may take so long and no longer: in a thread that is left to itself where it takes longer.
#
# Nothing in Python ends a thread that waits for a network, or that counts to ten trillion.  One that is left to itself
# holds up neither its caller nor the end of the process; its result is discarded.

Result = TypeVar("Result")


def in_daemon_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """What the work will give, which runs in the caller's context; the process ends without waiting for it."""
    given: Future[Result] = Future()
    context = copy_context()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:
            given.set_exception(error)
        else:
            given.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return given


def in_limited_time(work: Callable[[], Result], limit_s: float, name: str) -> Result:
    """The result of the work, or what it raises.

    Raises:
        TimeoutError: it has not ended within ``limit_s`` seconds, and is left to itself.
    """
    given = in_daemon_thread(work, name)
    try:
        return given.result(limit_s)
    except TimeoutError:
        if given.done():  # an error of the work itself
            raise
        raise TimeoutError(f"it has not ended within {limit_s:g} s") from None
