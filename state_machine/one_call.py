"""The states of a pass that one function carries out, as far as it can (rule: one-call-never-deletes)."""

from __future__ import annotations

from icekeeper.operation_facts import STEP_FACTS
from icekeeper.pipeline.events import WAITING
from state_machine.table_lease import held_elsewhere, lease_states, released, waiting_states
from state_machine.tasks import FUNCTION_S, State, States, function_task, given_up

_STEPS = ", ".join(step.name for step in STEP_FACTS)
_SMALL = "Small"


def pass_in_one_call(*, first: str, table: State) -> States:
    """What one call does of the pass of a ``table``; behind it, from the state ``first`` on, follows what it leaves."""
    return {
        "MaintainSmall": {
            **function_task(
                "maintain_small",
                table,
                comment=f"Lease, plan, {_STEPS}, report: as much as one call can do without deleting files",
                timeout_s=FUNCTION_S,
                answers=[],
            ),
            "ResultPath": "$.call",
            "Catch": [
                *held_elsewhere(),
                # What it has done is in the control bucket; the states go on from there.
                given_up(to="Lease", into="$.call"),
            ],
            "Next": "IsPassDone",
        },
        "IsPassDone": {
            "Type": "Choice",
            "Comment": "The pass is reported, or its plan says what is left",
            "Choices": [{"Variable": "$.call.Payload.report", "IsPresent": True, "Next": "PassDone"}],
            "Default": "TakeUpPlan",
        },
        "PassDone": {
            "Type": "Pass",
            "Comment": "Only what the run's report needs",
            "InputPath": "$.call.Payload.report",
            "End": True,
        },
        "TakeUpPlan": {
            "Type": "Pass",
            "Comment": "The table is leased and planned; what is left follows in its order",
            "Parameters": {
                **table,
                "plan.$": "$.call.Payload.plan",
                "tries": {"attempt.$": "$.call.Payload.plan.attempt"},
                "waiting.$": "$.waiting",
                "call": None,
                "outcomes": {},
                "failures.$": "$.call.Payload.failures",
            },
            "Next": first,
        },
    }


def pass_of_small_table(table: State) -> State:
    """An execution that is one call, and one state unless the table must be waited for
    (platform: step-functions-billing)."""
    hand_on = f"{_SMALL}HandOn"
    given_over = given_up(to=hand_on, into="$.call")
    return {
        "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
        "StartAt": f"Maintain{_SMALL}Table",
        "States": {
            f"Maintain{_SMALL}Table": {
                **function_task(
                    "maintain_small",
                    {**table, "hands_on": True},
                    comment=f"Lease, plan, {_STEPS}, report; or the result says that something is left",
                    timeout_s=FUNCTION_S,
                    answers=[],
                ),
                "OutputPath": "$.Payload",
                "Catch": [*held_elsewhere(_SMALL), given_over],
                "End": True,
            },
            **lease_states(table, then=f"Maintain{_SMALL}Table", failed=given_over, prefix=_SMALL),
            **waiting_states(_SMALL),
            hand_on: {
                **released(table, "So that its slot is free for other tables until its pass goes on"),
                "Catch": [given_up(to=f"{_SMALL}HandedOn", into="$.held")],
                "Next": f"{_SMALL}HandedOn",
            },
            f"{_SMALL}HandedOn": {
                "Type": "Pass",
                "Comment": "The call failed; states of its own do what it has not done",
                "Parameters": {
                    "table.$": "$.item.table",
                    "status": WAITING,
                    "summary": "the call that was to do all failed; its pass goes on in states of its own",
                    "left": {
                        **{f"{name}.$": f"$.item.{name}" for name in ("catalog", "warehouse", "table", "uuid")},
                        "error.$": "$.call.Error",
                    },
                },
                "End": True,
            },
        },
    }
