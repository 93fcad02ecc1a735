"""How many states of the state machine are entered because of one call: Step Functions bills each.  Pure.

A call's own state counts, and those behind it in which nothing is called.  Rounds of waiting are left out: nobody who
could count them is called there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.operation_facts import STEP_FACTS

__all__ = ["states_of_call", "states_of_job"]

_ROUTES = len(STEP_FACTS)
_OF_REST = 3
"""MaintainTables, LeftToWave and AnyLeftToWave: of a run in which not every pass ends in one call."""


def states_of_call(function: str, event: Mapping[str, Any], answer: Mapping[str, Any]) -> int:
    """The states of one call that succeeded; ``function`` is its folder."""
    match function:
        case "detect":
            return _of_detection(answer)
        case "maintain_small":
            if event.get("hands_on"):
                return 1
            # IsPassDone and PassDone; or TakeUpPlan, and a choice of every step's route.
            return 3 if "report" in answer else 3 + _ROUTES
        case "plan":
            if "left" in event:
                # Else the second map was counted where tables were assigned to it.
                return 1 + (_OF_REST if answer["count"] == len(event["left"]) else 0)
            return 2 if "wave" in event else 1 + _ROUTES  # RestOfPasses
        case "list_orphans":
            return 2  # AnyOrphans
        case "report":
            return 2 if "item" in event else 3  # TableDone; HowItWent and the end
    return 1


def _of_detection(answer: Mapping[str, Any]) -> int:
    if not answer["proposals"]["count"]:
        return 3  # AnyProposals, NothingToDo
    one_call = 2 if answer["in_one_call"]["count"] else 0  # MaintainSmallTables, AnyLeft
    return 2 + one_call + (_OF_REST if answer["rest"]["count"] else 0)


def states_of_job(*, is_wave: bool) -> int:
    """The states of one run of a Glue job; behind a wave the map and two choices are entered again."""
    return 4 if is_wave else 1
