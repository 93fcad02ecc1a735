"""Passes over the tables of a world: real ones, perhaps with something in their middle; what each did is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from icekeeper.errors import MaintenanceError
from icekeeper.model import TableName
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.runtime import Runtime
from support.ownership.doors import Door, InterruptedEngine, Interruption, door_named
from support.ownership.lake import CATALOGS
from support.ownership.truth import Entry, PassReport
from support.ownership.witness import Witness, real_path
from support.ownership.world import World
from support.without_leases import without_leases

EAGER = {
    "min_input_files": "2",
    "min_manifests_to_rewrite": "2",
    "snapshot_retention_hours": "0",
    "max_snapshots_to_keep": "1",
    "orphan_max_delete_ratio": "1",
}
"""Everything that may go goes at once, and two of anything are too many."""


def table_name(entry: Entry) -> TableName:
    return TableName(("ns",), entry.name)


@dataclass(slots=True)
class Passing:
    """Runs passes over one world."""

    world: World
    depth: int = 0
    problem: BaseException | None = None
    """What went wrong in the middle of a pass, which the pass itself must not swallow."""

    def run(
        self,
        entry: Entry,
        door: int,
        settings: Mapping[str, str],
        interruption: Interruption | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        """One pass; it may refuse, but raises nothing, and what it refused changes nothing."""
        world = self.world
        before, pointer = world.lake.files(), world.pointers()[entry]
        report = self._report(entry, door, pointer)
        outcome = self._outcome(entry, door, settings, interruption, report, dry_run=dry_run)
        report.moved = world.pointers()[entry] != pointer
        if outcome is None:
            return
        world.reports.append(report)
        world.advance()
        for operation in outcome.operations:
            world.tally[f"{operation.operation.value} {operation.status.value}"] += 1
            world.tally["files deleted"] += len(operation.files_deleted)
            world.tell(f"  {operation.operation.value}: {operation.status.value}, {operation.summary}")
            report.deleted.update(dict.fromkeys(map(real_path, operation.files_deleted), operation.operation))
        if outcome.staged is not None:
            world.tell(f"  staged: {outcome.staged.summary}")
            report.deleted.update(dict.fromkeys(map(real_path, outcome.staged.files_deleted), None))
        alone = interruption is None and self.depth == 0
        if alone and not dry_run:
            self._check_refusals(outcome, report, before)
        if alone and report.was_newest:
            broken = [part.summary for part in outcome.operations if part.status is Status.FAILED]
            assert not broken, f"FAILED {broken[0]}"

    def _report(self, entry: Entry, door: int, pointer: str) -> PassReport:
        world = self.world
        lineage = world.lineages[world.uuids[entry]]
        is_newest = real_path(pointer) == real_path(lineage.newest)
        return PassReport(
            entry,
            door,
            lineage,
            pointer,
            was_newest=is_newest,
            behind=0 if is_newest else Witness.number(lineage.newest) - Witness.number(pointer),
            is_alone=not world.entries_at_newest(lineage),
        )

    def _outcome(
        self,
        entry: Entry,
        door: int,
        settings: Mapping[str, str],
        interruption: Interruption | None,
        report: PassReport,
        *,
        dry_run: bool,
    ) -> PassOutcome | None:
        world = self.world
        at: Callable[..., object] = (lambda moment: None) if interruption is None else interruption.at
        catalog = Door(world.lake.ours(entry.catalog), door, at)
        runtime = Runtime(
            catalog,
            world.lake.state,
            environment={},
            other_catalog=partial(door_named, [world.lake.ours(number) for number in range(len(CATALOGS))]),
        )
        watching = nullcontext() if interruption is None else interruption.watching_storage()
        self.problem = None if self.depth == 0 else self.problem
        try:
            with watching, without_leases():
                outcome = runtime.maintain(
                    table_name(entry), {**EAGER, **settings}, InterruptedEngine(at), dry_run=dry_run, unsafe=True
                )
        except MaintenanceError as error:
            sight = world.witness.look(report.start)
            if sight is not None and not sight.missing:
                raise AssertionError(f"RAISED {type(error).__name__}: {error}") from error
            world.tell(f"  cannot be loaded: {error}")
            return None
        finally:
            if self.depth == 0 and self.problem is not None:
                raise self.problem
        return outcome

    def _check_refusals(self, outcome: PassOutcome, report: PassReport, before: frozenset[str]) -> None:
        """A refusal leaves every file where it was, and adds none."""
        if all(part.status is Status.REFUSED for part in outcome.operations):
            cleaned = {path for path, operation in report.deleted.items() if operation is None}
            after = self.world.lake.files()
            assert before - cleaned == after, f"REFUSED, but changed {sorted(before ^ after)}"
            assert not report.moved, "REFUSED, but committed"
