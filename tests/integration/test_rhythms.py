"""Rhythms over a real table: merging beside sorting passes, sweep intervals, and statistics."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.clock import system_clock
from icekeeper.maintenance.run_pass import Turn
from icekeeper.policy.sweep_rhythm import SweepMemory
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.runtime import Runtime
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.storage.paths import normalise
from support.command import CATALOG, Command
from support.deletes import commit_deletes, position_delete
from support.maintained_table import NAME, MaintainedTable, new_table, same_clock
from support.pipeline_deployment import Pipeline

HOUR_MS = 3_600_000

# A merging pass keeps the files that are sorted by the table's own order.

MERGE = {"operations": "compact", "strategy": "binpack", "min_input_files": "2"}
SORT = {"operations": "compact", "min_input_files": "2"}
ZORDERED = {"icekeeper.strategy": "zorder", "icekeeper.sort_order": "id,part"}


def merged(table: MaintainedTable, settings: dict[str, str]) -> int:
    (outcome,) = table.runtime.maintain(NAME, settings, LocalEngine(1)).operations
    return int(outcome.metrics.get("compact.files_merged", 0))


@pytest.mark.parametrize("is_own", [True, False])
def test_a_merging_pass_keeps_files_in_the_order_of_the_table(
    local_catalog: SqlCatalog, tmp_path: Path, *, is_own: bool
) -> None:
    """Else merging and sorting passes would rewrite each other's files; the order is a sort order or a z-order."""
    table = new_table(local_catalog, tmp_path, properties={} if is_own else ZORDERED)
    if is_own:
        with table.table.update_sort_order() as update:
            update.asc("id", IdentityTransform())
    table.fill(3)
    assert merged(table, MERGE) == 3
    table.fill(1, start=10)
    assert [merged(table, SORT), merged(table, MERGE), merged(table, SORT)] == [2, 0, 0]
    (ordered,) = table.live_files()
    table.fill(4, start=20)
    assert merged(table, MERGE) == 4
    assert ordered in table.live_files()
    assert [merged(table, MERGE), ordered in table.live_files()] == [0, True]
    table.fill(1, start=30)
    merged(table, SORT)
    assert [merged(table, MERGE), merged(table, SORT), merged(table, MERGE)] == [0, 0, 0]
    assert len(table.readers_agree()) == 18
    assert merged(table, {**MERGE, "rewrite_all": "true"}) == len(table.live_files())


@pytest.mark.parametrize("orders", [True, False])
def test_deletes_of_sorted_files_wait_for_the_sorting_pass(
    local_catalog: SqlCatalog, tmp_path: Path, *, orders: bool
) -> None:
    """If the table no longer has an order, the merging pass takes the file."""
    table = new_table(local_catalog, tmp_path, properties={**ZORDERED, "format-version": "2"}, appends=2)
    merged(table, SORT)
    (ordered,) = [file.file_path for file in table.data_files()]
    content, more = position_delete(ordered, 0, "p")
    commit_deletes(table, [(content, {**more, "partition": ()})])
    if not orders:
        table.table.transaction().set_properties({"icekeeper.strategy": "binpack"}).commit_transaction()
    assert merged(table, MERGE) == (0 if orders else 1)
    assert sum(table.live_deletes().values()) == (1 if orders else 0)
    merged(table, SORT)
    assert sum(table.live_deletes().values()) == 0
    assert len(table.readers_agree()) == 3


def turn_of(table: MaintainedTable, settings: dict[str, str]) -> None:
    table.runtime.maintain(NAME, settings, LocalEngine(1), turn=Turn(is_proposed=True))


def maintained(table: MaintainedTable, settings: dict[str, str]) -> bool:
    """Whether a scan with these settings proposes the table; if so, the pass runs."""
    is_proposed = bool(table.runtime.detect(settings).proposals)
    if is_proposed:
        turn_of(table, settings)
    return is_proposed


def test_two_rhythms_over_one_table_do_not_make_each_other_due(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Each rhythm records its own looks, and the rewrites of the other do not count as changes."""
    table = new_table(local_catalog, tmp_path, properties=ZORDERED, appends=2)
    turn_of(table, MERGE)
    turn_of(table, SORT)
    for start in (100, 200):
        table.fill(2, start=start)
        ids = table.readers_agree()
        turns = [(maintained(table, MERGE), maintained(table, SORT)) for _ in range(6)]
        assert turns == [(True, True)] + [(False, False)] * 5
        assert table.readers_agree() == ids
    table.append(300)
    assert [(maintained(table, SORT), maintained(table, MERGE)) for _ in range(3)] == [(False, False)] * 3


# Statistics of a real table: proposed when they are missing or old, computed again only when they are due.

COMPUTES = {"icekeeper.operations": "compute_statistics"}


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path, properties=COMPUTES)
    made.append(*range(200))
    made.append(*range(1000, 1005))
    return made


def proposed(table: MaintainedTable) -> tuple[str, ...]:
    return tuple(reason for found in table.runtime.detect().proposals for reason in found.reasons)


def computed(table: MaintainedTable, *, asked: bool = False) -> OperationOutcome:
    turn = Turn(is_proposed=not asked)
    (outcome,) = table.runtime.maintain(NAME, {}, LocalEngine(1), turn=turn).operations
    return outcome


def test_a_table_that_only_needs_statistics_is_proposed_until_it_has_them(table: MaintainedTable) -> None:
    assert proposed(table) == ("2 columns have no statistics",)
    assert computed(table).summary == "computed statistics of 2 column(s) over 205 row(s)"
    assert proposed(table) == ()
    table.table.delete("id = 1001")
    assert proposed(table) == ()
    reported = "9 rows changed since statistics were computed, 4.41 % of 204; they are computed again from 10 % on"
    assert computed(table).reason == reported
    assert computed(table, asked=True).summary == "computed statistics of 2 column(s) over 204 row(s)"
    # Appended files are cheap to read, so every pass reads them.
    table.append(5000)
    assert proposed(table) == ()
    assert computed(table).summary == "computed statistics of 2 column(s) over 1 row(s)"
    table.append(*range(6000, 6030))
    assert proposed(table) == ("30 rows changed since statistics were computed, 12.8 % of 235",)


def test_the_pipeline_starts_no_job_for_statistics_that_are_not_due(table: MaintainedTable, tmp_path: Path) -> None:
    computed(table)
    table.table.delete("id = 1001")
    pipeline = Pipeline(table, tmp_path)
    (item,) = pipeline.detect(table="ns.t")[1]
    for is_proposed, run_id in ((False, "run-asked"), (True, "run-proposed")):
        reported = item.model_copy(update={"forced": not is_proposed, "detected_ms": 2**43})
        pipeline.deployment.state.requests.file(MaintenanceRequest(identity=item.identity, requested_ms=1, settings={}))
        assert ("compute_statistics" in pipeline.plan(reported, run_id).routes) is not is_proposed
    reason = pipeline.document(item, "plan.json", "run-proposed")["outcomes"]["compute_statistics"]["reason"]
    assert reason.startswith("9 rows changed since statistics were computed, 4.41 % of 204")


# A table is swept for orphans once in an interval; a requested sweep runs at once.

NEVER = "the table was never swept for orphans"
SWEEP = {"operations": "remove_orphans"}


class Swept:
    """A table of one live file, a hundred hours after its commit, and a clock that the test sets."""

    def __init__(self, table: MaintainedTable) -> None:
        self.table = table
        self.now_ms = system_clock() + 100 * HOUR_MS
        self.runtime = Runtime(
            table.catalog, table.state, environment={}, clock=lambda: self.now_ms, store_clock=same_clock
        )

    def proposed(self) -> tuple[str, ...]:
        """The reasons for which a scan proposes the table."""
        return tuple(reason for found in self.runtime.detect().proposals for reason in found.reasons)

    def sweep(self, *, asked: bool = False, **settings: str) -> OperationOutcome:
        """Run a pass that only removes orphans, proposed by detection or requested."""
        turn = Turn(is_proposed=not asked)
        (outcome,) = self.runtime.maintain(NAME, {**SWEEP, **settings}, LocalEngine(1), turn=turn).operations
        return outcome

    def sweep_bucket(self, *, dry_run: bool = False) -> OperationOutcome:
        bucket = str(self.table.folder.parent)
        return self.runtime.sweep_bucket(bucket, {}, LocalEngine(1), dry_run=dry_run).tables["ns.t"]

    @property
    def memory(self) -> SweepMemory:
        identity = identity_of(self.table.catalog, self.table.loaded)
        return SweepMemory.of(self.table.state.sweeps.of_table(identity))


@pytest.fixture
def swept(local_catalog: SqlCatalog, tmp_path: Path) -> Swept:
    table = new_table(local_catalog, tmp_path)
    table.append(1, 2)
    return Swept(table)


def test_a_table_with_only_orphans_is_proposed_and_then_skipped_for_the_interval(swept: Swept) -> None:
    ids = swept.table.ids()
    for number in range(200):
        swept.table.plant(f"data/crash-{number}.parquet")
    assert swept.proposed() == (NEVER,)
    began_ms = swept.now_ms
    assert swept.sweep().summary == "removed 200 orphan file(s)"
    assert (swept.table.unreferenced(), swept.table.ids()) == (set(), ids)
    swept.table.plant("data/later.parquet")
    for hours in (0, 1, 21):
        swept.now_ms = began_ms + hours * HOUR_MS
        assert swept.proposed() == ()
    assert swept.sweep().reason == "the last sweep was 21 hours ago; orphan_sweep_interval_hours is 24"
    swept.now_ms = began_ms + 24 * HOUR_MS
    assert swept.proposed() == ("the last sweep for orphans was 24 hours ago; orphan_sweep_interval_hours is 24",)
    assert swept.sweep().summary == "removed 1 orphan file(s)"
    assert swept.memory == SweepMemory(swept_ms=swept.now_ms)


def test_a_requested_sweep_runs_at_once_and_is_recorded(swept: Swept) -> None:
    swept.sweep()
    swept.now_ms += 2 * HOUR_MS
    for asked in (True, False):
        swept.now_ms += HOUR_MS
        outcome = swept.sweep(asked=True) if asked else swept.sweep_bucket()
        assert (outcome.status, outcome.summary) == (Status.SUCCEEDED, "removed 0 orphan file(s)")
        assert swept.memory.swept_ms == swept.now_ms
    before = swept.memory
    swept.now_ms += HOUR_MS
    assert swept.sweep_bucket(dry_run=True).status is Status.SUCCEEDED
    assert swept.runtime.maintain(NAME, SWEEP, LocalEngine(1), dry_run=True).operations[0].status is Status.SUCCEEDED
    assert swept.memory == before


def test_a_refused_sweep_leaves_the_table_due(swept: Swept) -> None:
    swept.table.plant("data/crash.parquet")
    snapshot = swept.table.metadata.current_snapshot
    assert snapshot is not None
    manifest_list = Path(normalise(str(snapshot.manifest_list)))
    away = manifest_list.rename(manifest_list.with_suffix(".away"))
    for _ in range(2):  # every pass retries
        assert swept.sweep().status is Status.REFUSED
        assert swept.memory == SweepMemory(tried_ms=swept.now_ms)
        assert swept.proposed() == ()  # the refused sweep alone is no reason for a while
    swept.now_ms += 6 * HOUR_MS
    assert swept.proposed() == (NEVER,)
    away.rename(manifest_list)
    assert swept.sweep().summary == "removed 1 orphan file(s)"
    assert swept.proposed() == ()


def test_icekeeper_run_sweeps_tables_that_are_due_or_requested(command: Command) -> None:
    command.table(appends=3)
    run = ("run", "--once", "--engine", "local", "--set", "min_input_files=2")
    runtime = Runtime.open(CATALOG)
    identity = identity_of(runtime.catalog, runtime.catalog.load(NAME))

    def swept_ms() -> int | None:
        return SweepMemory.of(runtime.state.sweeps.of_table(identity)).swept_ms

    assert "compacted 3 files into 1" in command(*run, catalog=CATALOG).out
    assert swept_ms() is None  # the table is too young for a sweep
    runtime.state.requests.file(MaintenanceRequest(identity=identity, requested_ms=1, settings={}))
    assert "ns.t succeeded" in command(*run, catalog=CATALOG).out
    assert swept_ms() is not None


def test_the_pipeline_plans_a_sweep_only_when_it_is_due_or_requested(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    pipeline = Pipeline(new_table(local_catalog, tmp_path), tmp_path)
    pipeline.table.append(1)
    pipeline.clock.now_ms = system_clock() + 100 * HOUR_MS
    state = pipeline.deployment.state
    _, (item,) = pipeline.detect()
    assert (item.reasons, item.is_proposed) == ((NEVER,), True)
    plan = pipeline.plan(item)
    assert plan.routes["remove_orphans"] == "function"
    pipeline.run(item, *plan.routes)
    pipeline.report()
    assert SweepMemory.of(state.sweeps.of_table(item.identity)).swept_ms == pipeline.clock.now_ms

    pipeline.clock.now_ms += 3 * HOUR_MS
    pipeline.table.fill(3)
    _, (item,) = pipeline.detect("run-2")
    assert NEVER not in item.reasons
    plan = pipeline.plan(item, "run-2")
    assert ("remove_orphans" in plan.routes, plan.routes["compact"]) == (False, "glue")
    waits = "the last sweep was 3 hours ago; orphan_sweep_interval_hours is 24"
    assert pipeline.document(item, "plan.json", "run-2")["outcomes"]["remove_orphans"]["reason"] == waits
    # A sweep runs at once by a request and by a forced execution.
    state.requests.file(MaintenanceRequest(identity=item.identity, requested_ms=1, settings={}))
    pipeline.report("run-2")
    _, (asked,) = pipeline.detect("run-3")
    assert pipeline.plan(asked, "run-3").routes["remove_orphans"] == "function"
    assert pipeline.begin("run-4")[1].routes["remove_orphans"] == "function"
