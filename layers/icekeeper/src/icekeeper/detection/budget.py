"""Works on many items in several threads within a time budget, and reports which were begun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

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
    works, so that what they hold in memory is bounded.  An item that hangs is left to its own timeout.  What ``work``
    raises is raised.
    """
    started_s = monotonic_s()
    desk: _Desk[Item, Result] = _Desk(items, monotonic_s, started_s + _BEGINNING_SHARE * budget_s)

    def works() -> None:
        # Each thread takes its next item itself: one that hands items out would wake up for every one of them.
        with around():
            while (number := desk.next_number()) is not None:
                desk.put(items[number], work(items[number]))

    pool = ThreadPoolExecutor(threads, thread_name_prefix="icekeeper-detect")
    try:
        running = [pool.submit(works) for _ in range(min(threads, len(items)))]
        ended, _ = wait(running, max(0.0, started_s + budget_s - monotonic_s()), FIRST_EXCEPTION)
    finally:
        reached = desk.close()
        pool.shutdown(wait=False, cancel_futures=True)
    for one in ended:
        one.result()
    return reached


class _Desk(Generic[Item, Result]):
    """Where the threads take their items and leave their results, until it closes."""

    def __init__(self, items: Sequence[Item], monotonic_s: Callable[[], float], last_begin_s: float) -> None:
        self._size = len(items)
        self._monotonic_s = monotonic_s
        self._last_begin_s = last_begin_s
        self._lock = Lock()
        self._is_closed = False
        self._begun = 0
        self._done: list[tuple[Item, Result]] = []

    def next_number(self) -> int | None:
        """The number of the next item; ``None``: there is none, or it is too late."""
        with self._lock:
            if self._is_closed or self._begun == self._size or self._monotonic_s() >= self._last_begin_s:
                return None
            self._begun += 1
            return self._begun - 1

    def put(self, item: Item, result: Result) -> None:
        """Leave a result, which nobody takes who comes too late."""
        with self._lock:
            if not self._is_closed:
                self._done.append((item, result))

    def close(self) -> Reached[Item, Result]:
        """What was done until now; no thread begins another item."""
        with self._lock:
            self._is_closed = True
            return Reached(self._done, self._begun)
