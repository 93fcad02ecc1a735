"""An engine whose workers' requests are counted here: they come back with the results, from whatever machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from icekeeper.engines.choose import AutoEngine
from icekeeper.engines.engine import Engine
from icekeeper.machine.metering import RequestCount, RequestKind, counting, current_count

__all__ = ["CountedEngine"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")
Counts = Mapping[RequestKind, int]


class _Counted(NamedTuple):
    """What work gave, and the requests that it took."""

    result: Any
    counts: Counts


class CountedEngine:
    """The same engine; what its work sends is added to the count that is open where the work is given to it.

    Of work that failed nothing is counted.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def name(self) -> str:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._engine.name

    @property
    def reason(self) -> str | None:
        """Why this engine did the work; ``None``: somebody named it."""
        return self._engine.reason if isinstance(self._engine, AutoEngine) else None

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return _added(self._engine.map(_CountedTask(function), tasks, on_done))

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return _added(self._engine.exchange(_CountedSplit(split), tasks, _CountedMerge(merge), parts, on_done))


def _added(done: Sequence[_Counted]) -> list[Any]:
    count = current_count()
    if count is not None:
        for one in done:
            count.add_all(one.counts)
    return [one.result for one in done]


@dataclass(frozen=True, slots=True)
class _CountedTask(Generic[Task, Result]):
    function: Callable[[Task], Result]

    @property
    def __wrapped__(self) -> Callable[[Task], Result]:
        """Python's name for what a callable stands for: engines ask for the module of the work (platform 51)."""
        return self.function

    def __call__(self, task: Task) -> _Counted:
        with counting() as count:
            result = self.function(task)
        return _Counted(result, count.counts)


@dataclass(frozen=True, slots=True)
class _CountedSplit(Generic[Task, Item]):
    """Gives the items, and after them what they took, to part 0."""

    function: Callable[[Task], Iterable[tuple[int, Item]]]

    @property
    def __wrapped__(self) -> Callable[[Task], Iterable[tuple[int, Item]]]:
        """As above."""
        return self.function

    def __call__(self, task: Task) -> Iterator[tuple[int, Any]]:
        items, count = iter(self.function(task)), RequestCount()
        while True:
            with counting(count):  # and not while the engine carries the item away
                item = next(items, None)
            if item is None:
                break
            yield item
        yield 0, _Counted(None, count.counts)


@dataclass(frozen=True, slots=True)
class _CountedMerge(Generic[Part, Item, Result]):
    function: Callable[[Part, Iterator[Item]], Result]

    def __call__(self, part: Part, items: Iterator[Any]) -> _Counted:
        with counting() as count:

            def given() -> Iterator[Item]:
                for item in items:
                    if isinstance(item, _Counted):
                        count.add_all(item.counts)
                    else:
                        yield item

            found = given()
            result = self.function(part, found)
            for _ in found:  # whatever the work left unread
                continue
        return _Counted(result, count.counts)
