"""Schedules, sweep intervals and the rhythm of statistics over a real table."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

from icekeeper.catalogs.catalog import identity_of
from icekeeper.detection.proposal import Proposal
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.clock import system_clock
from icekeeper.maintenance.pass_steps import DonePart, PassStart, record_outcome
from icekeeper.maintenance.run_pass import Turn
from icekeeper.policy import Operation
from icekeeper.policy.due import SweepMemory
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status, failed, refused, skipped, succeeded
from icekeeper.runtime import Runtime
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.store import ScheduleRun
from icekeeper.storage.paths import normalise
from support.command import CATALOG, Command, one_sentence
from support.deletes import commit_deletes, position_delete
from support.maintained_table import NAME, MaintainedTable, new_table, same_clock
from support.pipeline_deployment import Pipeline
from support.state_stores import IDENTITY

# Schedules of a policy over a real table: what is due runs under its own settings, and is remembered.

HOUR_MS = 3_600_000
HOURLY = {"schedules.hourly.interval": "1h", "schedules.hourly.operations": "compact"}
NIGHTLY = {
    "schedules.nightly.interval": "24h",
    "schedules.nightly.operations": "compact,rewrite_manifests",
    "schedules.nightly.strategy": "sort",
    "schedules.nightly.sort_order": "id",
    "schedules.nightly.min_input_files": "2",
    "schedules.nightly.min_manifests_to_rewrite": "2",
}
REST = {"operations": "compact,rewrite_position_deletes,rewrite_manifests"}


def properties(**more: str) -> dict[str, str]:
    return {f"icekeeper.{key}": value for key, value in {**REST, **HOURLY, **NIGHTLY, **more}.items()}


class Clock:
    now_ms = 4_000_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class Maintained:
    """A table with an hourly schedule that merges files, and a nightly one that sorts them."""

    def __init__(self, table: MaintainedTable) -> None:
        self.table, self.clock = table, Clock()
        self.runtime = Runtime(
            table.catalog,
            table.state,
            environment={"ICEKEEPER_TABLE_SETTINGS": "default,target_file_size_mb"},  # files of kilobytes
            clock=self.clock,
            store_clock=same_clock,
            sleep=table.waits.append,
        )

    def maintain(self, schedule: str | None = None, *, dry_run: bool = False, **settings: str) -> PassOutcome:
        return self.runtime.maintain(NAME, settings, LocalEngine(1), schedule=schedule, dry_run=dry_run)

    def proposal(self) -> Proposal | None:
        proposals = self.runtime.detect().proposals
        return proposals[0] if proposals else None


@pytest.fixture
def maintained(local_catalog: SqlCatalog, tmp_path: Path) -> Maintained:
    table = new_table(local_catalog, tmp_path, properties=properties())
    table.fill(3)
    return Maintained(table)


def told(outcome: PassOutcome) -> list[tuple[str, str | None, str]]:
    return [(part.operation.value, part.schedule, part.status.value) for part in outcome.operations]


def test_a_pass_runs_what_is_due_under_its_own_settings(maintained: Maintained) -> None:
    ids = maintained.table.readers_agree()
    planned = maintained.maintain(dry_run=True)
    outcome = maintained.maintain()
    assert [part[:2] for part in told(planned)] == [part[:2] for part in told(outcome)]
    assert told(outcome) == [
        ("compact", "hourly", "skipped"),  # three files are fewer than its min_input_files, the table's own
        ("compact", "nightly", "succeeded"),
        ("rewrite_manifests", "nightly", "succeeded"),
        ("rewrite_position_deletes", None, "skipped"),
    ]
    assert maintained.table.readers_agree() == ids
    assert "compact (nightly): compacted 3 files into 1" in outcome.summary
    document = outcome.to_json(lambda name, files: name)
    assert [part.get("schedule") for part in document["operations"]] == ["hourly", "nightly", "nightly", None]
    (record,) = maintained.table.state.history(maintained.runtime.table(NAME).memory(maintained.table.loaded).identity)
    assert (record.run_id, record.summary) == (outcome.run_id, outcome.summary)


def test_each_schedule_is_due_by_itself(maintained: Maintained) -> None:
    maintained.maintain()
    maintained.table.fill(6, start=10)
    maintained.clock.now_ms += HOUR_MS - 1
    early = maintained.maintain()
    assert told(early)[0] == ("rewrite_position_deletes", None, "skipped")
    assert {part.operation.value: part.reason for part in early.operations[1:]} == {
        "compact": "schedule hourly is due 2096-10-02T08:06:40Z; schedule nightly is due 2096-10-03T07:06:40Z",
        "rewrite_manifests": "schedule nightly is due 2096-10-03T07:06:40Z",
    }
    maintained.clock.now_ms += 1
    hourly = maintained.maintain()
    assert told(hourly)[0] == ("compact", "hourly", "succeeded")
    assert [schedule for _, schedule, _ in told(hourly)].count("nightly") == 0
    maintained.clock.now_ms += 23 * HOUR_MS
    assert {schedule for _, schedule, _ in told(maintained.maintain())} == {"hourly", "nightly", None}


def test_a_schedule_is_forced_and_a_dry_run_is_no_turn(maintained: Maintained) -> None:
    maintained.maintain(dry_run=True)
    first = maintained.maintain("nightly")
    assert told(first)[:2] == [("compact", "nightly", "succeeded"), ("rewrite_manifests", "nightly", "succeeded")]
    assert {part.schedule for part in first.operations} == {"nightly"}
    again = maintained.maintain("nightly")
    assert told(again)[0] == ("compact", "nightly", "skipped")
    assert [schedule for _, schedule, _ in told(maintained.maintain())].count("hourly") == 1


def test_operations_that_a_person_names_are_outside_of_all_schedules(maintained: Maintained) -> None:
    outcome = maintained.maintain(operations="compact", min_input_files="2")
    assert told(outcome) == [("compact", None, "succeeded")]
    assert {schedule for _, schedule, _ in told(maintained.maintain())} == {"hourly", "nightly", None}


def test_detection_proposes_what_is_due_and_not_what_was_idle(maintained: Maintained) -> None:
    found = maintained.proposal()
    assert found is not None
    # Both want to compact, and neither ever ran: one after the other.
    assert (found.schedules, found.only_schedules) == (("hourly",), True)
    assert found.reasons == ("schedule hourly has not run yet",)
    maintained.maintain()
    assert maintained.proposal() is None
    maintained.clock.now_ms += HOUR_MS
    # The hour's pass found nothing at a head that was then sorted: it is looked at once more, and then left alone.
    found = maintained.proposal()
    assert found is not None
    assert (found.schedules, found.reasons) == (("hourly",), ("schedule hourly is due, every 1h",))
    maintained.maintain()
    maintained.clock.now_ms += HOUR_MS
    assert maintained.proposal() is None
    maintained.table.append(77)
    found = maintained.proposal()
    assert found is not None
    assert found.schedules == ("hourly",)


@pytest.mark.parametrize(
    ("outcome", "is_done"),
    [
        (succeeded(Operation.COMPACT, "compacted"), True),
        (skipped(Operation.COMPACT, "nothing"), True),
        (refused(Operation.COMPACT, "danger"), True),
        (failed(Operation.COMPACT, "broke"), False),
    ],
)
def test_a_schedule_whose_operation_failed_stays_due(
    maintained: Maintained, outcome: OperationOutcome, is_done: bool
) -> None:
    state = maintained.table.state
    start = PassStart(IDENTITY, 5, 1000)
    scheduled = OperationOutcome(
        operation=outcome.operation, status=outcome.status, summary=outcome.summary, schedule="nightly"
    )
    done = PassOutcome(table="ns.t", catalog="C", run_id="r", dry_run=False, operations=(scheduled,))
    for finished_ms in (2000, 3000):  # a report that is repeated records the same
        record_outcome(
            state, start, done, [DonePart("nightly", "f", 500), DonePart("other", "f", 5)], "local", finished_ms
        )
    idle = outcome.status in (Status.SKIPPED, Status.REFUSED)
    run = ScheduleRun(schedule="nightly", counted_ms=1000, finished_ms=2000, snapshot_id=5, fingerprint="f", idle=idle)
    assert state.schedules.of_table(IDENTITY) == ({"nightly": run} if is_done else {})
    assert state.last_seen(IDENTITY) is None  # nothing was seen of what no schedule names


def test_what_a_clock_that_was_ahead_has_recorded_is_replaced(maintained: Maintained) -> None:
    schedules = maintained.table.state.schedules
    ahead = ScheduleRun(
        schedule="hourly", counted_ms=2**43, finished_ms=2**43, snapshot_id=None, fingerprint="", idle=False
    )
    identity = maintained.runtime.table(NAME).memory(maintained.table.loaded).identity
    schedules.record(identity, ahead)
    maintained.maintain()
    assert schedules.of_table(identity)["hourly"].counted_ms == maintained.clock.now_ms < 2**43


MERGED = {
    "schedules.hourly.interval": "1h",
    "schedules.hourly.operations": "compact",
    "schedules.hourly.min_input_files": "2",
}
ZORDERED = {
    "schedules.nightly.interval": "24h",
    "schedules.nightly.operations": "compact",
    "schedules.nightly.strategy": "zorder",
    "schedules.nightly.zorder_columns": "id,part",
    "schedules.nightly.min_input_files": "2",
}


@pytest.mark.parametrize("is_sorted", [True, False])
def test_what_one_schedule_has_ordered_another_that_merges_leaves(
    local_catalog: SqlCatalog, tmp_path: Path, *, is_sorted: bool
) -> None:
    """Each turn rewrote all that the other had written, in a table with a sort order
    (rule: keep-order-of-other-schedules)."""
    kept = {f"icekeeper.{key}": value for key, value in {**REST, **MERGED, **ZORDERED}.items()}
    maintained = Maintained(new_table(local_catalog, tmp_path, properties=kept))
    table = maintained.table
    if is_sorted:
        with table.table.update_sort_order() as update:
            update.asc("id", IdentityTransform())

    def merged(schedule: str) -> int:
        return int(maintained.maintain(schedule).operations[0].metrics.get("compact.files_merged", 0))

    table.fill(3)
    assert merged("hourly") == 3
    table.fill(1, start=10)
    assert [merged("nightly"), merged("hourly"), merged("nightly")] == [2, 0, 0]
    (ordered,) = table.live_files()
    table.fill(4, start=20)
    assert merged("hourly") == 4
    assert ordered in table.live_files()
    assert [merged("hourly"), ordered in table.live_files()] == [0, True]
    table.fill(1, start=30)
    merged("nightly")
    assert [merged("hourly"), merged("nightly"), merged("hourly")] == [0, 0, 0]
    assert len(table.readers_agree()) == 18


def test_deletes_of_ordered_files_wait_for_the_schedule_that_orders(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    kept = {f"icekeeper.{key}": value for key, value in {**REST, **MERGED, **ZORDERED}.items()}
    maintained = Maintained(new_table(local_catalog, tmp_path, properties={**kept, "format-version": "2"}))
    table = maintained.table
    table.fill(2)
    maintained.maintain("nightly")
    (ordered,) = [file.file_path for file in table.data_files()]
    content, more = position_delete(ordered, 0, "p")
    commit_deletes(table, [(content, {**more, "partition": ()})])
    assert maintained.maintain("hourly").operations[0].status is Status.SKIPPED
    assert sum(table.live_deletes().values()) == 1
    assert maintained.maintain("nightly").operations[0].status is Status.SUCCEEDED
    assert sum(table.live_deletes().values()) == 0
    assert len(table.readers_agree()) == 3


def test_no_schedule_cuts_what_another_merges_to_a_larger_target(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Files far above the target are cut only where somebody set the target (rule: cut-only-with-explicit-target)."""
    targets = {"schedules.hourly.target_file_size_mb": "0.001", "schedules.hourly.expected_scans": "none"}
    daily = {"schedules.daily.interval": "24h", "schedules.daily.operations": "compact"}
    properties = {**REST, **MERGED, **targets, **daily, "write.parquet.row-group-limit": "1"}
    kept = {key if key.startswith("write.") else f"icekeeper.{key}": value for key, value in properties.items()}
    maintained = Maintained(new_table(local_catalog, tmp_path, properties=kept))
    maintained.table.append(*range(14))
    assert maintained.table.data_files()[0].file_size_in_bytes > 2000
    assert maintained.maintain("hourly").operations[0].status is Status.SKIPPED
    only = {f"icekeeper.schedules.daily.{key}": "none" for key in ("interval",)}
    maintained.table.table.transaction().set_properties(only).commit_transaction()
    assert maintained.maintain("hourly").operations[0].status is Status.SUCCEEDED
    assert len(maintained.table.data_files()) > 1


def test_the_pipeline_carries_schedules_from_the_proposal_to_the_state(
    local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    table = new_table(
        local_catalog, tmp_path, properties=properties(min_input_files="2", operations="compact,expire_snapshots")
    )
    table.fill(3)
    pipeline = Pipeline(table, tmp_path)
    ids = table.readers_agree()
    _, (item,) = pipeline.detect()
    assert (item.schedules, item.only_schedules) == (("hourly",), False)
    plan = pipeline.plan(item)
    assert plan.schedules.keys() == {"hourly"}
    assert plan.schedules["hourly"].operations == ("compact",)
    assert "rewrite_manifests" not in plan.routes  # nightly's alone, which waits for the next run
    answers = pipeline.run(item, *plan.routes)
    assert answers["compact"] == "succeeded: compacted 3 files into 1 (across 1 bins)"
    pipeline.report()
    operations = pipeline.document(item, "pass.json")["operations"]
    assert {part["operation"]: part.get("schedule") for part in operations}["compact"] == "hourly"
    assert table.state.schedules.of_table(item.identity).keys() == {"hourly"}
    assert table.readers_agree() == ids
    table.fill(2, start=10)
    ids = table.readers_agree()
    # The next run takes the other schedule, which sorts.
    pipeline.clock.now_ms += 1000
    _, (item,) = pipeline.detect("run-2")
    assert (item.schedules, "compact" in item.reasons) == (("nightly",), False)
    pipeline.plan(item, "run-2")
    told = pipeline.run(item, "compact", run_id="run-2")
    assert told["compact"] == "succeeded: compacted 3 files into 1 (across 1 bins)"
    assert table.readers_agree() == ids


def test_a_schedule_is_forced_by_the_input_of_the_state_machine(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path, properties=properties())
    table.fill(3)
    pipeline = Pipeline(table, tmp_path)
    item, plan = pipeline.begin(schedule="nightly")
    assert (item.schedules, item.only_schedules) == (("nightly",), True)
    assert set(plan.routes) == {"compact", "rewrite_manifests"}
    pipeline.run(item, "compact")
    pipeline.report()
    assert table.state.last_seen(item.identity) is None
    # One of its steps never ended: the schedule is not done.
    assert table.state.schedules.of_table(item.identity) == {}


def test_the_command_shows_sets_forces_and_unsets_schedules(command: Command) -> None:
    command.table(appends=3)
    answer = command("policy", "set", "ns.t", *(f"{key}={value}" for key, value in NIGHTLY.items()), "--json")
    assert answer.code == 0
    shown = {key: one for key, one in answer.json["policy"].items() if key.startswith("schedules.")}
    assert shown["schedules.nightly.interval"] == {
        "value": "24h",
        "source": "table property icekeeper.schedules.nightly.interval",
    }
    assert shown.keys() == NIGHTLY.keys()
    (proposal,) = command("detect", "--json").json["proposals"]
    assert (proposal["schedules"], proposal["reasons"]) == (["nightly"], ["schedule nightly has not run yet"])
    unknown = command("maintain", "ns.t", "--schedule", "nightley")
    assert unknown.code == 2
    assert one_sentence(unknown.err).startswith("ns.t has no schedule 'nightley' (did you mean 'nightly'?)")
    forced = command("maintain", "ns.t", "--schedule", "nightly", "--engine", "local", "--json")
    assert [part["schedule"] for part in forced.json["operations"]] == ["nightly", "nightly"]
    assert forced.json["operations"][0]["status"] == "succeeded"
    planned = command("plan", "ns.t", "--json", "--engine", "local").json["operations"]
    assert {part["operation"]: part["reason"] for part in planned}["rewrite_manifests"].startswith(
        "schedule nightly is"
    )
    wrong = command("policy", "set", "ns.t", "schedules.nightly.interval=often")
    assert wrong.code == 2
    assert "write a time like 30m, 6h or 7d" in one_sentence(wrong.err)
    left = command("policy", "unset", "ns.t", "schedules.nightly.interval")
    assert left.code == 2
    assert "schedule nightly (from" in one_sentence(left.err)
    assert command("policy", "unset", "ns.t", *NIGHTLY).code == 0
    assert not any(key.startswith("schedules.") for key in command("policy", "show", "ns.t", "--json").json["policy"])


# Statistics over a real table: proposed when they are missing or old, read anew by no pass that nobody asked for.

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
    told = "9 rows changed since statistics were computed, 4.41 % of 204; they are computed anew from 10 % on"
    assert computed(table).reason == told
    assert computed(table, asked=True).summary == "computed statistics of 2 column(s) over 204 row(s)"
    # Appended files are cheap to read, so every pass does.
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
        told = item.model_copy(update={"forced": not is_proposed, "detected_ms": 2**43})
        pipeline.deployment.state.requests.file(MaintenanceRequest(identity=item.identity, requested_ms=1, settings={}))
        assert ("compute_statistics" in pipeline.plan(told, run_id).routes) is not is_proposed
    reason = pipeline.document(item, "plan.json", "run-proposed")["outcomes"]["compute_statistics"]["reason"]
    assert reason.startswith("9 rows changed since statistics were computed, 4.41 % of 204")


def test_a_schedule_that_names_statistics_computes_them_in_each_turn(table: MaintainedTable) -> None:
    nightly = {"schedules.nightly.interval": "24h", "schedules.nightly.operations": "compute_statistics"}
    for rows in (205, 204):
        turn = Turn(is_proposed=True)
        done = table.runtime.maintain(NAME, nightly, LocalEngine(1), schedule="nightly", turn=turn)
        assert [one.summary for one in done.operations] == [f"computed statistics of 2 column(s) over {rows} row(s)"]
        table.table.delete("id = 1001")


# A table is swept for orphans once in an interval; what a person asks for is swept at once
# (rule: only-whole-sweeps-count).

NEVER = "orphans were never looked for"
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
        """What a pass over orphans alone, that detection proposed or a person asked for, did about them."""
        turn = Turn(is_proposed=not asked)
        (outcome,) = self.runtime.maintain(NAME, {**SWEEP, **settings}, LocalEngine(1), turn=turn).operations
        return outcome

    def sweep_bucket(self, *, dry_run: bool = False) -> OperationOutcome:
        bucket = str(self.table.folder.parent)
        return self.runtime.sweep_bucket(bucket, {}, LocalEngine(1), dry_run=dry_run).tables["ns.t"]

    @property
    def memory(self) -> SweepMemory:
        identity = identity_of(self.table.catalog, self.table.loaded)
        return SweepMemory.of(self.table.state.schedules.of_table(identity))


@pytest.fixture
def swept(local_catalog: SqlCatalog, tmp_path: Path) -> Swept:
    table = new_table(local_catalog, tmp_path)
    table.append(1, 2)
    return Swept(table)


def test_a_table_with_nothing_but_orphans_is_proposed_and_then_left_alone_for_the_interval(swept: Swept) -> None:
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
    assert swept.proposed() == ("orphans were last looked for 24 hours ago; orphan_sweep_interval_hours is 24",)
    assert swept.sweep().summary == "removed 1 orphan file(s)"
    assert swept.memory == SweepMemory(swept_ms=swept.now_ms)


def test_a_busy_table_is_listed_once_a_day(swept: Swept) -> None:
    """Hour by hour, over any table: ``tests/property/test_fleet.py``."""
    began_ms, told = swept.now_ms, {}
    for hour in (0, 12, 24, 36):
        swept.now_ms = began_ms + hour * HOUR_MS
        swept.table.append(hour)
        told[hour] = swept.sweep().summary
    found = "removed 0 orphan file(s)"
    waits = "the last sweep was {} hours ago; orphan_sweep_interval_hours is 24"
    assert told == {0: found, 24: found} | {hour: waits.format(hour % 24) for hour in (12, 36)}


def test_what_a_person_asks_for_is_swept_at_once_and_counts(swept: Swept) -> None:
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


def test_a_sweep_that_was_refused_leaves_the_table_due(swept: Swept) -> None:
    swept.table.plant("data/crash.parquet")
    snapshot = swept.table.metadata.current_snapshot
    assert snapshot is not None
    manifest_list = Path(normalise(str(snapshot.manifest_list)))
    away = manifest_list.rename(manifest_list.with_suffix(".away"))
    for _ in range(2):  # every pass tries again
        assert swept.sweep().status is Status.REFUSED
        assert swept.memory == SweepMemory(tried_ms=swept.now_ms)
        assert swept.proposed() == ()  # for nothing else it is proposed for a while
    swept.now_ms += 6 * HOUR_MS
    assert swept.proposed() == (NEVER,)
    away.rename(manifest_list)
    assert swept.sweep().summary == "removed 1 orphan file(s)"
    assert swept.proposed() == ()


def test_sightings_of_a_quarantine_are_an_interval_apart(swept: Swept) -> None:
    """A pass that leaves the sweep out neither counts nor forgets."""
    swept.table.plant("data/crash.parquet")
    told = []
    for _ in range(3):
        told.append(swept.sweep(orphan_min_sightings="2").summary)
        swept.now_ms += 12 * HOUR_MS
    assert told == [
        "removed 0 orphan file(s)",
        "the last sweep was 12 hours ago; orphan_sweep_interval_hours is 24",
        "removed 1 orphan file(s)",
    ]


def test_icekeeper_run_sweeps_what_is_due_or_requested(command: Command) -> None:
    command.table(appends=3)
    run = ("run", "--once", "--engine", "local", "--set", "min_input_files=2")
    runtime = Runtime.open(CATALOG)
    identity = identity_of(runtime.catalog, runtime.catalog.load(NAME))

    def swept_ms() -> int | None:
        return SweepMemory.of(runtime.state.schedules.of_table(identity)).swept_ms

    assert "compacted 3 files into 1" in command(*run, catalog=CATALOG).out
    assert swept_ms() is None  # so young a table need not be swept
    runtime.state.requests.file(MaintenanceRequest(identity=identity, requested_ms=1, settings={}))
    assert "ns.t succeeded" in command(*run, catalog=CATALOG).out
    assert swept_ms() is not None


def test_the_pipeline_plans_a_sweep_that_is_due_and_no_other(local_catalog: SqlCatalog, tmp_path: Path) -> None:
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
    assert SweepMemory.of(state.schedules.of_table(item.identity)).swept_ms == pipeline.clock.now_ms

    pipeline.clock.now_ms += 3 * HOUR_MS
    pipeline.table.fill(3)
    _, (item,) = pipeline.detect("run-2")
    assert NEVER not in item.reasons
    plan = pipeline.plan(item, "run-2")
    assert ("remove_orphans" in plan.routes, plan.routes["compact"]) == (False, "glue")
    waits = "the last sweep was 3 hours ago; orphan_sweep_interval_hours is 24"
    assert pipeline.document(item, "plan.json", "run-2")["outcomes"]["remove_orphans"]["reason"] == waits
    # What a person asked for sweeps at once, by a request as by an execution of its own.
    state.requests.file(MaintenanceRequest(identity=item.identity, requested_ms=1, settings={}))
    pipeline.report("run-2")
    _, (asked,) = pipeline.detect("run-3")
    assert pipeline.plan(asked, "run-3").routes["remove_orphans"] == "function"
    assert pipeline.begin("run-4")[1].routes["remove_orphans"] == "function"
