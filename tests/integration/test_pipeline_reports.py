"""How the pipeline reports failures of steps, jobs and leases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from icekeeper.pipeline.one_call import is_cut_off
from icekeeper.pipeline.report_table import report_run

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import LeaseLost, MaintenanceError, PolicyError, StorageError
from icekeeper.pipeline import glue_job
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import (
    DetectEvent,
    Failure,
    Item,
    PlanReference,
    ReportRunEvent,
    Route,
    TableResult,
    parse_event,
)
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.policy import Operation
from icekeeper.state.claims import CutWork
from support.pipeline_deployment import HOUR_MS, RUN, Pipeline

# How the pipeline tells what went wrong: wrong inputs, failed operations, lost results, and how a run ended.


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
    with pytest.raises(StorageError, match=r"compact\.json is not as this run wrote it \(status: Field required\)"):
        pipeline.report(item, plan)


def test_a_step_that_runs_out_of_time_where_it_has_the_most_is_cut_off(pipeline: Pipeline) -> None:
    """What has a job is tried there first, and a pass that succeeds ends the wait (rule: cut-off-endless-tables)."""
    timed_out = Failure(Error="Sandbox.Timedout", Cause="{}")
    item, plan = pipeline.begin()
    cuts = pipeline.deployment.state.cut_offs
    routes = pipeline.deployment.control.read(plan.key, plan.digest)["routes"]
    assert (routes["compact"], routes["expire_snapshots"]) == ("function", "function")
    pipeline.report(item, plan, compact=timed_out)
    assert list(cuts.of_catalog(item.catalog, item.warehouse)) == []
    for _ in range(2):  # a repetition of the same report
        pipeline.report(item, plan, expire_snapshots=timed_out)
    (cut,) = cuts.of_catalog(item.catalog, item.warehouse)
    assert (cut.entry[2], cut.work, cut.times) == ("ns.t", CutWork.PASS, 1)
    for step in routes:
        pipeline.run(item, plan, step)
    assert pipeline.report(item, plan).status == "succeeded"
    assert list(cuts.of_catalog(item.catalog, item.warehouse)) == []


@pytest.mark.parametrize(
    ("route", "error", "cause", "is_cut"),
    [
        ("glue", "States.TaskFailed", {"JobRunState": "TIMEOUT"}, True),
        ("glue", "States.Timeout", {}, True),
        ("glue", "States.TaskFailed", {"JobRunState": "FAILED"}, False),
        ("glue", "LeaseLost", {"errorMessage": "taken"}, False),
        ("function", "States.Timeout", {}, False),
    ],
)
def test_which_failures_of_a_job_are_out_of_time(route: Route, error: str, cause: object, *, is_cut: bool) -> None:
    assert is_cut_off({"compact": route}, {"compact": Failure(Error=error, Cause=json.dumps(cause))}) is is_cut


# Why a Glue job failed reaches the journal through the control bucket: Glue's own message says nothing of it.

FROM_GLUE = {"JobRunState": "FAILED", "ErrorMessage": "SystemExit: 1"}


@contextmanager
def local_engine(*_: object) -> Iterator[LocalEngine]:
    yield LocalEngine(1)


def planned(pipeline: Pipeline) -> tuple[Item, PlanReference]:
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="0")
    return pipeline.begin()


def run(pipeline: Pipeline, plan: PlanReference, job_run: str) -> int:
    arguments = ["--plan-key", plan.key, "--plan-digest", plan.digest, "--operation", "compact", "--run-id", RUN]
    arguments += ["--control-bucket", str(pipeline.control), "--state", pipeline.environment["ICEKEEPER_STATE"]]
    return glue_job.run_job([*arguments, "--JOB_RUN_ID", job_run, "--JOB_NAME", "compact"], frozenset(Operation))


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(glue_job, "open_engine", local_engine)
    monkeypatch.setattr(glue_job, "run_step", fail)


def of_glue(job_run: str, error: str = "States.TaskFailed") -> Failure:
    return Failure(Error=error, Cause=json.dumps({**FROM_GLUE, "Id": job_run}))


def told(pipeline: Pipeline, item: Item, plan: PlanReference, failure: Failure) -> tuple[str, str]:
    outcome = pipeline.report(item, plan, compact=failure).outcome
    assert outcome is not None
    (compact,) = (one for one in outcome.operations if one.operation is Operation.COMPACT)
    return compact.status.value, compact.summary


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LeaseLost("run-2 maintains it now"), ("refused", "LeaseLost: run-2 maintains it now")),
        (StorageError("s3://lake/x\n  timed out"), ("failed", "StorageError: s3://lake/x timed out")),
    ],
)
def test_a_job_says_why_it_failed(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, error: MaintenanceError, expected: tuple[str, str]
) -> None:
    item, plan = planned(pipeline)
    failing(monkeypatch, error)

    assert run(pipeline, plan, "jr_1") == 1
    assert told(pipeline, item, plan, of_glue("jr_1")) == expected


def test_a_bug_of_a_job_is_told_and_still_ends_it(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    item, plan = planned(pipeline)
    failing(monkeypatch, KeyError("x"))

    with pytest.raises(KeyError):
        run(pipeline, plan, "jr_1")
    assert told(pipeline, item, plan, of_glue("jr_1")) == ("failed", "KeyError: 'x'")


def test_an_earlier_attempt_says_nothing_of_the_last_one(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second was killed, or ran out of time, and could not say so."""
    item, plan = planned(pipeline)
    failing(monkeypatch, LeaseLost("run-2 maintains it now"))
    run(pipeline, plan, "jr_1")

    assert told(pipeline, item, plan, of_glue("jr_2")) == ("failed", "States.TaskFailed: SystemExit: 1")
    assert told(pipeline, item, plan, Failure(Error="States.Timeout")) == ("failed", "States.Timeout")


def test_a_job_whose_control_bucket_does_not_answer_still_fails(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, plan = planned(pipeline)
    failing(monkeypatch, StorageError("the lake is gone"))
    monkeypatch.setattr("icekeeper.pipeline.control_bucket.ControlBucket.write", refuse)

    assert run(pipeline, plan, "jr_1") == 1
    assert "why compact failed cannot be written to the control bucket: it is closed" in caplog.text


def refuse(*_: object) -> str:
    raise StorageError("it is closed")


# A pipeline step that loses its lease at work says nothing of its table: detection must look at it again.


def test_a_step_that_lost_its_lease_at_work_does_not_silence_its_table(pipeline: Pipeline) -> None:
    """The step ended with a refusal of its own; it was remembered as nothing to do, until the table's next commit."""
    pipeline.deployment = pipeline.open(ICEKEEPER_MIN_INPUT_FILES="5", ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP="100")
    (item,) = pipeline.detect()[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    plan = pipeline.plan(item)

    def oversleep(what: str, done: int, total: int) -> None:
        pipeline.clock.now_ms += 10 * HOUR_MS
        if done == total:
            acquire_table_lease(pipeline.deployment, "run-2", item)

    assert pipeline.run(item, plan, "compact", progress=oversleep)["status"] == "refused"
    release_table_lease(pipeline.deployment, "run-2", item)
    acquire_table_lease(pipeline.deployment, RUN, item)
    for step in ("expire_snapshots", "remove_orphans", "rewrite_manifests", "rewrite_position_deletes"):
        pipeline.run(item, plan, step)
    assert pipeline.report(item, plan).status == "partial"
    release_table_lease(pipeline.deployment, RUN, item)
    seen = pipeline.deployment.state.last_seen(item.identity)
    assert seen is not None
    assert seen.fingerprint == ""
    assert [one.table for one in pipeline.detect("run-3")[1]] == ["ns.t"]
