"""An engine that its first task starts: most passes rewrite nothing, and Spark takes seconds to start (platform 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from threading import Lock
from typing import TypeVar

from icekeeper.engines.engine import Engine

__all__ = ["DeferredEngine"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class DeferredEngine:
    """Starts another engine when the first work arrives, and stops it when its own context is left.

    Threads may share it: the first of them starts the engine.
    """

    def __init__(self, name: str, start: Callable[[], AbstractContextManager[Engine]]) -> None:
        self.name = name
        self._start = start
        self._started = ExitStack()
        self._engine: Engine | None = None
        self._starting = Lock()

    def __enter__(self) -> DeferredEngine:
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
