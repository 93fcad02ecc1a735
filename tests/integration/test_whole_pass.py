"""A table's pass in one call, and a call that is killed in its midst."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import CommitConflict, LeaseHeld, PlanStale, StorageError
from icekeeper.maintenance.pass_steps import run_operation
from icekeeper.operation_facts import STEP_FACTS
from icekeeper.pipeline import run_step as run_step_module
from icekeeper.pipeline import whole_pass
from icekeeper.pipeline.control_bucket import proposals_key, table_folder
from icekeeper.pipeline.events import Failure, Item, PlanEvent, PlanReference
from icekeeper.pipeline.one_call import HandedOn, RestEvent, assign_tables, handed_on, outgrown_steps, take_up_rest
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.whole_pass import CallLimits, WholePass, WholePassEvent, run_whole_pass
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad
from support.pipeline_deployment import RUN, Pipeline

# A table's pass in one call: what it does, what it leaves to the state machine, and what a repetition finds.

ALL_STEPS = ["compact", "rewrite_position_deletes", "expire_snapshots", "remove_orphans", "rewrite_manifests"]


def item_of(pipeline: Pipeline, run_id: str = RUN) -> Item:
    (item,) = pipeline.detect(run_id, table="ns.t")[1]
    return item


def in_one_call(
    pipeline: Pipeline, item: Item, run_id: str = RUN, *, time_left_s: Any = lambda: 3600.0
) -> tuple[WholePass, list[float]]:
    pauses: list[float] = []
    limits = CallLimits(max_bytes=2**40, time_left_s=time_left_s, sleep=pauses.append)
    event = WholePassEvent(run_id=run_id, item=item)
    pipeline.deployment = pipeline.deployment.keeping(run_id, item)  # as another process, that remembers nothing
    return run_whole_pass(pipeline.deployment, event, LocalEngine(1), limits), pauses


@pytest.fixture
def may_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a table bucket, where nobody deletes objects; the folder of these tests is none."""
    monkeypatch.setattr(whole_pass, "is_table_bucket", lambda _: True)


@pytest.mark.usefixtures("may_delete")
def test_a_whole_pass_in_one_call_is_that_of_its_steps(pipeline: Pipeline) -> None:
    item = item_of(pipeline)
    rows = sorted(pipeline.table.table.scan().to_arrow().column("id").to_pylist())
    done, _ = in_one_call(pipeline, item)
    assert (done.failures, done.left) == ({}, ())
    report = pipeline.report(item, done.plan)
    assert report.status == "succeeded"
    assert report.outcome is not None
    assert [one.operation.value for one in report.outcome.operations] == ALL_STEPS
    assert report.outcome.metrics["compact.files_merged"] == 5
    assert sorted(pipeline.table.table.refresh().scan().to_arrow().column("id").to_pylist()) == rows
    assert pipeline.journal(item) == [(RUN, "succeeded", report.summary)]
    assert release_table_lease(pipeline.deployment, RUN, item)


def test_what_deletes_files_is_left_and_all_behind_it(pipeline: Pipeline) -> None:
    """In ordinary buckets this function has no right to delete; the order of operations holds."""
    done, _ = in_one_call(pipeline, item_of(pipeline))
    assert done.left == ("expire_snapshots", "remove_orphans", "rewrite_manifests")
    assert {step for step, route in done.plan.routes.items() if route != "none"} == set(done.left)
    assert pipeline.document(item_of(pipeline), "plan.json")["done"]["compact"]["status"] == "succeeded"


@pytest.mark.usefixtures("may_delete")
def test_what_is_too_large_is_left_and_all_behind_it(pipeline: Pipeline) -> None:
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_MANIFESTS="0")
    done, _ = in_one_call(pipeline, item_of(pipeline))
    assert done.left == ("rewrite_manifests",)


@pytest.mark.usefixtures("may_delete")
def test_a_step_that_would_perhaps_not_end_in_time_is_left(pipeline: Pipeline) -> None:
    times = iter([3600.0, 300.0, 300.0, 300.0, 299.0])  # compaction asks at its begin, before its groups and its commit
    done, _ = in_one_call(pipeline, item_of(pipeline), time_left_s=lambda: next(times))
    assert done.left == ("expire_snapshots", "remove_orphans", "rewrite_manifests")


@pytest.mark.usefixtures("may_delete")
def test_a_step_that_fails_stops_no_other(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, {"compact": [StorageError("no answer")] * 3, "expire_snapshots": [ValueError("a bug")]})
    item = item_of(pipeline)
    done, pauses = in_one_call(pipeline, item)
    assert {step: failure.sentence for step, failure in done.failures.items()} == {
        "compact": "StorageError: no answer",
        "expire_snapshots": "ValueError: a bug",
    }
    assert (done.left, pauses) == ((), [2.0, 4.0])
    report = pipeline.report(item, done.plan, RUN, **done.failures)
    assert report.status == "partial"
    assert report.outcome is not None
    assert {one.operation.value: one.status.value for one in report.outcome.operations} == {
        "compact": "failed",
        "rewrite_position_deletes": "skipped",
        "expire_snapshots": "failed",
        "remove_orphans": "succeeded",
        "rewrite_manifests": "succeeded",
    }


@pytest.mark.usefixtures("may_delete")
def test_what_passes_is_tried_again(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, {"compact": [CommitConflict("lost"), StorageError("no answer")]})
    done, pauses = in_one_call(pipeline, item_of(pipeline))
    assert (done.failures, done.left, pauses) == ({}, (), [2.0, 4.0])


@pytest.mark.usefixtures("may_delete")
def test_a_stale_plan_is_made_again_and_at_last_given_up(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, {"expire_snapshots": [PlanStale("it changed")]})
    item = item_of(pipeline)
    done, _ = in_one_call(pipeline, item)
    assert (done.plan.attempt, done.failures, done.left) == (2, {}, ())
    assert release_table_lease(pipeline.deployment, RUN, item)
    failing(monkeypatch, {"compact": [PlanStale("it changed")] * 9})
    pipeline.table.fill(5, start=50)
    item = item_of(pipeline, "run-2")
    done, _ = in_one_call(pipeline, item, "run-2")
    assert (done.plan.attempt, done.left) == (4, ())
    assert "faster than it could be planned" in pipeline.report(item, done.plan, "run-2").summary


@pytest.mark.usefixtures("may_delete")
def test_a_repetition_does_what_is_missing(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, {"expire_snapshots": [KeyboardInterrupt()]})
    item = item_of(pipeline)
    with pytest.raises(KeyboardInterrupt):
        in_one_call(pipeline, item)
    done, _ = in_one_call(pipeline, item)
    assert (done.failures, done.left) == ({}, ())
    assert done.plan.routes["compact"] == "none"  # it was done
    report = pipeline.report(item, done.plan)
    assert report.outcome is not None
    assert report.outcome.metrics["compact.files_merged"] == 5


def test_another_runs_table_is_not_planned(pipeline: Pipeline) -> None:
    item = item_of(pipeline)
    acquire_table_lease(pipeline.deployment, "other", item)
    with pytest.raises(LeaseHeld):
        in_one_call(pipeline, item)


def failing(monkeypatch: pytest.MonkeyPatch, errors: Mapping[str, list[BaseException]]) -> None:
    """Have the first attempts at some steps end with errors, one after the other."""
    real = run_step_module.run_step
    waiting = {step: list(those) for step, those in errors.items()}

    def failing_step(deployment: Any, event: Any, *arguments: Any, **options: Any) -> Any:
        if waiting.get(event.step):
            raise waiting[event.step].pop(0)
        return real(deployment, event, *arguments, **options)

    monkeypatch.setattr(whole_pass, "run_step", failing_step)


def test_files_of_failed_loads_are_cleaned_and_nothing_is_asked_where_there_are_none(pipeline: Pipeline) -> None:
    _, plan = pipeline.begin()
    assert plan.routes["clean_staged"] == "none"
    failed = StagedLoad(
        identity=pipeline.identity, name="load-1", origin=LoadOrigin.USER, state=LoadState.FAILED, changed_ms=0
    )
    pipeline.deployment.state.staging.stage(failed, [])
    _, plan = pipeline.begin()
    assert plan.routes["clean_staged"] == "function"


# A call that carried out many steps and was killed: the step that it was at goes elsewhere.

BUCKET = "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"


class ProcessKilled(BaseException):
    """Nothing after it runs."""


def killed_at(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:

    def killed(asked: Any, *args: Any, **options: Any) -> Any:
        if asked.value == operation:
            raise ProcessKilled
        return run_operation(asked, *args, **options)

    monkeypatch.setattr(run_step_module, "run_operation", killed)


def called(pipeline: Pipeline, item: Item, run_id: str = RUN) -> whole_pass.WholePass:
    limits = CallLimits(max_bytes=2**40, time_left_s=lambda: 3600.0)
    return run_whole_pass(pipeline.deployment, WholePassEvent(run_id=run_id, item=item), LocalEngine(1), limits)


def killed_call(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, operation: str) -> Item:
    """The table whose pass in one call died at an operation; from then on the table lies in a table bucket."""
    monkeypatch.setattr(whole_pass, "is_table_bucket", lambda _: True)
    (item,) = pipeline.detect(table="ns.t")[1]
    with monkeypatch.context() as patched:
        killed_at(patched, operation)
        with pytest.raises(ProcessKilled):
            called(pipeline, item)
    return item


def planned(pipeline: Pipeline, item: Item, error: str, attempt: int = 1) -> PlanReference:
    call = Failure(Error=error, Cause="")
    return plan_table(pipeline.deployment, PlanEvent(run_id=RUN, item=item, call=call, attempt=attempt))


def left_of(item: Item) -> Any:
    plan = PlanReference(bucket="b", key="k", digest="d", routes={"rewrite_manifests": "glue"})
    return handed_on(item, plan, ["rewrite_manifests"])["left"]


@pytest.fixture
def item(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Item:
    """Its compaction was begun when the process died."""
    return killed_call(pipeline, monkeypatch, "compact")


@pytest.mark.parametrize("error", ["Runtime.ExitError", "Sandbox.Timedout", "States.Timeout", "Lambda.Unknown"])
def test_the_step_at_which_a_call_was_killed_goes_to_a_job_at_once(pipeline: Pipeline, item: Item, error: str) -> None:
    plan = planned(pipeline, item, error)
    assert [step for step, route in plan.routes.items() if route == "glue"] == ["compact"]
    assert outgrown_steps(pipeline.deployment.control, item) == {"compact"}


def test_what_failed_otherwise_is_tried_in_its_function(pipeline: Pipeline, item: Item) -> None:
    assert planned(pipeline, item, "StorageError").routes["compact"] == "function"
    assert outgrown_steps(pipeline.deployment.control, item) == frozenset()


def test_a_plan_that_is_made_again_accuses_nobody(pipeline: Pipeline, item: Item) -> None:
    """Until then other functions have begun steps, too."""
    assert planned(pipeline, item, "Runtime.ExitError", attempt=2).routes["compact"] == "function"


def test_steps_without_a_job_get_functions_of_their_own(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of compaction alone is noted that it began; behind another step that was too much, all run alone."""
    item = killed_call(pipeline, monkeypatch, "expire_snapshots")
    assert planned(pipeline, item, "Runtime.ExitError").routes["expire_snapshots"] == "function"
    assert outgrown_steps(pipeline.deployment.control, item) == {step.name for step in STEP_FACTS if step.job is None}
    later = called(pipeline, item)
    assert later.left[0] == "expire_snapshots"
    assert later.plan.routes["expire_snapshots"] == "function"
    assert "outgrown" not in later.plan.model_dump(mode="json")  # functions of the version before know no such field


def test_the_step_of_a_call_that_was_handed_on_is_remembered(pipeline: Pipeline, item: Item) -> None:
    named = HandedOn.model_validate(left_of(item)).model_copy(update={"error": "Runtime.ExitError"})
    answer = take_up_rest(pipeline.deployment, RestEvent(run_id=RUN, left=(named,)))
    assert answer["count"] == 1
    assert outgrown_steps(pipeline.deployment.control, item) == {"compact"}


def test_what_is_left_to_the_wave_waits_for_it_with_its_plan(item: Item) -> None:
    plan = PlanReference(bucket="b", key="k", digest="d", routes={"compact": "wave", "rewrite_manifests": "glue"})
    answer = handed_on(item, plan, ["compact", "rewrite_manifests"])
    assert ("left" in answer, answer["status"], answer["plan"]) == (False, "waiting", {"key": "k", "digest": "d"})


def test_each_map_gets_its_tables_and_what_was_left_joins_the_others(pipeline: Pipeline) -> None:
    control = pipeline.deployment.control
    (found,) = pipeline.detect(table="ns.t")[1]
    scheduled = found.model_copy(update={"forced": False, "detected_ms": 1})
    small, left = (
        scheduled.model_copy(update={"warehouse": BUCKET, "table": name}) for name in ("ns.small", "ns.left")
    )
    asked = small.model_copy(update={"table": "ns.asked", "detected_ms": None})
    items = (small, scheduled, left, asked)
    control.write(proposals_key(RUN), [item.model_dump(mode="json") for item in items])

    assigned = assign_tables(pipeline.deployment, RUN, items)
    names = {part: [one["table"] for one in control.find(place["key"]) or ()] for part, place in assigned.items()}
    assert names == {"in_one_call": ["ns.small", "ns.left"], "rest": ["ns.t", "ns.asked"]}
    rest = take_up_rest(pipeline.deployment, RestEvent.model_validate({"run_id": RUN, "left": [left_of(left)]}))
    assert [one["table"] for one in control.find(rest["key"]) or ()] == ["ns.t", "ns.left", "ns.asked"]
    assert rest["count"] == 3


def test_a_list_of_all_tables_is_not_written_twice(pipeline: Pipeline) -> None:
    (found,) = pipeline.detect(table="ns.t")[1]
    assigned = assign_tables(pipeline.deployment, RUN, (found,))
    assert [(place["key"], place["count"]) for place in assigned.values()] == [
        (proposals_key(RUN), 0),
        (proposals_key(RUN), 1),
    ]


def test_a_lease_that_another_run_has_lets_nothing_begin(pipeline: Pipeline, item: Item) -> None:
    """The killed call still has its lease: only its own run goes on."""
    with pytest.raises(LeaseHeld):
        acquire_table_lease(pipeline.deployment, "another run", item)
    acquire_table_lease(pipeline.deployment, RUN, item)
    folder = table_folder(RUN, item.identity.spelling)
    assert pipeline.deployment.control.find(f"{folder}/compact.begun.json") is not None
