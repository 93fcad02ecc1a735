"""The states of one table's pass: its lease, its plan, each operation in its order, its report.

``failures`` keeps Causes whole, as JSONPath cannot cut text.  Each is at most 32 KB, in practice a stack trace of about
10 KB or Glue's 2 KB, and there are at most eight of an operation; were they too long together (256 KB a payload), this
table's execution alone would end, and its lease run out by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.operation_facts import STEP_FACTS, StepFacts
from icekeeper.pipeline.events import WAITING
from state_machine.one_call import pass_in_one_call
from state_machine.table_lease import lease_states, released, waiting_states
from state_machine.tasks import (
    FUNCTION_S,
    REPORT_S,
    State,
    States,
    camel,
    catch,
    function_task,
    given_up,
    job_task,
)

DATA_AT_FIRST: Mapping[str, Any] = {
    "run_id.$": "$.run_id",
    "item.$": "$$.Map.Item.Value",
    "plan": None,
    "tries": {"attempt": 1},
    "waiting": {"waits": 0},
    "call": None,
    "outcomes": {},
    "failures": {},
}
"""The data that a table's execution begins with; every state keeps them and adds to them."""
THIS_TABLE = {"run_id.$": "$.run_id", "item.$": "$.item"}


def table_pass() -> State:
    """The definition of one table's execution.  Children are bounded by the timeouts of their tasks."""
    routes = [*(f"Route{camel(step.name)}" for step in STEP_FACTS), "ReportTable"]
    operations: States = {}
    for step, after in zip(STEP_FACTS, routes[1:], strict=True):
        operations |= _step(step, after)
    return {
        "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
        "StartAt": "MaintainSmall",
        "States": {
            **pass_in_one_call(first=routes[0], table=THIS_TABLE),
            **lease_states(THIS_TABLE, then="Plan", failed=given_up(to="ReportTable", into="$.failures.lease")),
            **waiting_states(),
            **_plan(first=routes[0]),
            **operations,
            **_wave(),
            **_report(),
        },
    }


def _plan(*, first: str) -> States:
    return {
        "Plan": {
            **function_task(
                "plan",
                {**THIS_TABLE, "attempt.$": "$.tries.attempt", "waves": True, "call.$": "$.call"},
                comment="What is to be done and where; the plan itself stays in the control bucket",
                timeout_s=FUNCTION_S,
                answers=["bucket", "key", "digest", "attempt", "routes"],
            ),
            "ResultPath": "$.plan",
            "Catch": [given_up(to="ReportTable", into="$.failures.plan")],
            "Next": first,
        },
        # A Glue job that finds its plan stale plans again by itself or fails: Glue has no error names to catch.
        "PlanAgain": {
            "Type": "Pass",
            "Comment": "The table moved away from the plan; Plan gives up after three attempts",
            "Parameters": {"attempt.$": "States.MathAdd($.tries.attempt, 1)"},
            "ResultPath": "$.tries",
            "Next": "Plan",
        },
    }


def _step(step: StepFacts, after: str) -> States:
    """The states of one step: a choice by its route, the function, and the Glue job; ``after`` is the state behind."""
    name = camel(step.name)
    first = name if step.lister is None else camel(step.lister)
    job = {} if step.job is None else {"glue": f"{name}Job"}
    wave = {"wave": "LeaveToWave"} if step.in_waves or step.in_waves_of_buckets else {}
    states = {f"Route{name}": _route(step, {"function": first, **job, **wave}, after)}
    if step.lister is not None:
        states |= _listing(step, step.lister, after)
    states[name] = {**_by_function(step, step.function, after, comment=step.description), "Next": after}
    if step.job is not None:
        states[f"{name}Job"] = {
            **job_task(step.job.script, step.name, comment=f"{step.description}, in a Glue job"),
            "ResultPath": f"$.outcomes.{step.name}",
            "Catch": [given_up(to=after, into=f"$.failures.{step.name}")],
            "Next": after,
        }
    return states


def _route(step: StepFacts, to: Mapping[str, str], after: str) -> State:
    routes = [*to]
    return {
        "Type": "Choice",
        "Comment": f"{step.description}; none, small or large",
        "Choices": [
            {"Variable": f"$.plan.routes.{step.name}", "StringEquals": route, "Next": to[route]} for route in routes
        ],
        "Default": after,
    }


def _by_function(step: StepFacts, function: str, after: str, *, comment: str, counts: bool = False) -> State:
    return {
        **function_task(
            function,
            {**THIS_TABLE, "plan.$": "$.plan", "operation": step.name},
            comment=comment,
            timeout_s=FUNCTION_S,
            answers=["status", "summary", *(["count"] if counts else [])],
        ),
        "ResultPath": f"$.outcomes.{step.name}",
        "Catch": [
            catch(["PlanStale"], to="PlanAgain", into="$.stale"),
            given_up(to=after, into=f"$.failures.{step.name}"),
        ],
    }


def _listing(step: StepFacts, lister: str, after: str) -> States:
    """The states of a listing: a function without the right to delete lists; the deleting one runs if any was found."""
    what = lister.removeprefix("list_")
    any_found = f"Any{camel(what)}"
    comment = f"List the {what} into the control bucket"
    return {
        camel(lister): {**_by_function(step, lister, after, comment=comment, counts=True), "Next": any_found},
        any_found: {
            "Type": "Choice",
            "Comment": f"Zero {what} were reported by the listing",
            "Choices": [
                {"Variable": f"$.outcomes.{step.name}.count", "NumericGreaterThan": 0, "Next": camel(step.name)}
            ],
            "Default": after,
        },
    }


def _wave() -> States:
    """The end of an execution whose pass goes on, after the run's wave, in another one."""
    return {
        "LeaveToWave": {
            **released(THIS_TABLE, "No lease is held while the wave waits for capacity; it takes its own"),
            "Catch": [given_up(to="WaitsForWave", into="$.failures.release")],
            "Next": "WaitsForWave",
        },
        "WaitsForWave": {
            "Type": "Pass",
            "Comment": "Its plan says which steps are the wave's",
            "Parameters": {
                "table.$": "$.item.table",
                "status": WAITING,
                "summary": "the rest of its pass follows the wave of the run",
                "plan": {"key.$": "$.plan.key", "digest.$": "$.plan.digest"},
            },
            "End": True,
        },
    }


def _report() -> States:
    return {
        "ReportTable": {
            **function_task(
                "report",
                {**THIS_TABLE, "plan.$": "$.plan", "failures.$": "$.failures"},
                comment="Journal and metrics of the pass, whatever happened",
                timeout_s=REPORT_S,
                answers=["table", "status", "summary"],
            ),
            "ResultPath": "$.report",
            "Catch": [given_up(to="TableNotReported", into="$.failures.report")],
            "Next": "Release",
        },
        "TableNotReported": {
            "Type": "Pass",
            "Comment": "The pass happened, but its journal entry may be missing",
            "Parameters": {
                "table.$": "$.item.table",
                "status": "failed",
                "summary": "the pass could not be reported",
            },
            "ResultPath": "$.report",
            "Next": "Release",
        },
        "Release": {
            **released(THIS_TABLE, "Give the lease back; one that is not given back runs out"),
            "Catch": [given_up(to="TableDone", into="$.failures.release")],
            "Next": "TableDone",
        },
        "TableDone": {
            "Type": "Pass",
            "Comment": "Only what the run's report needs",
            "InputPath": "$.report",
            "End": True,
        },
    }
