"""The states of a table's lease: taken, waited for, or left to others."""

from __future__ import annotations

from state_machine.tasks import LEASE_S, State, States, catch, function_task


def lease_states(table: State, *, then: str, failed: State, prefix: str = "") -> States:
    """The state that takes the lease of a ``table``, and goes on with the state ``then``; ``failed`` catches the rest.

    ``prefix`` tells the states of one map from those of another: names are unique in the whole machine.
    """
    return {
        f"{prefix}Lease": {
            **function_task(
                "lease",
                {"action": "acquire", **table},
                comment="This run's turn to maintain the table, if nobody else's, and one of the slots of the fleet",
                timeout_s=LEASE_S,
                answers=["holder", "expires_ms"],
            ),
            "ResultPath": "$.lease",
            "Catch": [
                *held_elsewhere(prefix),
                failed,
            ],
            "Next": then,
        },
    }


def released(table: State, comment: str) -> State:
    """A task that gives the lease of a ``table`` back; no ``Catch`` and ``Next`` yet."""
    return {
        **function_task("lease", {"action": "release", **table}, comment=comment, timeout_s=LEASE_S, answers=[]),
        "ResultPath": None,
    }


def held_elsewhere(prefix: str = "") -> list[State]:
    """What catches that the table, or every slot, is taken."""
    return [
        catch(["LeaseHeld"], to=f"{prefix}MayWait", into="$.held"),
        catch(["FleetBusy"], to=f"{prefix}MayWaitForSlot", into="$.held"),
    ]


def waiting_states(prefix: str = "") -> States:
    """What follows where the table or a slot is taken: wait and ask again, or end."""
    states: States = {
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
                    "Next": f"{prefix}WaitForTurn",
                }
            ],
            "Default": f"{prefix}NotOurTurn",
        },
        "MayWaitForSlot": {
            "Type": "Choice",
            "Comment": "Runs that overlap maintain no more tables together than one alone",
            "Choices": [{"Variable": "$.waiting.waits", "NumericLessThan": 960, "Next": f"{prefix}WaitForTurn"}],
            "Default": f"{prefix}NoSlot",
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
            "Next": f"{prefix}CountWait",
        },
        "CountWait": {
            "Type": "Pass",
            "Comment": "So that waiting ends",
            "Parameters": {"waits.$": "States.MathAdd($.waiting.waits, 1)"},
            "ResultPath": "$.waiting",
            "Next": f"{prefix}Lease",
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
    return {f"{prefix}{name}": state for name, state in states.items()}
