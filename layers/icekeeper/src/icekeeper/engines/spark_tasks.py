"""What Spark's Python workers run: a task with its attempt number and the cores that it may use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from icekeeper.engines.engine import Done
from icekeeper.machine.metering import RequestCount, RequestKind, counting
from icekeeper.machine.resources import on_cores
from icekeeper.storage.paths import ATTEMPTS_PER_RUN, MAX_ATTEMPTS

Task = TypeVar("Task")


@runtime_checkable
class WritesFiles(Protocol):
    """A task whose files are named by the attempt that writes them."""

    def in_attempt(self, attempt: int) -> Self: ...


def in_attempt(task: Task, run: int, number: int) -> Task:
    """The task for attempt ``number`` of run ``run``, both counted from 0; a task that writes no files is unchanged.

    An attempt beyond the limit gets the number ``MAX_ATTEMPTS``, with which no task writes.
    """
    if not isinstance(task, WritesFiles):
        return task
    return task.in_attempt(run * ATTEMPTS_PER_RUN + number if number < ATTEMPTS_PER_RUN else MAX_ATTEMPTS)


Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class RunningTask(Protocol):
    """The part of ``pyspark.TaskContext`` that is used here."""

    def attemptNumber(self) -> int: ...  # noqa: N802  # Spark's name

    def cpus(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """Makes functions for an RDD of tasks."""

    current: Callable[[], RunningTask | None]
    """Returns the running task; ``None`` outside of Spark."""
    own_cores: int
    """Each task's share of the cores in local mode; on a cluster a task has ``spark.task.cpus``."""
    run: int = 0
    """The number of earlier runs of the same work."""

    def mapping(self, function: Callable[[Task], Result]) -> Callable[[Task], Done[Result]]:
        """For ``RDD.map``: the result, and the requests that were sent for it."""

        def work(task: Task) -> Done[Result]:
            with on_cores(self._cores()), counting() as sent:
                result = function(self._in_attempt(task))
            return result, sent.counts

        return work

    def splitting(self, split: Callable[[Task], Iterable[tuple[int, Item]]]) -> Callable[[Task], Iterator[Any]]:
        """For ``RDD.flatMap``: the items, and then the request count for part 0."""

        def work(task: Task) -> Iterator[Any]:
            sent = RequestCount()
            with on_cores(self._cores()):
                items = iter(split(self._in_attempt(task)))
                while True:
                    with counting(sent):  # but not while Spark transports the item
                        item = next(items, None)
                    if item is None:
                        break
                    yield item
            yield 0, _Sent(sent.counts)

        return work

    def merging(
        self, merge: Callable[[Part, Iterator[Item]], Result], parts: Sequence[Part]
    ) -> Callable[[int, Iterable[tuple[int, Any]]], Iterator[Done[Result]]]:
        """For ``RDD.mapPartitionsWithIndex``: the result, and the requests of the merge and of the splits."""

        def work(number: int, items: Iterable[tuple[int, Any]]) -> Iterator[Done[Result]]:
            with on_cores(self._cores()), counting() as sent:
                given = _without_counts(items, sent)
                result = merge(self._in_attempt(parts[number]), given)
                for _ in given:  # items that the work did not read
                    continue
            yield result, sent.counts

        return work

    def _in_attempt(self, task: Task) -> Task:
        importlib.invalidate_caches = _do_nothing
        running = self.current()
        return in_attempt(task, self.run, 0 if running is None else running.attemptNumber())

    def _cores(self) -> int:
        task = self.current()
        return max(self.own_cores, 1 if task is None else task.cpus())


class _Sent(dict[RequestKind, int]):
    """The requests of a split, among its items."""


def _without_counts(items: Iterable[tuple[int, Any]], sent: RequestCount) -> Iterator[Any]:
    for _, item in items:
        if isinstance(item, _Sent):
            sent.add_all(item)
        else:
            yield item


def _do_nothing() -> None:
    """Replaces ``importlib.invalidate_caches``, which pyspark calls before every task.

    That call re-reads pyspark's zip file for about 60 ms, but a worker's modules never change.
    """
