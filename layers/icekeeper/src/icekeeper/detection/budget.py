"""Works on many items in several threads within a time budget, and reports which were begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

__all__ = ["Reached", "within_budget"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Nothing is begun in the last tenth, so that what was begun can finish; what then is not done hangs.
_BEGINNING_SHARE = 0.9


@dataclass(slots=True)
class Reached(Generic[Item, Result]):
    """Items and results that were done in time; the first ``begun`` items, in their order, were begun."""

    done: list[tuple[Item, Result]] = field(default_factory=list)
    begun: int = 0


def within_budget(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    threads: int,
    budget_s: float,
    monotonic_s: Callable[[], float],
) -> Reached[Item, Result]:
    """Results of what finished within ``budget_s`` seconds, in any order.

    Never more than ``threads`` items are in the works, so that what they hold in memory is bounded.  An item that
    hangs is left to its own timeout.  What ``work`` raises is raised.
    """
    started_s = monotonic_s()
    last_begin_s, deadline_s = started_s + _BEGINNING_SHARE * budget_s, started_s + budget_s
    reached: Reached[Item, Result] = Reached()
    waiting = iter(items)
    running: dict[Future[Result], Item] = {}
    pool = ThreadPoolExecutor(threads, thread_name_prefix="icekeeper-detect")
    try:
        while True:
            while len(running) < threads and monotonic_s() < last_begin_s:
                following = list(islice(waiting, 1))
                if not following:
                    break
                running[pool.submit(work, following[0])] = following[0]
                reached.begun += 1
            if not running:
                return reached
            done, _ = wait(running, max(0.0, deadline_s - monotonic_s()), FIRST_COMPLETED)
            if not done:
                return reached
            reached.done.extend((running.pop(future), future.result()) for future in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
