"""Rewrites that are interrupted, what they have recorded, and the passes that come later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from icekeeper.deletion.shared_references import recorded_files
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.pass_context.stores import TableHandle
from icekeeper.report.outcome import PassOutcome
from icekeeper.state.store import Pin, StagedLoad
from icekeeper.storage.paths import normalise
from support.maintained_table import EAGER, NAME, MaintainedTable

Task = TypeVar("Task")
Result = TypeVar("Result")
LEASE_MS = 2 * HOUR_MS
LATER_MS = LEASE_MS + 24 * HOUR_MS


class Killed(BaseException):
    """The process is gone."""


class Interrupting(LocalEngine):
    """Runs in this process; ``before`` and ``after`` are called around the work of the first map."""

    def __init__(self, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None) -> None:
        super().__init__(1)
        self._before, self._after = before, after

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        self._before()
        results = super().map(function, tasks, on_done)
        self._after()
        return results


def pins(table: MaintainedTable) -> tuple[Pin, ...]:
    return tuple(handle_of(table).memory(table.loaded).pins())


def loads(table: MaintainedTable) -> tuple[StagedLoad, ...]:
    return handle_of(table).memory(table.loaded).staged_loads()


def recorded(table: MaintainedTable) -> list[str]:
    """What the loads of the table may have written, by all attempts at their tasks."""
    memory = handle_of(table).memory(table.loaded)
    return [normalise(path) for load in memory.staged_loads() for path in recorded_files(memory, load)]


def handle_of(table: MaintainedTable) -> TableHandle:
    return TableHandle(table.catalog, NAME, table.state, system_clock)


def later(
    table: MaintainedTable, operations: str = "rewrite_position_deletes", *, by_ms: int = LATER_MS
) -> PassOutcome:
    """A pass with a grace period of a day, so much later."""
    settings = {**EAGER, "orphan_older_than_hours": "24", "operations": operations}
    runtime = table.runtime_with(clock=lambda: system_clock() + by_ms)
    return runtime.maintain(NAME, settings, LocalEngine(1))


def deleted(outcome: PassOutcome) -> list[str]:
    assert outcome.staged is not None
    return [normalise(path) for path in outcome.staged.files_deleted]


def kill() -> None:
    raise Killed
