"""The pipeline's use cases over a real local table, in the order in which the state machine calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from icekeeper.clock import system_clock
from icekeeper.detection.proposal import FleetReport
from icekeeper.engines.local import LocalEngine
from icekeeper.errors import LeaseHeld, LeaseLost, OperationRefused, PlanStale, PolicyError, StorageError
from icekeeper.operation_facts import STEPS
from icekeeper.pipeline import run_step as step_module
from icekeeper.pipeline.control_bucket import ControlBucket, table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import (
    DetectEvent,
    Failure,
    OperationEvent,
    ReportRunEvent,
    TableResult,
    parse_event,
)
from icekeeper.pipeline.glue_job import run_job
from icekeeper.pipeline.plan_table import MAX_ATTEMPTS
from icekeeper.pipeline.report_run import report_run
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.run_step import list_orphans
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.storage.storage import Storage
from support.local import LocalTable
from support.pipeline_deployment import HOUR_MS, RUN, Pipeline, broken


def test_a_whole_pass_step_by_step(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    assert {step for step in STEPS if plan.routes[step] != "none"} == {
        *("compact", "rewrite_position_deletes", "expire_snapshots", "remove_orphans", "rewrite_manifests"),
        "clean_staged",
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
    assert {step for step, route in again.routes.items() if route != "none"} == {"clean_staged"}
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
    pipeline.table.pyiceberg.create_table("ns.t", schema=LocalTable.SCHEMA)
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


@pytest.mark.parametrize("error", ["Sandbox.Timedout", "States.Timeout", "Runtime.ExitError", "Runtime.OutOfMemory"])
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
    assert {step for step, route in plan.routes.items() if route != "none"} == {"compact", "clean_staged"}
    assert pipeline.deployment.state.requests.pending() == ()


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
    pipeline.detect()
    told = json.loads((pipeline.control / "runs" / RUN / "detection.json").read_text())
    assert [one["proposal"]["table"] for one in told["proposals"]] == ["ns.t"]
    assert told["skipped"] == [
        {"catalog": "local", "table": "ns.quiet", "reason": "no current snapshot", "is_error": False}
    ]


def test_steps_do_not_look_for_the_table_buckets_again(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run recorded where its table is; a fleet may have hundreds of buckets."""
    item, plan = pipeline.begin()
    pipeline.deployment = pipeline.open(ICEKEEPER_TABLE_BUCKETS="all")

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("listed")

    monkeypatch.setattr("icekeeper.pipeline.deployment.fleet_catalogs", fail)
    assert pipeline.run(item, plan, "compact")["status"] == "succeeded"


def test_a_catalog_that_does_not_answer_does_not_stop_the_others(pipeline: Pipeline) -> None:
    path = Path(pipeline.environment["ICEKEEPER_CATALOG_FILE"])
    path.write_text(path.read_text() + "  broken:\n    type: rest\n    uri: http://127.0.0.1:9/\n")
    _, items = pipeline.detect()
    assert [item.catalog for item in items] == ["local"]


def test_wrong_inputs_are_told_by_their_field(pipeline: Pipeline) -> None:
    with pytest.raises(PolicyError, match=r"^malformed event: input\.table: 'events' is not a table name"):
        parse_event(DetectEvent, {"run_id": RUN, "input": {"table": "events"}})
    with pytest.raises(PolicyError, match=r"^malformed event: input\.tabel: Extra inputs are not permitted$"):
        parse_event(DetectEvent, {"run_id": RUN, "input": {"tabel": "ns.t"}})
    with pytest.raises(PolicyError, match=r"no table ns\.unknown"):
        pipeline.detect(table="ns.unknown")
    with pytest.raises(PolicyError, match="has no catalog 'elsewhere'; it has: local"):
        pipeline.detect(table="ns.t", catalog="elsewhere")
    with pytest.raises(PolicyError, match="unknown policy key"):
        pipeline.detect(table="ns.t", settings={"min_input_flies": "1"})
    with pytest.raises(PolicyError, match="ICEKEEPER_CONTROL_BUCKET is not set"):
        Deployment.open({})


def test_a_failed_operation_is_told_in_words(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    cause = json.dumps({"errorMessage": "s3://lake/x timed out", "errorType": "StorageError", "stackTrace": ["…"]})
    pipeline.run(item, plan, "expire_snapshots")
    report = pipeline.report(
        item,
        plan,
        compact=Failure(Error="StorageError", Cause=cause),
        remove_orphans=Failure(Error="OperationRefused", Cause="no"),
    )
    assert report.status == "partial"
    assert report.outcome is not None
    told = {one.operation.value: (one.status.value, one.summary) for one in report.outcome.operations}
    assert told["compact"] == ("failed", "StorageError: s3://lake/x timed out")
    assert told["remove_orphans"] == ("refused", "OperationRefused: no")
    assert told["rewrite_manifests"] == ("failed", "it did not end: nothing is known of what became of it")
    assert pipeline.journal(item)[0][1] == "partial"
    assert pipeline.report(item, None, lease=Failure(Error="StorageError", Cause="x")).summary == (
        "lease: StorageError: x"
    )


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "succeeded"),
        (["succeeded", "skipped"], "succeeded"),
        (["succeeded", "failed"], "partial"),
        (["partial"], "partial"),
        (["failed", "refused"], "failed"),
        (["refused"], "refused"),
    ],
)
def test_how_a_run_ended(pipeline: Pipeline, statuses: list[str], expected: str) -> None:
    tables = tuple(parse_event(TableResult, {"table": "ns.t", "status": status}) for status in statuses)
    report = report_run(pipeline.deployment, ReportRunEvent(run_id=RUN, tables=tables))
    assert report["status"] == expected
    stored = json.loads((pipeline.control / "runs" / RUN / "report.json").read_text())
    assert [one["status"] for one in stored["results"]] == statuses


def failed_child(**sent: Any) -> dict[str, Any]:
    """As AWS describes it in the output of a Distributed Map."""
    told = {
        "Status": "FAILED",
        "Error": "States.Runtime",
        "Cause": "a bug in the definition",
        "Input": json.dumps(sent),
    }
    return {"ExecutionArn": "arn:aws:states:…:execution:m/x:1", "Name": "1", **told}


def report_of(pipeline: Pipeline, *children: Any) -> tuple[str, list[tuple[str, str, str]]]:
    event = parse_event(ReportRunEvent, {"run_id": RUN, "tables": children})
    report = report_run(pipeline.deployment, event)
    stored = json.loads((pipeline.control / "runs" / RUN / "report.json").read_text())
    return report["status"], [(one["table"], one["status"], one["summary"]) for one in stored["results"]]


def test_a_table_whose_execution_failed_counts_as_failed(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect()[1]
    vanished = ("ns.t", "failed", "its execution ended without a report; its lease runs out by itself")
    assert report_of(pipeline) == ("failed", [vanished])
    assert report_of(pipeline, None) == ("failed", [vanished])
    described = failed_child(run_id=RUN, item=item.model_dump(mode="json"))
    sentence = "its execution ended as FAILED: States.Runtime: a bug in the definition"
    assert report_of(pipeline, described) == ("failed", [("ns.t", "failed", sentence)])
    assert report_of(pipeline, {**described, "Input": "{"}) == ("failed", [vanished])
    well = {"table": "ns.other", "status": "succeeded", "summary": "well"}
    assert report_of(pipeline, well) == ("partial", [("ns.other", "succeeded", "well"), vanished])
    with pytest.raises(PolicyError, match=r"^malformed event: tables\.0\.status: "):
        report_of(pipeline, {"table": "ns.t", "status": "odd"})


def test_a_table_whose_result_was_lost_is_looked_up(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    pipeline.run(item, plan, "compact")
    report = pipeline.report(item, plan)
    assert report_of(pipeline) == ("partial", [("ns.t", "partial", report.summary)])
    # Another catalog has a table of this name; of which of them the one result is, nobody knows.
    twin = item.model_copy(update={"catalog": "twin"})
    both = [one.model_dump(mode="json") for one in (twin, item)]
    (pipeline.control / "runs" / RUN / "proposals.json").write_text(json.dumps(both))
    told = {"table": "ns.t", "status": "partial", "summary": report.summary}
    assert [status for _, status, _ in report_of(pipeline, told)[1]] == ["partial", "failed"]
    assert [status for _, status, _ in report_of(pipeline)[1]] == ["failed", "partial"]


def test_a_document_that_is_damaged_is_told(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    folder = pipeline.control / table_folder(RUN, item.identity.spelling)
    (folder / "compact.json").write_text("{")
    with pytest.raises(StorageError, match="no JSON document"):
        pipeline.run(item, plan, "compact")
    (folder / "compact.json").write_text("{}")
    with pytest.raises(StorageError, match="is damaged"):
        pipeline.report(item, plan)
