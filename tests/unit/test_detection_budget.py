"""Items in several threads within a time budget: what is begun, what is done, and what comes too late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event, Lock, Semaphore, get_ident

import pytest

from icekeeper.detection.scan import within_budget


def test_every_item_is_done_once_and_never_more_at_a_time_than_threads() -> None:
    lock, at_once, most = Lock(), 0, 0
    three_at_once = Event()

    def work(item: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
            if most == 3:
                three_at_once.set()
        assert three_at_once.wait(10)
        with lock:
            at_once -= 1
        return -item

    reached = within_budget(work, range(50), threads=3, budget_s=60, monotonic_s=time.monotonic)
    assert sorted(reached.done) == [(item, -item) for item in range(50)]
    assert (reached.begun, most) == (50, 3)


def test_each_thread_enters_its_surroundings_once() -> None:
    entered: list[int] = []
    left: list[int] = []

    @contextmanager
    def around() -> Iterator[None]:
        entered.append(get_ident())
        yield
        left.append(get_ident())

    def work(_: int) -> bool:
        return get_ident() in entered and get_ident() not in left

    reached = within_budget(work, range(50), threads=3, budget_s=60, monotonic_s=time.monotonic, around=around)
    assert [inside for _, inside in reached.done] == [True] * 50
    assert len(entered) == len(left) <= 3


def test_nothing_is_begun_in_the_last_tenth() -> None:
    ticks = count()  # one second passes at each look: one at the start, one before each item, one before waiting
    reached = within_budget(str, range(100), threads=1, budget_s=20, monotonic_s=lambda: float(next(ticks)))
    assert reached.begun < 20
    assert [item for item, _ in reached.done] == list(range(reached.begun))


def test_what_hangs_is_left_and_its_late_result_is_not_taken() -> None:
    may_end, has_ended, others = Event(), Event(), Semaphore(0)
    looks = count()
    here = get_ident()

    def work(item: int) -> int:
        if item == 0:
            assert may_end.wait(10)
            has_ended.set()
        else:
            others.release()
        return item

    def clock() -> float:
        """The time is over once the other items are done."""
        if get_ident() != here or not next(looks):
            return 0.0
        assert all(others.acquire(timeout=10) for _ in range(2))
        time.sleep(0.05)  # until the second one has left its result
        return 100.0

    reached = within_budget(work, range(3), threads=2, budget_s=100, monotonic_s=clock)
    before = sorted(reached.done)
    may_end.set()
    assert has_ended.wait(10)
    time.sleep(0.01)
    assert (before, sorted(reached.done), reached.begun) == ([(1, 1), (2, 2)], [(1, 1), (2, 2)], 3)


def test_what_work_raises_is_raised_and_nothing_more_begins() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        within_budget(work, range(100), threads=1, budget_s=60, monotonic_s=time.monotonic)
    assert begun == [0]


def test_without_items_nothing_is_waited_for() -> None:
    nothing: list[int] = []
    reached = within_budget(str, nothing, threads=4, budget_s=60, monotonic_s=time.monotonic)
    assert (reached.done, reached.begun) == ([], 0)
