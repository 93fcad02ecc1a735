"""A table whose passes and staged loads live by a clock that a test sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import declare_load, list_loads, stage_load
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.pass_context.stores import TableHandle
from icekeeper.report.outcome import PassOutcome, StagedOutcome
from icekeeper.state.store import LoadState, StagedLoad
from support.maintained_table import NAME, MaintainedTable, our_catalog, same_clock

GRACE: dict[str, Any] = {"orphan_older_than_hours": "24"}
GRACE_MS = 24 * HOUR_MS
START_MS = system_clock()


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class StagedTable(MaintainedTable):
    """A table whose passes and loads live by a clock of their own."""

    def __init__(self, catalog: SqlCatalog, folder: Path) -> None:
        super().__init__(our_catalog(folder), folder, pyiceberg=catalog)
        self.create()
        self.clock = Watch()
        self.fill(3)

    @property
    def handle(self) -> TableHandle:
        return TableHandle(self.catalog, NAME, self.state, self.clock, store_clock=same_clock)

    def stage(self, name: str, *paths: str, state: LoadState = LoadState.PENDING) -> StagedLoad:
        load = stage_load(self.handle, name, [f"file://{path}" for path in paths], ())
        return load if state is LoadState.PENDING else declare_load(self.handle, name, state)

    def sweep(self, operations: str = "compact", *, dry_run: bool = False, **settings: Any) -> PassOutcome:
        """A pass with a grace period of a day."""
        told = {**GRACE, **settings}
        return self.maintain(operations, clock=self.clock, dry_run=dry_run, **told)

    def cleaned(self, **more: Any) -> StagedOutcome:
        staged = self.sweep(**more).staged
        assert staged is not None
        return staged

    def states(self) -> dict[str, LoadState]:
        return {load.name: load.state for load in list_loads(self.handle)}
