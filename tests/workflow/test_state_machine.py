"""Runs of the state machine of template.yaml; stand-ins for its functions and jobs record their events."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest

from icekeeper.errors import FleetBusy, OperationRefused, StorageError
from icekeeper.operation_facts import FACTS, STEPS, Operation, Stage
from icekeeper.pipeline.events import DetectEvent, ReportEvent, RunEvent, TableEvent, parse_event
from icekeeper.pipeline.gather import JOB_STAGES
from local_stack.executions import Execution
from local_stack.functions import Killed
from local_stack.moto_server import MotoServer
from local_stack.pace import PACE
from local_stack.patches import ServiceFault
from local_stack.stack import LocalStack, deployed
from support.lambda_functions import sample
from support.scripted_pipeline import DIGEST, ROUTES, STARTED_MS, ScriptedPipeline

# The states of a run and of a table in which nothing fails.

BEGIN = ["Detect", "AnyTables", "PlanTables", "Gather"]
END = ["Report", "HowItWent", "Done"]
STAGES = {
    Stage.SMALL: ("AnySmall", "CompactSmallTables"),
    Stage.COMPACTION: ("AnyCompaction", "CompactDataFiles"),
    Stage.SWEEP: ("AnySweep", "ExpireAndSweep"),
    Stage.EXPIRY: ("AnyLargeExpiry", "ExpireManySnapshots"),
    Stage.ORPHANS: ("AnyLargeOrphans", "RemoveLargeOrphans"),
    Stage.AFTER_JOBS: ("AnyAfterJobs", "SweepAfterJobs"),
    Stage.MANIFESTS: ("AnyLargeManifests", "RewriteLargeManifests"),
    Stage.STAGED: ("AnyStaged", "CleanStaged"),
}
NONE = dict.fromkeys(STEPS, "none")
EVERYTHING = dict.fromkeys(STEPS, "function")
LARGE = {step: "glue" if step in FACTS and FACTS[step].job else "none" for step in STEPS}  # type: ignore[index]
WAITING = {**NONE, "remove_orphans": "glue", "rewrite_manifests": "function", "compute_statistics": "function"}
"""A function merges manifests after the job that removes orphans."""
MOST_BYTES = 16 * 1024
IN_MAPS = ["expire_partitions", "compact"], ["expire_snapshots", "list_orphans", "remove_orphans"]
WHOLE = ["plan", *IN_MAPS[0], *IN_MAPS[1], "rewrite_manifests"]


def route(*steps: str, to: str = "function") -> dict[str, str]:
    """Routes of a table that needs only these steps."""
    return {**NONE, **dict.fromkeys(steps, to)}


def line(*stages: Stage) -> list[str]:
    """The states of a run that has work in these stages."""
    names = [name for stage, (choice, state) in STAGES.items() for name in (choice, *[state] * (stage in stages))]
    return [*BEGIN, *names, *END]


def failing(*errors: BaseException) -> Any:
    """Raise the errors one after the other, then nothing; raise a single error every time."""
    rest = iter(errors)

    def fail(event: Any) -> None:
        if error := (errors[0] if len(errors) == 1 else next(rest, None)):
            raise error

    return fail


def of_table(table: str, happening: Any) -> Any:
    """Call ``happening`` for one table only."""
    return lambda event: happening(event) if event["item"]["table"] == table else None


def states_by_table(execution: Execution, label: str) -> dict[str, list[str]]:
    """The states of each table in a map."""
    return {child.table: child.names for child in execution.of_map(label)}


# The order of the stages, and their payloads.


def test_a_run_passes_every_stage_in_order(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.tables = ("ns.small", "ns.large", "ns.waiting")
    script.own_routes = {"ns.small": EVERYTHING, "ns.large": LARGE, "ns.waiting": WAITING}
    execution = scripted_stack.run(name="run-whole")

    assert (execution.status, execution.names) == ("SUCCEEDED", line(*Stage))
    assert script.steps_of("*") == [
        *("detect", "gather", "job:compaction", "job:expiry", "job:orphans", "job:manifests", "clean_staged", "report")
    ]
    assert (script.steps_of("ns.small"), script.steps_of("ns.large")) == (WHOLE, ["plan"])
    steps = [step for step in script.steps if step not in ("detect", "gather", "clean_staged", "report")]
    assert script.steps_of("ns.waiting") == ["plan", "rewrite_manifests"]
    after = ["job:expiry", "job:orphans", "rewrite_manifests", "job:manifests"]
    assert steps == [*["plan"] * 3, *IN_MAPS[0], "job:compaction", *WHOLE[3:], *after]
    assert [child.label for child in execution.children] == [
        *["PlanTables"] * 3,
        *("CompactSmallTables", "ExpireAndSweep", "SweepAfterJobs"),
    ]
    assert [(child.status, child.output) for child in execution.children] == [("SUCCEEDED", {})] * 6
    assert {key: execution.output[key] for key in ("reason", "forced", "jobs", "failure")} == {
        "reason": "3 table(s) need maintenance",
        "forced": False,
        "jobs": {},
        "failure": None,
    }
    assert execution.output["report"] == {
        "run_id": "run-whole",
        "status": "succeeded",
        "summary": "all well",
        "left": 0,
        "tables": [],
        "error": "",
        "cause": "",
    }

    # The contract of every payload.
    run = {"run_id": "run-whole", "started_ms": STARTED_MS}
    begun = script.event_of("detect")
    assert begun == {"run_id": "run-whole", "started": begun["started"], "input": {}}
    parse_event(DetectEvent, begun)
    entered = execution.visits[0].entered  # in whole milliseconds
    assert datetime.fromisoformat(begun["started"]) < entered + timedelta(milliseconds=1)
    of_table = {**run, "item": script.items["ns.small"]}
    for step in WHOLE:
        expected = {**of_table, "listed": DIGEST} if step == "remove_orphans" else of_table
        found = next(call.event for call in script.calls if (call.table, call.step) == ("ns.small", step))
        assert found == expected, step
        parse_event(TableEvent, found)
    for step in ("gather", "clean_staged"):
        assert script.event_of(step) == run
        parse_event(RunEvent, run)
    shown = script.event_of("report")
    assert (shown["run_id"], shown["state"]["jobs"], shown["state"]["failure"]) == ("run-whole", {}, None)
    parse_event(ReportEvent, shown)
    template = scripted_stack.template
    defaults = {job["Name"]: job["DefaultArguments"] for _, job in template.resources("AWS::Glue::Job")}
    jobs = ("compact-data-files", "expire-snapshots", "remove-orphans", "rewrite-manifests")
    for stage, job in zip(JOB_STAGES, jobs, strict=True):
        assert script.event_of(f"job:{stage.value}") == {
            **defaults[f"{template.stack}-{job}"],
            "--work-key": f"runs/run-whole/{stage.value}.json",
            "--work-digest": DIGEST,
            "--run-id": "run-whole",
            "--control-bucket": script.bucket,
            "--state": f"dynamodb://{template.name('StateTable')}?region=us-east-1",
        }


@pytest.mark.parametrize("stage", [None, *Stage], ids=str)
def test_a_stage_without_work_is_skipped(
    scripted_stack: LocalStack, script: ScriptedPipeline, stage: Stage | None
) -> None:
    steps = {
        None: NONE,
        Stage.SMALL: route("compact"),
        Stage.COMPACTION: route("compact", to="glue"),
        Stage.EXPIRY: route("expire_snapshots", to="glue"),
        Stage.SWEEP: route("expire_snapshots"),
        Stage.ORPHANS: route("remove_orphans", to="glue"),
        Stage.AFTER_JOBS: WAITING,
        Stage.MANIFESTS: route("compute_statistics", to="glue"),
        Stage.STAGED: route("clean_staged"),
    }
    script.routes = steps[stage]
    execution = scripted_stack.run()
    assert execution.status == "SUCCEEDED"
    before = [Stage.ORPHANS] if stage is Stage.AFTER_JOBS else []
    assert execution.names == line(*before, *([] if stage is None else [stage]))


def test_a_table_passes_the_states_of_its_steps(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    manifests, orphans = "rewrite_manifests", "remove_orphans"
    script.own_routes = {
        "ns.expiry": route("expire_snapshots"),
        "ns.manifests": route("expire_snapshots", manifests),
        "ns.counted": route("compute_statistics"),
        "ns.idle": route("expire_snapshots", manifests),
        "ns.idle-counted": route("expire_snapshots", manifests, "compute_statistics"),
        "ns.idle-all": route("expire_snapshots", orphans, manifests),
        "ns.orphans": route(orphans),
        "ns.clean": route("expire_snapshots", orphans),
        "ns.clean-manifests": route(orphans, manifests),
        "ns.all": route("expire_snapshots", orphans, manifests),
        "ns.dropped": route("expire_partitions"),
        "ns.dropped-merged": route("expire_partitions", "compact"),
        "ns.merged": route("rewrite_position_deletes"),
        "ns.many": {**route(orphans, manifests), "expire_snapshots": "glue"},
    }
    script.tables = tuple(script.own_routes)
    script.without_orphans = frozenset({"ns.clean", "ns.clean-manifests"})
    script.idle = frozenset(table for table in script.tables if table.startswith("ns.idle"))
    execution = scripted_stack.run()

    assert states_by_table(execution, "PlanTables") == {table: ["PlanTable"] for table in script.tables}
    assert states_by_table(execution, "CompactSmallTables") == {
        "ns.dropped": ["AnyPartitions", "ExpirePartitions", "AnyToCompact", "TableCompacted"],
        "ns.dropped-merged": ["AnyPartitions", "ExpirePartitions", "AnyToCompact", "CompactSmall"],
        "ns.merged": ["AnyPartitions", "CompactSmall"],
    }
    first, listed = ["ExpireSnapshots", "WhatNext"], ["ListOrphans", "AnyOrphans"]
    removed = ["RemoveOrphans", "AnyManifests"]
    assert states_by_table(execution, "ExpireAndSweep") == {
        "ns.expiry": [*first, "TableSwept"],
        "ns.manifests": [*first, "RewriteManifests"],
        "ns.counted": [*first, "RewriteManifests"],
        "ns.idle": [*first, "TableSwept"],
        "ns.idle-counted": [*first, "RewriteManifests"],
        "ns.idle-all": [*first, *listed, *removed, "TableSwept"],
        "ns.orphans": [*first, *listed, *removed, "TableSwept"],
        "ns.clean": [*first, *listed, "TableSwept"],
        "ns.clean-manifests": [*first, *listed, "RewriteManifests"],
        "ns.all": [*first, *listed, *removed, "RewriteManifests"],
    }
    after_jobs = ["WhatNext", *listed, *removed, "RewriteManifests"]
    assert states_by_table(execution, "SweepAfterJobs") == {"ns.many": [f"{name}AfterJobs" for name in after_jobs]}
    listed_by_table = {call.table: call.event["listed"] for call in script.calls if call.step == orphans}
    assert listed_by_table == dict.fromkeys(("ns.orphans", "ns.all", "ns.idle-all", "ns.many"), DIGEST)


def test_later_steps_of_a_table_follow_its_earlier_ones_on_every_route(
    scripted_stack: LocalStack, script: ScriptedPipeline
) -> None:
    """``test_pipeline.py`` proves it for the stages of all routes, this test for the states of the sweep."""
    steps = ("expire_snapshots", "remove_orphans", "rewrite_manifests")
    ways = {
        f"ns.{'-'.join(way)}": dict(zip(steps, way, strict=True)) for way in product(("function", "glue"), repeat=3)
    }
    script.own_routes = {table: {**NONE, **way} for table, way in ways.items()}
    script.tables = tuple(ways)
    assert scripted_stack.run().status == "SUCCEEDED"
    for table, way in ways.items():
        done = {(table, step): step for step in steps if way[step] == "function"}
        jobs = {step: FACTS[Operation(step)].job for step in steps if way[step] == "glue"}
        done |= {("*", f"job:{job.stage.value}"): step for step, job in jobs.items() if job is not None}
        found = [done.get((call.table, call.step)) for call in script.calls]
        assert [step for step in found if step is not None] == list(steps), table


def test_a_run_without_tables_ends_with_a_reason(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.tables = ()
    execution = scripted_stack.run()
    assert (execution.status, execution.names) == ("SUCCEEDED", ["Detect", "AnyTables", "NothingToDo"])
    assert script.steps == ["detect"]
    assert execution.output["reason"] == "0 table(s) need maintenance"


@pytest.mark.parametrize("name", ["machine_schedule", "machine_rhythm", "machine_forced", "machine_forced_wait"])
def test_each_sample_event_starts_a_run(scripted_stack: LocalStack, script: ScriptedPipeline, name: str) -> None:
    script.routes = NONE
    execution = scripted_stack.run(sample(name))
    assert execution.status == "SUCCEEDED"
    assert script.event_of("detect")["input"] == sample(name)
    assert execution.child.table == sample(name).get("table", "ns.t")
    assert execution.output["forced"] == ("table" in sample(name))


# A failure does not stop the run.


def test_the_next_state_follows_every_failed_task(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.tables = ("ns.unplanned", "ns.all", "ns.removal", "ns.well")
    script.routes = EVERYTHING
    refused = failing(OperationRefused("a guard saw danger"))
    script.happening = {step: of_table("ns.all", refused) for step in WHOLE[1:] if step != "remove_orphans"}
    script.happening["remove_orphans"] = of_table("ns.removal", failing(ValueError("a bug")))
    script.happening["plan"] = of_table("ns.unplanned", refused)
    execution = scripted_stack.run()

    assert execution.status == "SUCCEEDED"
    assert states_by_table(execution, "PlanTables")["ns.unplanned"] == ["PlanTable", "TableNotPlanned"]
    assert script.steps_of("ns.unplanned") == ["plan"]
    small = ["AnyPartitions", "ExpirePartitions", "AnyToCompact", "CompactSmall"]
    swept = ["ExpireSnapshots", "WhatNext", "ListOrphans", "AnyOrphans", "RemoveOrphans", "AnyManifests"]
    assert states_by_table(execution, "CompactSmallTables") == {
        "ns.all": [*small, "TableCompacted"],
        "ns.removal": small,
        "ns.well": small,
    }
    assert states_by_table(execution, "ExpireAndSweep") == {
        "ns.all": [*swept[:3], "AnyManifests", "RewriteManifests", "TableSwept"],
        "ns.removal": [*swept, "RewriteManifests"],
        "ns.well": [*swept, "RewriteManifests"],
    }
    assert {(child.status, str(child.output)) for child in execution.children} == {("SUCCEEDED", "{}")}
    assert script.steps_of("ns.all") == [step for step in WHOLE if step != "remove_orphans"]  # nothing is retried
    assert script.event_of("report")["state"]["jobs"] == {}


def test_jobs_that_fail_are_retried_once_and_reported(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.routes = {**LARGE, "clean_staged": "function"}
    jobs = ("job:compaction", "job:expiry", "job:orphans", "job:manifests")
    script.happening = {job: failing(RuntimeError(f"{job} was killed")) for job in jobs}
    script.happening["clean_staged"] = failing(ValueError("a bug"))
    execution = scripted_stack.run()
    assert execution.status == "SUCCEEDED"
    assert execution.names == line(*JOB_STAGES, Stage.STAGED)
    assert [step for step in script.steps if step in jobs] == [job for job in jobs for _ in range(2)]
    shown = parse_event(ReportEvent, script.event_of("report")).state.jobs
    assert {stage.value: failure.Error for stage, failure in shown.items()} == {
        "compaction": "States.TaskFailed",
        "expiry": "States.TaskFailed",
        "orphans": "States.TaskFailed",
        "manifests": "States.TaskFailed",
        "staged": "ValueError",
    }
    assert shown[Stage.COMPACTION].sentence == "States.TaskFailed: RuntimeError: job:compaction was killed"


def test_a_task_beyond_its_time_limit_stops_no_later_state(moto_server: MotoServer) -> None:
    """The function or job continues; a job is not retried, so that expiry waits for one attempt only."""
    may_end = threading.Event()
    with deployed(moto_server, timeouts={"ExpireSnapshots": 1, "CompactDataFiles": 1}) as stack:
        bucket, s3 = stack.template.name("ControlBucket"), stack.moto.client("s3")
        script = ScriptedPipeline(lambda key, body: s3.put_object(Bucket=bucket, Key=key, Body=body), bucket)
        script.routes = {**ROUTES, "compact": "glue", "rewrite_position_deletes": "glue"}
        script.happening |= {step: lambda event: may_end.wait(20) for step in ("job:compaction", "expire_snapshots")}
        stack.stand_in(script.functions, script.jobs)
        execution = stack.run()
        may_end.set()
    assert execution.status == "SUCCEEDED"
    assert script.steps[3:] == ["job:compaction", *WHOLE[3:], "clean_staged", "report"]
    assert [error for error, _ in execution.of_map("ExpireAndSweep")[0].visits[0].errors] == ["States.Timeout"]
    assert script.event_of("report")["state"]["jobs"]["compaction"]["Error"] == "States.Timeout"


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (StorageError("the store is gone"), 4),
        (Killed(), 2),
        (ServiceFault("TooManyRequestsException"), 5),
        (ValueError("a bug"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_temporary_errors_are_retried(
    scripted_stack: LocalStack, script: ScriptedPipeline, error: BaseException, attempts: int
) -> None:
    script.routes = route("expire_snapshots")
    script.happening["expire_snapshots"] = failing(error)
    assert scripted_stack.run().status == "SUCCEEDED"
    assert script.steps == ["detect", "plan", "gather", *["expire_snapshots"] * attempts, "report"]


# Tables that another run maintains, and the number of tables at work.


def test_a_run_that_may_wait_waits_for_the_table_and_for_a_slot(
    scripted_stack: LocalStack, script: ScriptedPipeline
) -> None:
    script.held["ns.t"] = "another run"
    looks = iter(range(100))

    def free_at_the_third(event: Any) -> None:
        if next(looks) == 2:
            script.held.clear()

    full = FleetBusy("every slot is taken")
    script.happening |= {"plan": free_at_the_third, "compact": failing(full, full, full)}
    script.routes = route("compact")
    execution = scripted_stack.run({"table": "ns.t", "wait": True})
    assert execution.status == "SUCCEEDED"
    assert script.steps == ["detect", *["plan"] * 3, "gather", *["compact"] * 4, "report"]
    assert list(PACE.waits) == [30] * 5


def test_a_table_that_another_run_maintains_is_skipped(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.tables, script.held["ns.t"] = ("ns.t", "ns.u"), "another run"
    script.happening["clean_staged"] = lambda event: script.held.update({"ns.u": "a third run"})
    execution = scripted_stack.run()
    assert execution.status == "SUCCEEDED"
    assert script.steps_of("ns.t") == ["plan"]
    assert script.steps_of("ns.u") == [step for step in WHOLE if step != "expire_partitions"]
    assert list(PACE.waits) == []


def test_at_most_four_tables_are_at_work_and_the_neediest_begin(
    scripted_stack: LocalStack, script: ScriptedPipeline
) -> None:
    script.tables = tuple(f"ns.t{number:02}" for number in range(12))
    script.routes = route("expire_snapshots")
    four = threading.Barrier(4)

    def meet(event: Any) -> None:
        if event["item"]["table"] in script.tables[:4]:
            four.wait(20)

    script.happening["expire_snapshots"] = meet
    execution = scripted_stack.run()
    assert (execution.status, script.most_at_once) == ("SUCCEEDED", 4)
    assert [child.table for child in execution.of_map("ExpireAndSweep")] == list(script.tables)


def test_payloads_do_not_grow_with_the_tables_of_a_run(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    """AWS allows 256 KB; the names of these tables alone are longer than any payload here."""
    script.tables = tuple(f"{'n' * 60}.{'t' * 60}{number:04}" for number in range(150))
    assert len("".join(script.tables)) > MOST_BYTES
    script.routes = {**NONE, "compact": "glue"}
    execution = scripted_stack.run(timeout_s=240)
    assert (execution.status, execution.names) == ("SUCCEEDED", line(Stage.COMPACTION))
    assert len(execution.of_map("PlanTables")) == script.steps.count("plan") == 150
    assert execution.largest_payload < MOST_BYTES


# How a run ends.


def test_the_report_is_repeated_until_no_table_is_left(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.routes, script.left = NONE, [1, 7]
    execution = scripted_stack.run()
    assert execution.status == "SUCCEEDED"
    assert execution.names[-7:] == ["Report", "HowItWent"] * 3 + ["Done"]
    assert script.steps == ["detect", "plan", "gather", *["report"] * 3]
    parse_event(ReportEvent, script.event_of("report"))  # with the answer of the previous report


def test_a_run_fails_with_the_error_of_its_report(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    table = {"table": "ns.t", "status": "refused", "summary": "another run maintains the table now"}
    script.report = {"status": "refused", "tables": [table], "error": "LeaseHeld", "cause": "start again later"}
    script.routes = NONE
    execution = scripted_stack.run({"table": "ns.t"})
    assert (execution.status, execution.error, execution.cause) == ("FAILED", "LeaseHeld", "start again later")
    assert execution.names[-3:] == ["Report", "HowItWent", "RunFailed"]
    assert execution.visits[-1].input["report"]["tables"] == [table]


@pytest.mark.parametrize("given", [{"tabel": "ns.t", "jobs": "none"}, ["ns.t"]], ids=["typo", "list"])
def test_a_run_whose_detection_fails_is_reported_with_its_input(
    scripted_stack: LocalStack, script: ScriptedPipeline, given: Any
) -> None:
    script.happening["detect"] = failing(ValueError("a bug"))
    script.report = {"status": "failed", "error": "DetectionFailed", "cause": "no table was looked at"}
    execution = scripted_stack.run(given, name=f"run-{len(str(given))}")
    assert (execution.status, execution.error) == ("FAILED", "DetectionFailed")
    assert execution.names == ["Detect", "NotDetected", "Report", "HowItWent", "RunFailed"]
    shown = script.event_of("report")
    assert (shown["run_id"], shown["state"]["input"]) == (execution.name, given)
    failure = parse_event(ReportEvent, shown).state.failure
    assert failure is not None
    assert failure.sentence == "ValueError: a bug"


@pytest.mark.parametrize("lost", ["proposals", "gather"])
def test_a_run_that_cannot_read_its_tables_is_reported(
    scripted_stack: LocalStack, script: ScriptedPipeline, lost: str
) -> None:
    script.unreadable = frozenset({lost})
    script.happening["gather"] = failing(ValueError("a bug"))
    script.report = {"status": "failed", "error": "TablesNotRead", "cause": "the list"}
    execution = scripted_stack.run()
    assert (execution.status, execution.error) == ("FAILED", "TablesNotRead")
    assert execution.names == [*BEGIN[: 3 if lost == "proposals" else 4], "Report", "HowItWent", "RunFailed"]
    assert parse_event(ReportEvent, script.event_of("report")).state.failure is not None


def test_an_unreadable_list_of_a_stage_stops_nothing(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.unreadable = frozenset({"small", "sweep"})
    execution = scripted_stack.run()
    assert (execution.status, execution.names) == ("SUCCEEDED", line(Stage.SMALL, Stage.SWEEP, Stage.STAGED))
    assert set(parse_event(ReportEvent, script.event_of("report")).state.jobs) == {Stage.SMALL, Stage.SWEEP}


def test_a_run_that_cannot_be_reported_fails(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.routes = NONE
    script.happening["report"] = failing(RuntimeError("a bug"))
    execution = scripted_stack.run()
    assert (execution.status, execution.error) == ("FAILED", "ReportFailed")
    assert execution.names[-2:] == ["Report", "RunNotReported"]
