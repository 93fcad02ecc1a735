"""The definition of template.yaml, executed while steps fail: the next one runs, and the run is told."""

from __future__ import annotations

import threading

import pytest

from icekeeper.errors import OperationRefused, StorageError
from local_stack.moto_server import MotoServer
from local_stack.patches import ServiceFault
from local_stack.stack import LocalStack, deployed
from support.scripted_pipeline import FUNCTION_STEPS, JOB_STEPS, ROUTES, ScriptedPipeline
from support.whole_pass import OPERATIONS, WHOLE_PASS, failing


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_fails_does_not_stop_the_next(
    scripted_stack: LocalStack, script: ScriptedPipeline, operation: str
) -> None:
    script.happening[operation] = failing(OperationRefused("a guard saw danger"))
    execution = scripted_stack.run()
    lost = ["remove_orphans"] if operation == "list_orphans" else []
    assert script.steps == [step for step in WHOLE_PASS if step not in lost]
    name = "remove_orphans" if operation == "list_orphans" else operation
    failures = script.event_of("report")["failures"]
    assert list(failures) == [name]
    assert failures[name]["Error"] == "OperationRefused"
    assert "a guard saw danger" in failures[name]["Cause"]
    assert execution.status == "SUCCEEDED"
    assert execution.output["report"]["status"] == "partial"
    assert script.leases == {}


@pytest.mark.parametrize("operation", list(JOB_STEPS))
def test_a_job_that_fails_is_retried_once_and_does_not_stop_the_next(
    scripted_stack: LocalStack, script: ScriptedPipeline, operation: str
) -> None:
    script.routes = {**ROUTES, operation: "glue"}
    script.happening[f"job:{operation}"] = failing(RuntimeError("out of memory"))
    scripted_stack.run()
    step = f"job:{operation}"
    expected = [
        step if name == operation else name
        for name in WHOLE_PASS
        if not (operation == "remove_orphans" and name == "list_orphans")
    ]
    at = expected.index(step)
    assert script.steps == [*expected[:at], step, *expected[at:]]
    failures = script.event_of("report")["failures"]
    assert list(failures) == [operation]
    assert failures[operation]["Error"] == "States.TaskFailed"
    assert "RuntimeError: out of memory" in failures[operation]["Cause"]


def test_all_operations_may_fail_and_the_table_is_still_reported_and_released(
    scripted_stack: LocalStack, script: ScriptedPipeline
) -> None:
    script.happening |= {name: failing(StorageError("the store is gone")) for name in OPERATIONS}
    scripted_stack.run()
    assert list(script.event_of("report")["failures"]) == list(FUNCTION_STEPS)
    assert script.steps.count("compact") == 4  # three retries
    assert script.steps[-3:] == ["report", "release", "report_run"]


def test_a_fault_of_lambda_is_retried_and_then_forgotten(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.happening["compact"] = failing(ServiceFault("TooManyRequestsException"), ServiceFault("ServiceException"))
    execution = scripted_stack.run()
    assert script.steps.count("compact") == 3
    assert execution.child.output["status"] == "succeeded"
    assert script.event_of("report")["failures"] == {}


def test_an_operation_beyond_its_time_does_not_stop_the_next(moto_server: MotoServer) -> None:
    """The function is not told; it goes on, and its lease keeps it from committing (see test_pipeline.py)."""
    may_end = threading.Event()
    with deployed(moto_server, timeouts={"Compact": 1, "RewriteManifestsJob": 1}) as stack:
        bucket, s3 = stack.template.name("ControlBucket"), stack.moto.client("s3")
        script = ScriptedPipeline(lambda key, body: s3.put_object(Bucket=bucket, Key=key, Body=body), bucket)
        script.routes = {**ROUTES, "rewrite_manifests": "glue"}
        script.happening["compact"] = lambda event: may_end.wait(20)
        script.happening["job:rewrite_manifests"] = lambda event: may_end.wait(20)
        stack.stand_in(script.functions, script.jobs)
        execution = stack.run()
        may_end.set()
    assert execution.child.output["summary"] == "compact, rewrite_manifests"
    failures = script.event_of("report")["failures"]
    assert {name: failure["Error"] for name, failure in failures.items()} == {
        "compact": "States.Timeout",
        "rewrite_manifests": "States.Timeout",
    }
    assert script.steps[-5:] == ["compute_statistics", "clean_staged", "report", "release", "report_run"]


@pytest.mark.parametrize("step", ["lease", "plan"])
def test_a_table_that_cannot_even_begin_is_reported(
    scripted_stack: LocalStack, script: ScriptedPipeline, step: str
) -> None:
    script.happening[step] = failing(StorageError("the store does not answer"))
    scripted_stack.run()
    event = script.event_of("report")
    assert list(event["failures"]) == [step]
    assert event["plan"] is None
    assert script.steps[-3:] == ["report", "release", "report_run"]


@pytest.mark.parametrize(
    ("step", "error"),
    [("detect", "DetectionFailed"), ("report_run", "ReportFailed"), ("report", "PassesFailed")],
)
def test_a_run_that_cannot_be_told_is_red(
    scripted_stack: LocalStack, script: ScriptedPipeline, step: str, error: str
) -> None:
    script.happening[step] = failing(RuntimeError("a bug"))
    execution = scripted_stack.run()
    assert (execution.status, execution.error) == ("FAILED", error)
    if step == "detect":
        assert script.steps == ["detect", "report_run"]
        told = script.event_of("report_run")
        assert (told["run_id"], told["tables"], told["failure"]["Error"]) == (execution.name, [], "RuntimeError")
    if step == "report":
        assert execution.child.output == {
            "table": "ns.t",
            "status": "failed",
            "summary": "the pass could not be reported",
        }
        assert script.leases == {}
