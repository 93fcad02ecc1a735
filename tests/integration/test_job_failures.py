"""Why a Glue job failed reaches the journal through the control bucket: Glue's own message says nothing of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import LeaseLost, MaintenanceError, StorageError
from icekeeper.pipeline import glue_job
from icekeeper.pipeline.events import Failure, Item, PlanReference
from icekeeper.policy import Operation
from support.pipeline_deployment import RUN, Pipeline

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
