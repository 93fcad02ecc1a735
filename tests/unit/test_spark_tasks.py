"""What Spark's workers run, without Spark: the attempt and the cores that a work unit is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import invalidate_caches

import pytest

from icekeeper.engines.spark_tasks import SparkTasks
from icekeeper.machine.resources import on_cores, task_cores
from icekeeper.storage.paths import ATTEMPTS_PER_RUN


@dataclass(frozen=True)
class Written:
    attempt: int = -1

    def in_attempt(self, attempt: int) -> Written:
        return replace(self, attempt=attempt)


@dataclass(frozen=True)
class Running:
    """As ``pyspark.TaskContext`` tells of a task."""

    number: int = 0
    share: int = 1

    def attemptNumber(self) -> int:  # noqa: N802  # Spark's name
        return self.number

    def cpus(self) -> int:
        return self.share


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions switch this off for their process."""
    monkeypatch.setattr("importlib.invalidate_caches", invalidate_caches)


def told(task: Written) -> tuple[int, int]:
    return task.attempt, task_cores()


def split(task: Written) -> Iterator[tuple[int, int]]:
    yield told(task)
    yield told(task)


def merge(part: Written, items: Iterator[int]) -> tuple[tuple[int, int], list[int]]:
    return told(part), list(items)


def test_a_task_has_the_cores_that_the_cluster_reserves_for_it() -> None:
    """Never more: other tasks run beside it."""
    tasks = SparkTasks(lambda: Running(number=2, share=3), own_cores=0, run=1)
    attempt = ATTEMPTS_PER_RUN + 2
    assert tasks.mapping(told)(Written()) == (attempt, 3)
    assert list(tasks.splitting(split)(Written())) == [(attempt, 3)] * 2
    merged = tasks.merging(merge, [Written(), Written()])(1, iter([(1, 10), (1, 20)]))
    assert list(merged) == [((attempt, 3), [10, 20])]
    assert task_cores() == 1


def test_a_task_shares_a_machine_that_spark_has_for_itself() -> None:
    assert SparkTasks(Running, own_cores=4).mapping(told)(Written()) == (0, 4)
    assert SparkTasks(Running, own_cores=0).mapping(told)(Written()) == (0, 1)
    assert SparkTasks(lambda: None, own_cores=0).mapping(told)(Written()) == (0, 1)


def test_cores_hold_for_the_block_alone() -> None:
    with on_cores(4):
        with on_cores(0):
            assert task_cores() == 1
        assert task_cores() == 4
    assert task_cores() == 1
