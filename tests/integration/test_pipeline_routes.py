"""Which step goes to a Glue job: large work, and what was too much for a function before."""

from __future__ import annotations

import pytest

from icekeeper.machine.clock import system_clock
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.events import (
    Failure,
)
from icekeeper.pipeline.glue_job import run_job
from icekeeper.policy import Operation
from support.pipeline_deployment import RUN, Pipeline


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
