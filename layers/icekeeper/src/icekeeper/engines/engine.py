"""The interface of engines, which run the expensive part of an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

__all__ = ["Engine"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class Engine(Protocol):
    """Runs a pure, picklable function over tasks, in this process or by workers.

    A task or part that writes files has a method ``in_attempt``.  An engine that may begin it more than once passes it
    a number, each number once, so that attempts never touch each other's files.
    """

    @property
    def name(self) -> str: ...

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """The results in the order of ``tasks``; ``on_done`` is called with the number of finished tasks.

        Raises:
            StorageError: the engine itself failed; which tasks ran is not known.
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
        """A shuffle: ``split`` makes ``(part number, item)`` of each task, ``merge`` gets the items of each part.

        Results are in the order of ``parts``; a part without items is merged too.  The items of a part come in any
        order, one at a time, and are never all in memory.  ``on_done`` is called with the number of finished tasks, and
        then of tasks and parts.

        Raises:
            StorageError: the engine itself failed; which work ran is not known.
        """
        ...
