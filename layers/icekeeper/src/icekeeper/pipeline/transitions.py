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
_AROUND_TABLES = 5
"""MaintainTables, LeftToWave and AnyLeftToWave before the run's report, HowItWent and its end behind it."""


def states_of_call(function: str, event: Mapping[str, Any], answer: Mapping[str, Any]) -> int:
    """The states of one call that succeeded; ``function`` is its folder."""
    match function:
        case "detect":
            return 2 if answer["proposals"]["count"] else 3  # AnyProposals, NothingToDo
        case "maintain_small":
            # IsPassDone and PassDone; or TakeUpPlan, and a choice of every step's route.
            return 3 if "report" in answer else 3 + _ROUTES
        case "plan":
            return 2 if "wave" in event else 1 + _ROUTES  # RestOfPasses
        case "list_orphans":
            return 2  # AnyOrphans
        case "report":
            return 2 if "item" in event else 1 + _AROUND_TABLES  # TableDone
    return 1


def states_of_job(*, is_wave: bool) -> int:
    """The states of one run of a Glue job; behind a wave the map and two choices are entered again."""
    return 4 if is_wave else 1
