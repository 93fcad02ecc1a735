"""Clocks, work within a time limit, and the board: a file that shows which tables a process works on.

``icekeeper run`` maintains tables in a child process that it can kill.  The supervisor must know which table hung, also
when the child no longer responds.  So the child writes each table and its time limit to the board before it starts.
Other processes have no board, and write nothing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from threading import Lock, get_native_id
from typing import Any, Generic, TypeAlias, TypeVar

from icekeeper.errors import StorageError

HOUR_MS = 3_600_000
CLOCKS_DIFFER_MS = 15 * 60 * 1000
"""The clock of a committer and the clock of the store may differ by this much."""
TOLD_SKEW_MS = 60_000
"""Clocks that differ by more milliseconds than this are reported."""
# A Date header has whole seconds, as do times of some file systems, and a response takes a while to arrive.
_PRECISION_MS = 2_000

Clock: TypeAlias = Callable[[], int]
"""Returns epoch milliseconds."""


def system_clock() -> int:
    """Epoch milliseconds from the operating system."""
    return time.time_ns() // 1_000_000


def steady_s() -> float:
    """Seconds from an arbitrary start, unaffected by changes of the clock; on Linux, time asleep counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def iso_utc(epoch_ms: int) -> str:
    """A time for people, to the second: ``2026-01-31T12:00:00Z`` (ISO 8601)."""
    return datetime.fromtimestamp(epoch_ms // 1000, UTC).isoformat().replace("+00:00", "Z")


def ahead_ms(ours_ms: int, theirs_ms: int | None) -> int:
    """How many milliseconds our clock is ahead of another one (negative: behind it).

    0 if the other time is unknown, or the difference is at most two seconds, the precision of the measurement.
    """
    difference = 0 if theirs_ms is None else ours_ms - theirs_ms
    return difference if abs(difference) > _PRECISION_MS else 0


class ServerClock:
    """A server's time, from the ``Date`` header of its newest response, which has whole seconds (RFC 9110, 6.6.1).

    Never ahead of the server's own clock; behind it by up to a second and the time that a response takes.  Threads may
    share it.
    """

    def __init__(self) -> None:
        self._heard: tuple[int, float] | None = None

    def listen(self, client: Any) -> None:
        """Read the time from every response that a boto3 client receives, errors included."""
        client.meta.events.register("after-call", self._answered)

    def now_ms(self) -> int | None:
        """Epoch milliseconds; ``None`` until a response had a ``Date``."""
        if self._heard is None:
            return None
        said_ms, heard_s = self._heard
        return said_ms + int((steady_s() - heard_s) * 1000)

    def hear(self, date: str) -> None:
        """Read the time from a ``Date`` header; a malformed one is ignored."""
        try:
            said = parsedate_to_datetime(date)
        except ValueError:
            return
        # Without a zone it is GMT (RFC 9110), not this machine's local time.
        said = said if said.tzinfo is not None else said.replace(tzinfo=UTC)
        self._heard = int(said.timestamp() * 1000), steady_s()

    def _answered(self, http_response: Any, **_: Any) -> None:
        self.hear(str(http_response.headers.get("Date", "")))


@contextmanager
def stopwatch() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the milliseconds since the block was entered."""
    started_s = time.perf_counter()
    yield lambda: int((time.perf_counter() - started_s) * 1000)


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_daemon_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """Run work in the caller's context in a thread; the process can exit without waiting for it."""
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

    Python cannot end a thread that waits for a network or computes for hours.  On a timeout the thread continues, and
    its result is discarded; it delays neither its caller nor the end of the process.

    Raises:
        TimeoutError: the work has not ended within ``limit_s`` seconds.
    """
    given = in_daemon_thread(work, name)
    try:
        return given.result(limit_s)
    except TimeoutError:
        if given.done():  # an error of the work itself
            raise
        raise TimeoutError(f"it has not ended within {limit_s:g} s") from None


# No item is begun in the last tenth of the time, so that those in progress can finish; the rest hangs.
_BEGINNING_SHARE = 0.9
# Between two looks, threads that take less of a core's time wait for a store or a catalog; with more, for one another.
_LOOK_S, _WAITING_SHARE, _BUSY_SHARE = 0.05, 0.6, 0.9


@dataclass(frozen=True, slots=True)
class Reached(Generic[Item, Result]):
    """The items that were done in time, with their results."""

    done: list[tuple[Item, Result]]
    begun: int
    """How many items, from the first, were begun."""
    hung: list[Item]
    """The items that were begun but are not done, although at least a tenth of the time was left."""


def _shares(cpu_s: Callable[[], float]) -> Iterator[float]:
    """How much of a core's time was computed from one look to the next, after a first one that changes nothing."""
    computed_s, looked_s = cpu_s(), time.monotonic()
    yield _BUSY_SHARE
    while True:
        before_s, since_s = computed_s, looked_s
        computed_s, looked_s = cpu_s(), time.monotonic()
        yield (computed_s - before_s) / (looked_s - since_s)


def _threads_wanted(number: int, share: float, most: int) -> int:
    if share < _WAITING_SHARE:
        return min(number * 2, most)
    return max(1, number // 2) if share > _BUSY_SHARE else number


def within_budget(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    threads: int,
    budget_s: float,
    name: str,
    monotonic_s: Callable[[], float],
    cpu_s: Callable[[], float] = time.process_time,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Reached[Item, Result]:
    """The results of ``work`` that finished within ``budget_s`` seconds, in any order.

    Each thread enters ``around()`` once and processes its items within it.  At most ``threads`` items are in progress,
    which bounds the memory.  One thread begins.  Whenever the process, by ``cpu_s``, computes for less than 60 % of the
    time, the number is doubled; above 90 % it is halved, because threads that compute wait for one another.  An item
    that hangs stays in a daemon thread, which does not delay the end of the process.  An exception of ``work`` is
    raised.
    """
    started_s = monotonic_s()
    last_begin_s = started_s + _BEGINNING_SHARE * budget_s
    lock, results = Lock(), dict[int, Result]()
    begun, may_begin, is_over, wanted = 0, True, False, min(1, len(items))

    def next_number(thread: int) -> int | None:
        nonlocal begun, may_begin
        with lock:
            may_begin = not is_over and begun < len(items) and monotonic_s() < last_begin_s
            if thread >= wanted or not may_begin:
                return None
            begun += 1
            return begun - 1

    def works(thread: int) -> None:
        # Each thread takes its next item itself: a dispatching thread would wake up for every item.
        with around():
            while (number := next_number(thread)) is not None:
                result = work(items[number])
                with lock:
                    if not is_over:  # else the result is discarded
                        results[number] = result

    try:
        running: dict[int, Future[None]] = {}
        for share in _shares(cpu_s):
            wanted = _threads_wanted(wanted, share, min(threads, len(items)))
            for number in range(wanted if may_begin else 0):
                if number not in running or running[number].done():
                    running[number] = in_daemon_thread(partial(works, number), f"{name}_{number}")
            left_s = started_s + budget_s - monotonic_s()
            ended, rest = wait(running.values(), max(0.0, min(left_s, _LOOK_S)), FIRST_EXCEPTION)
            if not rest or left_s <= _LOOK_S or any(one.exception() for one in ended):
                break
    finally:
        with lock:
            is_over = True
    for one in ended:
        one.result()
    done = [(items[number], result) for number, result in results.items()]
    return Reached(done, begun, [items[number] for number in range(begun) if number not in results])


_SLOT_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class AtWork:
    """A table that a process works on."""

    work: str
    """A :class:`icekeeper.state.claims.CutWork`."""
    catalog: str
    warehouse: str
    table: str
    limit_s: float
    why: str
    """The message if the table is cut off; it names the setting with the limit."""
    begun_s: float
    """By the monotonic clock, which all processes of a machine share."""
    thread: int
    """The system's id of the thread that works on it."""

    def is_late(self, now_s: float) -> bool:
        """Whether the work has taken longer than its limit."""
        return now_s > self.begun_s + self.limit_s


class Board:
    """The file of one process: slot 0 has the time of its last beat, each other slot a table; threads may share it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR)
        self._lock = Lock()
        self._free: list[int] = []
        self._slots = 1

    def beat(self) -> None:
        """Record that this process still runs Python code."""
        self._write(0, json.dumps(time.monotonic()).encode())

    def enter(self, one: AtWork) -> int:
        """Add a table, and return its slot; raises StorageError if the entry does not fit."""
        text = json.dumps(asdict(one)).encode()
        if len(text) > _SLOT_BYTES:
            raise StorageError(f"the name of a table of catalog {one.catalog} has {len(one.table)} characters")
        with self._lock:
            slot = self._free.pop() if self._free else self._slots
            self._slots = max(self._slots, slot + 1)
        self._write(slot, text)
        return slot

    def leave(self, slot: int) -> None:
        """Remove a table when its work has ended."""
        self._write(slot, b"")
        with self._lock:
            self._free.append(slot)

    def _write(self, slot: int, text: bytes) -> None:
        os.pwrite(self._file, text.ljust(_SLOT_BYTES), slot * _SLOT_BYTES)


_boards: list[Board] = []


def show_on(board: Board) -> None:
    """From now on, this process records its tables on ``board``."""
    _boards[:] = [board]


@contextmanager
def at_work(work: str, entry: tuple[str, str, str], *, limit_s: float, why: str) -> Iterator[None]:
    """While the block runs, show on the board that this process works on a table for at most ``limit_s`` seconds.

    ``entry`` is (catalog, warehouse, table).

    Raises:
        StorageError: the entry is too long for the board.
    """
    if not _boards:
        yield
        return
    (board,) = _boards
    slot = board.enter(AtWork(work, *entry, limit_s, why, time.monotonic(), get_native_id()))
    try:
        yield
    finally:
        board.leave(slot)


def read_board(path: Path) -> tuple[float | None, tuple[AtWork, ...]]:
    """The time of the last beat (``None``: there was none), and the tables; skips a slot that is being written."""
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
