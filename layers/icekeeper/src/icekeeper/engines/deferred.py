"""An engine that its first work starts: most passes have nothing to rewrite, and Spark takes seconds (platform 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol, TypeVar

__all__ = ["DeferredEngine"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class _Engine(Protocol):
    @property
    def name(self) -> str: ...

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]: ...

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]: ...


class DeferredEngine:
    """Starts the engine once, when work arrives; closing it stops what was started."""

    def __init__(self, name: str, start: Callable[[], AbstractContextManager[_Engine]]) -> None:
        self.name = name
        self._start = start
        self._started = ExitStack()
        self._engine: _Engine | None = None

    def __enter__(self) -> DeferredEngine:
        return self

    def __exit__(self, *reason: object) -> None:
        self._started.close()
        self._engine = None

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.pass_context.context.Engine`."""
        return self._running().map(function, tasks, on_done)

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.pass_context.context.Engine`."""
        return self._running().exchange(split, tasks, merge, parts, on_done)

    def _running(self) -> _Engine:
        if self._engine is None:
            self._engine = self._started.enter_context(self._start())
        return self._engine
