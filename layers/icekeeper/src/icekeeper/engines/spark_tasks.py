"""What Spark's Python workers run: a work unit, told which attempt it is and how many cores it may use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from icekeeper.engines.attempts import in_attempt
from icekeeper.machine.resources import on_cores

__all__ = ["RunningTask", "SparkTasks"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class RunningTask(Protocol):
    """What Spark tells of a task while it runs (``pyspark.TaskContext``)."""

    def attemptNumber(self) -> int: ...  # noqa: N802  # Spark's name

    def cpus(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """Makes functions for an RDD of work units."""

    current: Callable[[], RunningTask | None]
    """The task that runs in this worker; ``None`` outside of Spark."""
    own_cores: int
    """Each task's share of a machine that Spark has for itself; on a cluster a task has ``spark.task.cpus``."""
    run: int = 0
    """How often the same work was begun before."""

    def mapping(self, function: Callable[[Task], Result]) -> Callable[[Task], Result]:
        """For ``RDD.map``."""

        def work(task: Task) -> Result:
            importlib.invalidate_caches = _do_nothing
            with on_cores(self._cores()):
                return function(in_attempt(task, self.run, self._attempt()))

        return work

    def splitting(self, split: Callable[[Task], Iterable[Item]]) -> Callable[[Task], Iterator[Item]]:
        """For ``RDD.flatMap``."""

        def work(task: Task) -> Iterator[Item]:
            importlib.invalidate_caches = _do_nothing
            with on_cores(self._cores()):
                yield from split(in_attempt(task, self.run, self._attempt()))

        return work

    def merging(
        self, merge: Callable[[Part, Iterator[Item]], Result], parts: Sequence[Part]
    ) -> Callable[[int, Iterable[tuple[int, Item]]], Iterator[Result]]:
        """For ``RDD.mapPartitionsWithIndex``: merges the items of each part."""

        def work(number: int, items: Iterable[tuple[int, Item]]) -> Iterator[Result]:
            importlib.invalidate_caches = _do_nothing
            with on_cores(self._cores()):
                yield merge(in_attempt(parts[number], self.run, self._attempt()), (item for _, item in items))

        return work

    def _attempt(self) -> int:
        """The number of the running attempt at the task, counted from 0 within its stage."""
        task = self.current()
        return 0 if task is None else task.attemptNumber()

    def _cores(self) -> int:
        task = self.current()
        return max(self.own_cores, 1 if task is None else task.cpus())


def _do_nothing() -> None:
    """Instead of ``importlib.invalidate_caches``, which pyspark calls before every task.

    That re-reads its own zip file for about 60 ms, although a worker's modules never change (platform 3).
    """
