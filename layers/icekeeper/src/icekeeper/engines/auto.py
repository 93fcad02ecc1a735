"""The engine that chooses: Spark or this machine's processes, for each piece of work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from icekeeper.engines.choose import Choice, Surroundings, choose, choose_for_sort
from icekeeper.engines.engine import Engine
from icekeeper.engines.names import EngineName
from icekeeper.engines.surroundings import surroundings
from icekeeper.engines.task_size import total_input_bytes

__all__ = ["AutoEngine", "opened_auto_engine"]

log = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class AutoEngine:
    """Hands work to one of two engines, which whoever made them starts and stops; remembers which did any."""

    def __init__(self, surroundings: Surroundings, local: Engine, spark: Engine) -> None:
        self._surroundings, self._local, self._spark = surroundings, local, spark
        self._taken: list[Choice] = []

    def for_one_pass(self) -> AutoEngine:
        """The same engines, remembering anew: passes of several threads share the engines, and each has a record."""
        return AutoEngine(self._surroundings, self._local, self._spark)

    @property
    def name(self) -> str:
        """The engines that did work, in order, joined by ``+``; before any work the one that would be taken."""
        return "+".join(dict.fromkeys(choice.engine.value for choice in self._choices))

    @property
    def reason(self) -> str:
        """Why these."""
        return "; ".join(dict.fromkeys(choice.reason for choice in self._choices))

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._take(choose(self._surroundings)).map(function, tasks, on_done)

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        choice = choose_for_sort(self._surroundings, total_input_bytes(tasks))
        return self._take(choice).exchange(split, tasks, merge, parts, on_done)

    @property
    def _choices(self) -> list[Choice]:
        return self._taken or [choose(self._surroundings)]

    def _take(self, choice: Choice) -> Engine:
        if choice not in self._taken:
            self._taken.append(choice)
            log.info("engine %s: %s", choice.engine.value, choice.reason)
        return self._spark if choice.engine is EngineName.SPARK else self._local


@contextmanager
def opened_auto_engine(
    local: AbstractContextManager[Engine], spark: AbstractContextManager[Engine], environment: Mapping[str, str]
) -> Iterator[AutoEngine]:
    """Choose between these two, which are stopped on leaving; chosen is by what surrounds this process now."""
    with local as here, spark as there:
        yield AutoEngine(surroundings(environment), here, there)
