"""The interface of engines, which run the expensive part of an operation; their names, counts and pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from enum import StrEnum
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from icekeeper.machine.metering import RequestKind

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class Engine(Protocol):
    """Runs a pure, picklable function over tasks, in this process or in workers.

    The requests of workers return with their results and are added to the caller's count; those of failed work are not.

    A task or part that writes files has a method ``in_attempt``.  An engine that may run it more than once passes a
    new number to each attempt, so that attempts never touch each other's files.
    """

    @property
    def name(self) -> str: ...

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """The results in the order of ``tasks``; ``on_done`` is called with the number of finished tasks.

        Raises:
            StorageError: the engine itself failed; it is not known which tasks ran.
        """
        ...

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """A shuffle: ``split`` returns ``(part number, item)`` pairs of each task, ``merge`` gets the items of a part.

        Results are in the order of ``parts``; a part without items is merged, too.  The items of a part come in any
        order, one at a time, and are never all in memory.  ``on_done`` is called with the number of finished tasks,
        later of tasks and parts.

        Raises:
            StorageError: the engine itself failed; it is not known which work ran.
        """
        ...


class EngineName(StrEnum):
    """The names of engines on the command line."""

    AUTO = "auto"
    """Spark if a cluster or a running session is available, else this machine's processes."""
    SPARK = "spark"
    LOCAL = "local"


class DeferredSpark:
    """Starts Spark with the first work, and stops it when its own context ends; threads may share it.

    Most passes rewrite nothing, and Spark takes seconds to start (platform: spark-session-start-time).
    """

    name = EngineName.SPARK

    def __init__(self, start: Callable[[], AbstractContextManager[Engine]]) -> None:
        self._start = start
        self._started = ExitStack()
        self._engine: Engine | None = None
        self._starting = Lock()

    def __enter__(self) -> DeferredSpark:
        return self

    def __exit__(self, *reason: object) -> None:
        self._started.close()
        self._engine = None

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._running().map(function, tasks, on_done)

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._running().exchange(split, tasks, merge, parts, on_done)

    def _running(self) -> Engine:
        with self._starting:
            if self._engine is None:
                self._engine = self._started.enter_context(self._start())
            return self._engine


Done: TypeAlias = "tuple[Result, Mapping[RequestKind, int]]"
"""A result, and the requests that were sent for it."""


def results_of(done: Iterable[Done[Result]]) -> list[Result]:
    """The results of workers; adds the requests that each has sent to the caller's count."""
    from icekeeper.machine.metering import current_count  # ``icekeeper --help`` imports this module

    count, results = current_count(), []
    for result, sent in done:
        results.append(result)
        if count is not None:
            count.add_all(sent)
    return results


# Pools: Spark divides its workers evenly among them, so that tasks of a small table do not wait for those of a large
# one.  Other engines ignore pools.

_current: ContextVar[str | None] = ContextVar("icekeeper_pool", default=None)


def current_pool() -> str | None:
    """The pool of this thread's tasks; ``None``: the engine is not shared."""
    return _current.get()


@contextmanager
def in_pool(name: str) -> Iterator[None]:
    """Inside the block, this thread's tasks belong to this pool."""
    before = _current.set(name)
    try:
        yield
    finally:
        _current.reset(before)


@runtime_checkable
class ReadsBytes(Protocol):
    """A task that knows its size: the bytes that it reads, with an allowance for each file that it opens."""

    @property
    def input_bytes(self) -> int: ...


def total_input_bytes(tasks: Iterable[Any]) -> int | None:
    """The bytes that all tasks read together; ``None``: not known."""
    total = 0
    for task in tasks:
        if not isinstance(task, ReadsBytes):
            return None
        total += task.input_bytes
    return total
