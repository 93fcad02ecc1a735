"""The states of a table's lease: taken, waited for, or left to others."""

from __future__ import annotations

from state_machine.tasks import LEASE_S, State, States, catch, function_task, given_up

__all__ = ["lease_states", "waiting_states"]


def lease_states(table: State) -> States:
    """The state that takes the lease of a ``table``."""
    return {
        "Lease": {
            **function_task(
                "lease",
                {"action": "acquire", **table},
                comment="This run's turn to maintain the table, if nobody else's, and one of the slots of the fleet",
                timeout_s=LEASE_S,
                answers=["holder", "expires_ms"],
            ),
            "ResultPath": "$.lease",
            "Catch": [
                catch(["LeaseHeld"], to="MayWait", into="$.held"),
                catch(["FleetBusy"], to="MayWaitForSlot", into="$.held"),
                given_up(to="ReportTable", into="$.failures.lease"),
            ],
            "Next": "Plan",
        },
    }


def waiting_states() -> States:
    """What follows where the table or a slot is taken: wait and ask again, or end."""
    return {
        "MayWait": {
            "Type": "Choice",
            "Comment": (
                "Wait where that was asked for, 960 times 30 s at most; "
                "that leaves four hours of the machine's twelve for the pass"
            ),
            "Choices": [
                {
                    "And": [
                        {"Variable": "$.item.wait", "BooleanEquals": True},
                        {"Variable": "$.waiting.waits", "NumericLessThan": 960},
                    ],
                    "Next": "WaitForTurn",
                }
            ],
            "Default": "NotOurTurn",
        },
        "MayWaitForSlot": {
            "Type": "Choice",
            "Comment": "Runs that overlap maintain no more tables together than one alone",
            "Choices": [{"Variable": "$.waiting.waits", "NumericLessThan": 960, "Next": "WaitForTurn"}],
            "Default": "NoSlot",
        },
        "NoSlot": {
            "Type": "Pass",
            "Comment": "Nothing was begun; a later detection proposes the table again",
            "Parameters": {
                "table.$": "$.item.table",
                "status": "skipped",
                "summary": "as many tables as MaxConcurrentTables allows were maintained all the time",
            },
            "End": True,
        },
        "WaitForTurn": {
            "Type": "Wait",
            "Comment": "Until the other run may be done",
            "Seconds": "${LeaseWaitSeconds}",
            "Next": "CountWait",
        },
        "CountWait": {
            "Type": "Pass",
            "Comment": "So that waiting ends",
            "Parameters": {"waits.$": "States.MathAdd($.waiting.waits, 1)"},
            "ResultPath": "$.waiting",
            "Next": "Lease",
        },
        "NotOurTurn": {
            "Type": "Pass",
            "Comment": "Another run maintains the table; nothing was begun",
            "Parameters": {
                "table.$": "$.item.table",
                "status": "refused",
                "summary": "another run maintains the table now",
            },
            "End": True,
        },
    }
