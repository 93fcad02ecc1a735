"""Clocks, and work within a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

HOUR_MS = 3_600_000
CLOCKS_DIFFER_MS = 15 * 60 * 1000
"""The clock of a committer and the clock of the store may differ by this much."""
LOGGED_SKEW_MS = 60_000
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
    """How many milliseconds our clock is ahead of another clock (negative: behind it).

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
        """Read the time from a ``Date`` header; a malformed header is ignored."""
        try:
            stated = parsedate_to_datetime(date)
        except ValueError:
            return
        # Without a zone it is GMT (RFC 9110), not this machine's local time.
        stated = stated if stated.tzinfo is not None else stated.replace(tzinfo=UTC)
        self._heard = int(stated.timestamp() * 1000), steady_s()

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
# Between two measurements, threads that use less of a core's time wait for a store or a catalog; threads that use more
# wait for one another.
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
    """The share of a core's time used between two measurements; the first value is neutral, so it changes nothing."""
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
            if not rest or left_s <= _LOOK_S or any(future.exception() for future in ended):
                break
    finally:
        with lock:
            is_over = True
    for future in ended:
        future.result()
    done = [(items[number], result) for number, result in results.items()]
    return Reached(done, begun, [items[number] for number in range(begun) if number not in results])
