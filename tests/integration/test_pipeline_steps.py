"""The pipeline's use cases over a real local table, in the order of the state machine."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from icekeeper.detection.proposal import FleetReport
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import LeaseHeld, LeaseLost, OperationRefused, PlanStale, PolicyError, StorageError
from icekeeper.machine.clock import system_clock
from icekeeper.operation_facts import STEPS
from icekeeper.pipeline import run_step as step_module
from icekeeper.pipeline.control_bucket import ControlBucket, table_folder
from icekeeper.pipeline.events import Failure, OperationEvent, ReportRunEvent, parse_event
from icekeeper.pipeline.glue_job import run_job
from icekeeper.pipeline.plan_table import MAX_ATTEMPTS
from icekeeper.pipeline.report_table import report_run
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.run_step import list_orphans
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.store import MaintenanceRequest
from icekeeper.storage.storage import Storage
from support.deletes import commit_deletes, position_delete
from support.maintained_table import ID_AND_PART, MaintainedTable, our_catalog
from support.pipeline_deployment import HOUR_MS, RUN, Pipeline, broken

# The pipeline's use cases over a real local table, in the order in which the state machine calls them.


def test_a_whole_pass_step_by_step(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    assert {step for step in STEPS if plan.routes[step] != "none"} == {
        *("compact", "expire_snapshots", "remove_orphans", "rewrite_manifests")  # there are no deletes to merge
    }
    assert set(plan.routes.values()) == {"none", "function"}
    rows = sorted(pipeline.table.table.scan().to_arrow().column("id").to_pylist())
    answers = {step: pipeline.run(item, plan, step) for step in STEPS if plan.routes[step] == "function"}
    assert answers["compact"] == {"status": "succeeded", "summary": "compacted 5 files into 1 (across 1 bins)"}
    report = pipeline.report(item, plan)
    assert report.status == "succeeded"
    assert release_table_lease(pipeline.deployment, RUN, item)
    assert sorted(pipeline.table.table.scan().to_arrow().column("id").to_pylist()) == rows
    assert pipeline.journal(item) == [(RUN, "succeeded", report.summary)]
    assert report.outcome is not None
    assert report.outcome.metrics["compact.files_merged"] == 5
    assert [one.operation for one in report.outcome.operations] == [
        *(Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.EXPIRE_SNAPSHOTS),
        *(Operation.REMOVE_ORPHANS, Operation.REWRITE_MANIFESTS),
    ]
    # A second pass finds nothing to compact, which its plan knows already.
    item, plan = pipeline.begin("run-2")
    assert plan.routes["compact"] == "none"
    assert pipeline.document(item, "plan.json", "run-2")["outcomes"]["compact"]["reason"] == (
        "no files eligible for compaction"
    )


def test_a_file_that_cannot_be_read_holds_up_no_step(pipeline: Pipeline) -> None:
    """All steps succeed, the next run has none for it, and detection proposes nothing
    (rule: leave-out-unreadable-files, retry-unreadable-files-weekly)."""
    bad = pipeline.table.data_files()[2].file_path
    Path(bad.removeprefix("file://")).unlink()
    item, plan = pipeline.begin()
    answers = {step: pipeline.run(item, plan, step) for step in STEPS if plan.routes[step] == "function"}
    told = f"left 1 file(s) out: {bad} does not exist"
    assert answers["compact"] == {
        "status": "succeeded",
        "summary": f"compacted 4 files into 1 (across 1 bins); {told}",
    }
    assert {answer["status"] for answer in answers.values()} == {"succeeded"}
    assert pipeline.report(item, plan).status == "succeeded"
    assert release_table_lease(pipeline.deployment, RUN, item)
    assert pipeline.detect("run-2") == ({**pipeline.detect("run-2")[0]}, [])
    item, plan = pipeline.begin("run-3")
    assert plan.routes["compact"] == "none"
    assert pipeline.document(item, "plan.json", "run-3")["outcomes"]["compact"]["reason"] == (
        f"no files eligible for compaction (1 file(s) are left alone: {bad} does not exist)"
    )


def test_a_step_that_ended_is_not_done_again(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    first = pipeline.run(item, plan, "compact")
    snapshots = len(pipeline.table.table.snapshots())
    pipeline.table.fill(5, start=50)
    assert pipeline.run(item, plan, "compact") == first
    assert len(pipeline.table.table.snapshots()) == snapshots + 5


def test_a_crash_between_commit_and_answer_is_told_once(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    item, plan = pipeline.begin()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step_module, "_finish", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(item, plan, "compact")
    landed = pipeline.table.table.current_snapshot()
    assert landed is not None
    answer = pipeline.run(item, plan, "compact")
    assert answer == {"status": "succeeded", "summary": f"committed by an earlier attempt: {landed.snapshot_id}"}
    assert pipeline.table.table.current_snapshot() == landed
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    assert report.outcome.metrics["compact.files_merged"] == 5
    assert report.outcome.metrics["compact.files_written"] == 1
    pipeline.report(item, plan)
    assert len(pipeline.journal(item)) == 1


def test_one_run_at_a_time_maintains_a_table(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    with pytest.raises(LeaseHeld, match=r"^ns\.t is leased by run-1 until "):
        acquire_table_lease(pipeline.deployment, "run-2", item)
    pipeline.clock.now_ms += 10 * HOUR_MS
    acquire_table_lease(pipeline.deployment, "run-2", item)
    with pytest.raises(LeaseLost):
        pipeline.run(item, plan, "compact")
    assert not release_table_lease(pipeline.deployment, RUN, item)


def test_a_step_that_loses_its_lease_at_work_commits_nothing(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    before = pipeline.table.table.current_snapshot()

    def oversleep(what: str, done: int, total: int) -> None:
        pipeline.clock.now_ms += 10 * HOUR_MS
        if done == total:
            acquire_table_lease(pipeline.deployment, "run-2", item)

    answer = pipeline.run(item, plan, "compact", progress=oversleep)
    assert answer["status"] == "refused"
    assert "run-2 took it" in answer["summary"]
    assert pipeline.table.table.current_snapshot() == before


def test_a_policy_that_changes_makes_the_plan_stale(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    with pipeline.table.table.transaction() as change:
        change.set_properties({"icekeeper.maintenance_enabled": "false"})
    with pytest.raises(PlanStale, match=r"policy of ns\.t changed"):
        pipeline.run(item, plan, "compact")
    again = pipeline.plan(item, attempt=2)
    assert {step for step, route in again.routes.items() if route != "none"} == set()
    assert pipeline.report(item, again).status == "succeeded"


def test_planning_ends_after_three_attempts(pipeline: Pipeline) -> None:
    item, _ = pipeline.begin()
    plan = pipeline.plan(item, attempt=MAX_ATTEMPTS + 1)
    assert plan.routes["compact"] == "none"
    assert pipeline.report(item, plan).status == "failed"


def test_what_is_done_is_not_planned_again(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    first = pipeline.document(item, "plan.json")
    pipeline.run(item, plan, "compact")
    again = pipeline.plan(item, attempt=2)
    assert again.routes["compact"] == "none"
    assert again.routes["expire_snapshots"] == "function"
    assert pipeline.document(item, "plan.json")["head_id"] == first["head_id"]
    assert pipeline.report(item, again, expire_snapshots=Failure(Error="StorageError", Cause="")).status == "partial"


def test_another_plan_than_the_one_made_is_refused(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    path = pipeline.control / plan.key
    path.write_text(path.read_text().replace('"attempt":1', '"attempt":2'))
    with pytest.raises(OperationRefused, match="its digest differs"):
        pipeline.run(item, plan, "compact")


def test_a_table_dropped_since_it_was_detected(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect(table="ns.t")[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    pipeline.table.pyiceberg.drop_table("ns.t")
    plan = pipeline.plan(item)
    assert set(plan.routes.values()) == {"none"}
    report = pipeline.report(item, plan)
    assert (report.status, report.summary) == ("skipped", "ns.t was dropped or replaced since it was detected")
    assert pipeline.journal(item) == []


def test_a_table_replaced_since_it_was_planned(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    pipeline.table.pyiceberg.drop_table("ns.t")
    pipeline.table.pyiceberg.create_table("ns.t", schema=ID_AND_PART)
    with pytest.raises(PlanStale, match="replaced by another table"):
        pipeline.run(item, plan, "compact")


def test_orphans_are_listed_by_one_step_and_removed_by_the_next(pipeline: Pipeline) -> None:
    orphan = Path(pipeline.table.table.location().removeprefix("file://")) / "data" / "left.parquet"
    orphan.write_bytes(b"left")
    item, plan = pipeline.begin()
    event = parse_event(OperationEvent, {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"})
    listed = list_orphans(pipeline.deployment, event, LocalEngine(1))
    assert listed == {"status": "succeeded", "summary": "would remove 1 orphan file(s)", "count": 1}
    assert orphan.exists()
    second = orphan.with_name("later.parquet")
    second.write_bytes(b"later")
    assert pipeline.run(item, plan, "remove_orphans")["summary"] == "removed 1 orphan file(s)"
    assert (orphan.exists(), second.exists()) == (False, True)
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    assert report.outcome.metrics["remove_orphans.files_listed"] > 10


def test_what_the_listing_leaves_to_a_person_makes_the_removal_a_refusal(pipeline: Pipeline) -> None:
    """A copy of a missing file (rule: keep-possible-last-copies): the removal is given the other orphans only, and
    knows of no listing."""
    live = Path(pipeline.table.table.inspect.files().column("file_path").to_pylist()[0].removeprefix("file://"))
    copy = live.rename(live.with_name("copy.parquet"))
    (live.parent / "left.parquet").write_bytes(b"left")
    item, plan = pipeline.begin()
    event = parse_event(OperationEvent, {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"})
    listed = list_orphans(pipeline.deployment, event, LocalEngine(1))
    assert (listed["status"], listed["count"]) == ("refused", 1)
    removal = pipeline.run(item, plan, "remove_orphans")
    assert removal["status"] == "refused"
    assert removal["summary"].endswith("; removed 1 orphan file(s)")
    assert (copy.exists(), (live.parent / "left.parquet").exists()) == (True, False)
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    assert report.outcome.metrics["remove_orphans.files_like_missing"] == 1


def test_the_listing_never_asks_whether_it_could_delete(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no right to; and asking would be denied, which looks as if the storage knew no deletion."""
    orphan = Path(pipeline.table.table.location().removeprefix("file://")) / "data" / "left.parquet"
    orphan.write_bytes(b"left")
    item, plan = pipeline.begin()
    event = parse_event(OperationEvent, {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"})
    monkeypatch.setattr(Storage, "can_delete", lambda *_: False)
    assert list_orphans(pipeline.deployment, event, LocalEngine(1))["count"] == 1
    removal = pipeline.run(item, plan, "remove_orphans")
    assert removal["status"] == "skipped"
    assert "objects cannot be deleted in this storage" in removal["summary"]
    assert orphan.exists()


def test_an_orphan_that_is_referenced_meanwhile_stays(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    live = pipeline.table.table.inspect.files().column("file_path").to_pylist()[0]
    folder = pipeline.control / table_folder(RUN, item.identity.spelling)
    (folder / "list_orphans.json").write_text(json.dumps({"plan": plan.digest, "paths": [live], "metrics": {}}))
    assert pipeline.run(item, plan, "remove_orphans")["summary"] == "removed 0 orphan file(s)"
    assert Path(live.removeprefix("file://")).exists()


def test_no_orphans_need_no_removal(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    event = parse_event(OperationEvent, {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"})
    assert list_orphans(pipeline.deployment, event, LocalEngine(1))["count"] == 0
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    sweep = next(one for one in report.outcome.operations if one.operation is Operation.REMOVE_ORPHANS)
    assert (sweep.status, sweep.summary) == (Status.SUCCEEDED, "removed 0 orphan file(s)")


def test_steps_do_not_look_for_the_table_buckets_again(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run recorded where its table is; a fleet may have hundreds of buckets."""
    item, plan = pipeline.begin()
    pipeline.deployment = pipeline.open(ICEKEEPER_TABLE_BUCKETS="all")

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("listed")

    monkeypatch.setattr("icekeeper.pipeline.deployment.fleet_catalogs", fail)
    assert pipeline.run(item, plan, "compact")["status"] == "succeeded"


# A person's request for a pass: claimed once it is planned, kept while it is not served, answered if it cannot be.


def requested(pipeline: Pipeline, requested_ms: int, **settings: str) -> MaintenanceRequest:
    """A request for the table, filed."""
    request = MaintenanceRequest(identity=pipeline.identity, requested_ms=requested_ms, settings=settings)
    pipeline.deployment.state.requests.file(request)
    return request


def pending(pipeline: Pipeline) -> tuple[MaintenanceRequest, ...]:
    return pipeline.deployment.state.requests.pending()


def test_a_request_is_claimed_once_its_plan_is_there(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before leaves it to the next run; one between plan and claim is made good by the repetition."""
    request = requested(pipeline, 1, operations="compact")
    (item,) = pipeline.detect(table="ns.t", operations="compact")[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    store = type(pipeline.deployment.state.requests)
    with monkeypatch.context() as patch:
        patch.setattr(ControlBucket, "write", broken)
        with pytest.raises(StorageError):
            pipeline.plan(item)
    assert pending(pipeline) == (request,)
    with monkeypatch.context() as patch:
        patch.setattr(store, "claim", broken)
        with pytest.raises(StorageError):
            pipeline.plan(item)
    assert pending(pipeline) == (request,)
    pipeline.plan(item)
    assert pending(pipeline) == ()


def test_what_is_requested_during_a_pass_stays_for_the_next(pipeline: Pipeline) -> None:
    requested(pipeline, 1)
    item, _ = pipeline.begin()
    assert pending(pipeline) == ()
    newer = requested(pipeline, 2)
    pipeline.plan(item, attempt=2)
    assert pending(pipeline) == (newer,)


def test_a_request_refreshed_while_it_is_planned_stays(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    requested(pipeline, 1)
    write, newer = ControlBucket.write, []

    def refresh(self: ControlBucket, key: str, document: Any) -> str:
        if key.endswith("/plan.json"):
            newer.append(requested(pipeline, 2))
        return write(self, key, document)

    monkeypatch.setattr(ControlBucket, "write", refresh)
    pipeline.begin()
    assert pending(pipeline) == tuple(newer)


def test_a_pass_with_other_settings_does_not_serve_a_request(pipeline: Pipeline) -> None:
    request = requested(pipeline, 1, operations="expire_snapshots")
    pipeline.begin(operations="compact")
    assert pending(pipeline) == (request,)


@pytest.mark.parametrize("happens", ["dropped", "wrong settings"])
def test_a_request_that_cannot_be_served_is_answered_once(pipeline: Pipeline, happens: str) -> None:
    settings = {} if happens == "dropped" else {"min_input_files": "2"}
    requested(pipeline, 1, **settings)
    (item,) = pipeline.detect(table="ns.t", settings=settings)[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    if happens == "dropped":
        pipeline.table.pyiceberg.drop_table("ns.t")
        pipeline.plan(item)
    else:
        with pipeline.table.table.transaction() as transaction:
            transaction.set_properties({"icekeeper.max_snapshots_to_keep": "few"})
        with pytest.raises(PolicyError):
            pipeline.plan(item)
    stored = pipeline.deployment.state.requests.pending()
    assert stored == ()


# Which step goes to a Glue job: large work, and what was too much for a function before.


def test_large_work_goes_to_glue(pipeline: Pipeline) -> None:
    pipeline.deployment = pipeline.open(
        ICEKEEPER_SMALL_COMPACTION_MB="0", ICEKEEPER_SMALL_MANIFESTS="4", ICEKEEPER_SMALL_ORPHANS="4"
    )
    _, plan = pipeline.begin()
    assert {step for step, route in plan.routes.items() if route == "glue"} == {
        *("compact", "remove_orphans", "rewrite_manifests")
    }


@pytest.mark.slow
@pytest.mark.usefixtures("spark_session")  # a Java of its own would have no Iceberg for later tests
def test_a_glue_job_does_the_step_that_its_arguments_name(pipeline: Pipeline) -> None:
    pipeline.clock.now_ms = system_clock()  # the job has no other
    item, plan = pipeline.begin()
    arguments = ["--plan-key", plan.key, "--plan-digest", plan.digest, "--operation", "compact", "--run-id", RUN]
    arguments += ["--control-bucket", str(pipeline.control), "--state", pipeline.environment["ICEKEEPER_STATE"]]
    allowed = frozenset({Operation.COMPACT})
    assert run_job([*arguments, "--JOB_NAME", "compact"], allowed) == 0
    assert pipeline.document(item, "compact.json")["summary"] == "compacted 5 files into 1 (across 1 bins)"
    digest = arguments.index("--plan-digest") + 1
    assert run_job([*arguments[:digest], "0" * 64, *arguments[digest + 1 :]], allowed) == 1


@pytest.mark.parametrize(
    "error", ["Sandbox.Timedout", "States.Timeout", "Runtime.ExitError", "Runtime.OutOfMemory", "Lambda.Unknown"]
)
def test_what_was_too_much_for_a_function_goes_to_glue_from_then_on(pipeline: Pipeline, error: str) -> None:
    item, plan = pipeline.begin()
    assert (plan.routes["compact"], plan.routes["remove_orphans"]) == ("function", "function")
    pipeline.report(item, plan, compact=Failure(Error=error))
    again = pipeline.plan(item)
    assert {step for step, route in again.routes.items() if route == "glue"} == {"compact"}
    pipeline.report(item, again, remove_orphans=Failure(Error=error), expire_snapshots=Failure(Error=error))
    routes = pipeline.plan(item).routes
    assert {step for step, route in routes.items() if route == "glue"} == {"compact", "remove_orphans"}
    assert routes["expire_snapshots"] == "function"  # there is no job that does it


def test_a_failure_of_another_kind_stays_where_it_was(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    pipeline.report(item, plan, compact=Failure(Error="StorageError"))
    assert pipeline.plan(item).routes["compact"] == "function"
    # A job that takes too long is no news about functions.
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="0")
    pipeline.report(item, pipeline.plan(item), compact=Failure(Error="States.Timeout"))
    pipeline.deployment = pipeline.open()
    assert pipeline.plan(item).routes["compact"] == "function"
    assert not (pipeline.control / "runs" / "outgrown").exists()


def test_a_damaged_note_of_what_was_too_much_is_none(pipeline: Pipeline) -> None:
    item, _ = pipeline.begin()
    note = pipeline.control / f"{table_folder('outgrown', item.identity.spelling)}.json"
    note.parent.mkdir(parents=True)
    for damaged in ("{", "{}", "7"):
        note.write_text(damaged)
        assert pipeline.plan(item).routes["compact"] == "function"


# The pipeline's scan: what it proposes, and where the next one goes on.


def test_a_scan_proposes_what_needs_work_and_what_was_requested(pipeline: Pipeline) -> None:
    answer, items = pipeline.detect()
    assert answer["reason"] == "1 of 1 table(s) need maintenance"
    assert [(item.table, item.catalog, item.forced) for item in items] == [("ns.t", "local", False)]
    report_run(pipeline.deployment, ReportRunEvent(run_id=RUN))
    request = MaintenanceRequest(identity=items[0].identity, requested_ms=1, settings={"operations": "compact"})
    pipeline.deployment.state.requests.file(request)
    (asked,) = pipeline.detect("run-3")[1]
    assert (asked.forced, asked.priority, dict(asked.settings)) == (True, 1.0, {"operations": "compact"})
    acquire_table_lease(pipeline.deployment, "run-3", asked)
    plan = pipeline.plan(asked, "run-3")
    assert {step for step, route in plan.routes.items() if route != "none"} == {"compact"}
    assert pipeline.deployment.state.requests.pending() == ()


def test_a_scan_goes_on_where_the_last_one_stopped(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, str] | None] = []

    def stops(*arguments: Any, cursor: tuple[str, str] | None, **options: Any) -> FleetReport:
        given.append(cursor)
        return FleetReport(scanned=1, listed=2, proposals=(), skipped=(), cursor=("local", "ns.t"), not_reached=1)

    monkeypatch.setattr("icekeeper.pipeline.detect_tables.detect", stops)
    pipeline.detect()
    pipeline.detect("run-2")
    cursor = pipeline.control / "detection" / "cursor.json"
    for damaged in ("", '{"after": ["loc', "[]", "{}", '{"after": "ns.t"}', '{"after": ["ns.t"]}', '{"after": null}'):
        cursor.write_text(damaged)
        pipeline.detect("run-3")
    assert given == [None, ("local", "ns.t"), *[None] * 7]


def test_why_each_table_was_proposed_or_not_can_be_read(pipeline: Pipeline) -> None:
    pipeline.table.create_beside("ns.quiet", str(pipeline.table.folder.parent / "quiet"))
    pipeline.clock.now_ms = system_clock()  # a table so young need not be swept
    pipeline.detect()
    told = json.loads((pipeline.control / "runs" / RUN / "detection.json").read_text())
    assert [one["proposal"]["table"] for one in told["proposals"]] == ["ns.t"]
    assert told["skipped"] == [
        {
            "catalog": "local",
            "table": "ns.quiet",
            "reason": "no current snapshot",
            "is_error": False,
            "warning": None,
        }
    ]


def test_a_catalog_that_does_not_answer_does_not_stop_the_others(pipeline: Pipeline) -> None:
    path = Path(pipeline.environment["ICEKEEPER_CATALOG_FILE"])
    path.write_text(path.read_text() + "  broken:\n    type: rest\n    uri: http://127.0.0.1:9/\n")
    _, items = pipeline.detect()
    assert [item.catalog for item in items] == ["local"]


# Where the manifest list has no deletes, the plan tells that there are none to merge, and no step is invoked.

MERGE = "rewrite_position_deletes"


def test_without_deletes_the_plan_says_so(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    assert plan.routes[MERGE] == "none"
    outcome = pipeline.document(item, "plan.json")["outcomes"][MERGE]
    assert (outcome["status"], outcome["reason"]) == ("skipped", "no position delete files eligible for merging")
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    assert MERGE in [one.operation.value for one in report.outcome.operations]


def test_with_deletes_the_step_looks_at_them(pipeline: Pipeline) -> None:
    path = pipeline.table.table.inspect.files()["file_path"][0].as_py()
    content, more = position_delete(path, 0, "")
    commit_deletes(pipeline.table, [(content, {**more, "partition": ()})])
    assert pipeline.begin()[1].routes[MERGE] != "none"


# One moment for a whole pass: what ``now()`` in its filter means does not change from step to step.

TODAY = date(2096, 10, 2)
YESTERDAY = TODAY - timedelta(days=1)
MIDNIGHT = datetime(2096, 10, 3, tzinfo=UTC)
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))


class DatedTable(MaintainedTable):
    def add(self, files: int, day: date) -> None:
        for number in range(files):
            self.table.append(pa.table({"id": pa.array([number], pa.int64()), "day": pa.array([day], pa.date32())}))

    def files_by_day(self) -> dict[date, int]:
        """How many files each day has."""
        days = [date(1970, 1, 1) + timedelta(days=int(file.partition[0] or 0)) for file in self.data_files()]
        return {day: days.count(day) for day in days}


@pytest.fixture
def pipeline_of_days(local_catalog: SqlCatalog, tmp_path: Path) -> Pipeline:
    table = DatedTable(our_catalog(tmp_path), tmp_path, pyiceberg=local_catalog)
    table.create(SCHEMA, partition_spec=SPEC)
    for day in (YESTERDAY, TODAY):
        table.add(2, day)
    return Pipeline(table, tmp_path)


def test_a_step_after_midnight_works_on_the_day_of_its_plan(pipeline_of_days: Pipeline) -> None:
    table = pipeline_of_days.table
    assert isinstance(table, DatedTable)
    pipeline_of_days.clock.now_ms = int(MIDNIGHT.timestamp() * 1000) - 1000
    item, plan = pipeline_of_days.begin(settings={"where": "day < current_date"}, operations="compact")
    assert pipeline_of_days.document(item, "plan.json")["started_ms"] == pipeline_of_days.clock.now_ms
    pipeline_of_days.clock.now_ms += 60_000
    again = pipeline_of_days.plan(item, attempt=2)
    assert pipeline_of_days.document(item, "plan-2.json")["started_ms"] == pipeline_of_days.clock.now_ms - 60_000
    answer = pipeline_of_days.run(item, again, "compact")
    assert answer["summary"] == "compacted 2 files into 1 (across 1 bins)"
    assert table.files_by_day() == {YESTERDAY: 1, TODAY: 2}
    # The next run has a moment of its own.
    assert release_table_lease(pipeline_of_days.deployment, RUN, item)
    item, plan = pipeline_of_days.begin("run-2", settings={"where": "day < current_date"}, operations="compact")
    pipeline_of_days.run(item, plan, "compact", "run-2")
    assert table.files_by_day() == {YESTERDAY: 1, TODAY: 1}
