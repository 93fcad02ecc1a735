"""The states of a pass that one function carries out, as far as it can (rule 153)."""

from __future__ import annotations

from icekeeper.operation_facts import STEP_FACTS
from state_machine.tasks import FUNCTION_S, State, States, catch, function_task, given_up

__all__ = ["pass_in_one_call"]


def pass_in_one_call(*, first: str, table: State) -> States:
    """What one call does of the pass of a ``table``; behind it, from the state ``first`` on, follows what it leaves."""
    steps = ", ".join(step.name for step in STEP_FACTS)
    return {
        "MaintainSmall": {
            **function_task(
                "maintain_small",
                table,
                comment=f"Lease, plan, {steps}, report: as much as one call can do without deleting files",
                timeout_s=FUNCTION_S,
                answers=[],
            ),
            "ResultPath": "$.call",
            "Catch": [
                catch(["LeaseHeld"], to="MayWait", into="$.held"),
                catch(["FleetBusy"], to="MayWaitForSlot", into="$.held"),
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
                "outcomes": {},
                "failures.$": "$.call.Payload.failures",
            },
            "Next": first,
        },
    }
