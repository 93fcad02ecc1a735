"""The run from top to bottom: find tables that need work, plan each table, then do one kind of work after the other.

A stage without work is skipped.  A stage that fails does not stop the run: the next stage follows, and the report
contains the reason.

The snapshots of a table expire after the wave (``CompactDataFiles``).  The task's time limit and its attempts bound how
long the table waits.  With the defaults (a job of 60 minutes, one retry) an attempt takes 105 minutes at most: 20 until
FLEX has capacity, 15 in Glue's queue, 10 for the start, 60 of work.  Two attempts take 3.5 hours; if Glue has no
capacity at the start, each takes up to half an hour more.  An attempt that its task's time limit ends is not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.operation_facts import Stage
from state_machine.maps import compact_small_tables, expire_and_sweep, plan_tables, sweep_after_jobs
from state_machine.tasks import State, States, catch, function_task, given_up, job_task

_MACHINE_S = 12 * 3600
_THIS_RUN = {"run_id.$": "$.run_id", "started_ms.$": "$.started_ms"}


def line() -> State:
    """The whole definition.

    A payload holds 256 KB.  Only one payload grows with the tables of a run: the list of ``{}`` that a map's children
    return.
    """
    return {
        "Comment": "Keeps Iceberg tables healthy: plans each table, then does one kind of work after the other",
        "StartAt": "Detect",
        "TimeoutSeconds": _MACHINE_S,
        "States": {**_begin(), **_stages(), **_end()},
    }


def _begin() -> States:
    """The states up to the point where the work of each stage is known."""
    return {
        "Detect": {
            **function_task(
                "detect",
                {"run_id.$": "$$.Execution.Name", "started.$": "$$.Execution.StartTime", "input.$": "$"},
                comment="Find the tables that need work, with the reasons, or the requested table",
            ),
            "ResultSelector": {
                **{f"{name}.$": f"$.Payload.{name}" for name in ("run_id", "started_ms", "tables", "reason", "forced")},
                "jobs": {},
                "failure": None,
            },
            "ResultPath": "$",
            # The input may be any JSON, even a value that is not an object and cannot hold a failure.
            "Catch": [given_up(to="NotDetected", into="$")],
            "Next": "AnyTables",
        },
        "NotDetected": {
            "Type": "Pass",
            "Comment": "The run is still reported; the schedule's input is empty",
            "Parameters": {"failure.$": "$", "input.$": "$$.Execution.Input"},
            "Next": "Report",
        },
        "AnyTables": {
            "Type": "Choice",
            "Comment": "Nothing to do is an outcome, not an error",
            "Choices": [{"Variable": "$.tables.count", "NumericGreaterThan": 0, "Next": "PlanTables"}],
            "Default": "NothingToDo",
        },
        "NothingToDo": {"Type": "Succeed", "Comment": "The output says why"},
        "PlanTables": {
            **plan_tables(),
            "ResultPath": None,
            "Catch": [_unread("$.failure", to="Report")],
            "Next": "Gather",
        },
        "Gather": {
            **function_task("gather", _THIS_RUN, comment="Gather the work of each stage from the plans of all tables"),
            "ResultSelector": {f"{stage.value}.$": f"$.Payload.{stage.value}" for stage in Stage},
            "ResultPath": "$.stages",
            "Catch": [given_up(to="Report", into="$.failure")],
            "Next": _CHOICES[Stage.SMALL],
        },
    }


_CHOICES: Mapping[Stage, str] = {
    Stage.SMALL: "AnySmall",
    Stage.COMPACTION: "AnyCompaction",
    Stage.SWEEP: "AnySweep",
    Stage.EXPIRY: "AnyLargeExpiry",
    Stage.ORPHANS: "AnyLargeOrphans",
    Stage.AFTER_JOBS: "AnyAfterJobs",
    Stage.MANIFESTS: "AnyLargeManifests",
    Stage.STAGED: "AnyStaged",
}
"""The choice before each stage, in the order of the stages."""


def _stages() -> States:
    small, sweep = compact_small_tables(), expire_and_sweep()
    staged = function_task("clean_staged", _THIS_RUN, comment="Delete the files of failed loads, from the record")
    return {
        **_stage(Stage.SMALL, "CompactSmallTables", small, why="Partitions to expire, or tables for CompactSmall"),
        **_stage(
            Stage.COMPACTION,
            "CompactDataFiles",
            job_task("compact_data_files", Stage.COMPACTION),
            why="Tables to compact in this run's wave, which is one Glue run",
        ),
        **_stage(Stage.SWEEP, "ExpireAndSweep", sweep, why="Snapshots to expire, orphans or manifests for functions"),
        **_stage(
            Stage.EXPIRY,
            "ExpireManySnapshots",
            job_task("expire_snapshots", Stage.EXPIRY),
            why="Tables with too many snapshots and manifests for ExpireSnapshots",
        ),
        **_stage(
            Stage.ORPHANS,
            "RemoveLargeOrphans",
            job_task("remove_orphans", Stage.ORPHANS),
            why="Tables with too many files for ListOrphans",
        ),
        **_stage(
            Stage.AFTER_JOBS,
            "SweepAfterJobs",
            sweep_after_jobs(),
            why="Orphans or manifests for functions, of tables that had to wait for one of these jobs",
        ),
        **_stage(
            Stage.MANIFESTS,
            "RewriteLargeManifests",
            job_task("rewrite_manifests", Stage.MANIFESTS),
            why="Tables too large for RewriteManifests",
        ),
        **_stage(Stage.STAGED, "CleanStaged", staged, why="Recorded files of failed loads"),
    }


def _stage(stage: Stage, name: str, state: State, *, why: str) -> States:
    """A choice whether the stage has work, and its state; the reason of a failure is stored where the report reads it.

    For a job, that reason is short (platform: glue-hides-failure-cause), so the job writes each table's result beside
    its plan.
    """
    stages = list(_CHOICES)
    after = stages.index(stage) + 1
    then = _CHOICES[stages[after]] if after < len(stages) else "Report"
    into = f"$.jobs.{stage.value}"
    return {
        _CHOICES[stage]: {
            "Type": "Choice",
            "Comment": why,
            "Choices": [{"Variable": f"$.stages.{stage.value}.count", "NumericGreaterThan": 0, "Next": name}],
            "Default": then,
        },
        name: {
            **state,
            "ResultPath": None,
            "Catch": [_unread(into, to=then) if state["Type"] == "Map" else given_up(to=then, into=into)],
            "Next": then,
        },
    }


def _unread(into: str, *, to: str) -> State:
    """The catch of a map whose list cannot be read; the failure of a table ends only its own child."""
    errors = ["States.ItemReaderFailed", "States.ExceedToleratedFailureThreshold", "States.TaskFailed"]
    return catch([*errors, "States.Timeout"], to=to, into=into)


def _end() -> States:
    answers = ("run_id", "status", "summary", "left", "tables", "error", "cause")
    return {
        "Report": {
            **function_task(
                "report",
                {"run_id.$": "$$.Execution.Name", "state.$": "$"},
                comment="Journal and metrics of every table, and the totals of the run",
            ),
            "ResultSelector": {f"{name}.$": f"$.Payload.{name}" for name in answers},
            "ResultPath": "$.report",
            "Catch": [given_up(to="RunNotReported", into="$.failure")],
            "Next": "HowItWent",
        },
        "HowItWent": {
            "Type": "Choice",
            "Comment": "A partial run succeeds: its report and metrics say what failed",
            "Choices": [
                {"Variable": "$.report.left", "NumericGreaterThan": 0, "Next": "Report"},
                {"Variable": "$.report.error", "StringEquals": "", "Next": "Done"},
            ],
            "Default": "RunFailed",
        },
        "Done": {"Type": "Succeed"},
        "RunFailed": {
            "Type": "Fail",
            "Comment": "The report says why",
            "ErrorPath": "$.report.error",
            "CausePath": "$.report.cause",
        },
        "RunNotReported": {
            "Type": "Fail",
            "Error": "ReportFailed",
            "Cause": "The run's report could not be written; its tables may have been maintained nevertheless",
        },
    }
