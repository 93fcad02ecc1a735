"""How the pipeline tells what went wrong: wrong inputs, failed operations, lost results, and how a run ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icekeeper.errors import PolicyError, StorageError
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import (
    DetectEvent,
    Failure,
    ReportRunEvent,
    Route,
    TableResult,
    parse_event,
)
from icekeeper.pipeline.one_call import is_cut_off
from icekeeper.pipeline.report_table import report_run
from icekeeper.state.claims import CutWork
from support.pipeline_deployment import RUN, Pipeline


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
    """Rule 271: what has a job is tried there first, and a pass that succeeds ends the wait."""
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
