"""The seam to whatever runs the expensive part of an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

__all__ = ["Engine"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class Engine(Protocol):
    """Runs a pure, picklable work unit over tasks, here or elsewhere.

    What writes files, a task or a part, has a method ``in_attempt``: an engine that may begin it more than once tells
    it which attempt this is, each number once, so that attempts never touch each other's files.
    """

    @property
    def name(self) -> str: ...

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """Results in the order of ``tasks``; ``on_done`` is told how many are finished.

        Raises:
            StorageError: the engine itself broke; which tasks ran is not known.
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
        """Send what ``split`` makes of the tasks to parts, by number, and ``merge`` what each part got.

        Results are in the order of ``parts``; a part that got nothing is merged too.  The items of a part come in any
        order, one at a time, and are never all in memory.  ``on_done`` counts tasks and then parts.

        Raises:
            StorageError: the engine itself broke; which work ran is not known.
        """
        ...
