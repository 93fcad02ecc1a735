"""Works on many items in several threads within a time budget, and reports which were begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from icekeeper.machine.clock import in_daemon_thread

__all__ = ["Reached", "within_budget"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Nothing is begun in the last tenth, so that what was begun can finish; what then is not done hangs.
_BEGINNING_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Reached(Generic[Item, Result]):
    """Items and results that were done in time; the first ``begun`` items, in their order, were begun."""

    done: list[tuple[Item, Result]]
    begun: int
    hung: list[Item]
    """Those that were begun with a tenth of the time left at least, and are not done."""


def within_budget(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    threads: int,
    budget_s: float,
    monotonic_s: Callable[[], float],
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Reached[Item, Result]:
    """Results of what finished within ``budget_s`` seconds, in any order.

    Each thread enters ``around()`` once, and takes its items within it.  Never more than ``threads`` items are in the
    works, so that what they hold in memory is bounded.  An item that hangs is left to itself, in a thread that does not
    hold up the end of the process.  What ``work`` raises is raised.
    """
    started_s = monotonic_s()
    desk: _Desk[Item, Result] = _Desk(items, monotonic_s, started_s + _BEGINNING_SHARE * budget_s)

    def works() -> None:
        # Each thread takes its next item itself: one that hands items out would wake up for every one of them.
        with around():
            while (number := desk.next_number()) is not None:
                desk.put(number, work(items[number]))

    try:
        running = [in_daemon_thread(works, f"icekeeper-detect_{n}") for n in range(min(threads, len(items)))]
        ended, _ = wait(running, max(0.0, started_s + budget_s - monotonic_s()), FIRST_EXCEPTION)
    finally:
        reached = desk.close()
    for one in ended:
        one.result()
    return reached


class _Desk(Generic[Item, Result]):
    """Where the threads take their items and leave their results, until it closes."""

    def __init__(self, items: Sequence[Item], monotonic_s: Callable[[], float], last_begin_s: float) -> None:
        self._items = items
        self._monotonic_s = monotonic_s
        self._last_begin_s = last_begin_s
        self._lock = Lock()
        self._is_closed = False
        self._begun = 0
        self._done: dict[int, Result] = {}

    def next_number(self) -> int | None:
        """The number of the next item; ``None``: there is none, or it is too late."""
        with self._lock:
            if self._is_closed or self._begun == len(self._items) or self._monotonic_s() >= self._last_begin_s:
                return None
            self._begun += 1
            return self._begun - 1

    def put(self, number: int, result: Result) -> None:
        """Store the result of an item; it is discarded if the time is over."""
        with self._lock:
            if not self._is_closed:
                self._done[number] = result

    def close(self) -> Reached[Item, Result]:
        """What was done until now; no thread begins another item."""
        with self._lock:
            self._is_closed = True
            done = [(self._items[number], result) for number, result in self._done.items()]
            return Reached(done, self._begun, [self._items[n] for n in range(self._begun) if n not in self._done])
