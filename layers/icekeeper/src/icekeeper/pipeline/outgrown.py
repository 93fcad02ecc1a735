"""Steps that ran out of time or memory in a function, by table; plans send them to a Glue job from then on.

A plan chooses by what is known beforehand: the bytes and files that the table refers to.  How many files must be
listed, or how long rows take to sort, only shows when the step runs; a step that failed so must not fail every hour.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Set

from icekeeper.errors import StorageError
from icekeeper.operation_facts import STEP_FACTS, Operation
from icekeeper.pipeline.control_bucket import ControlBucket, table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Failure, Item, Route

__all__ = ["is_cut_off", "note_killed_call", "outgrown_steps", "remember_outgrown"]

log = logging.getLogger(__name__)

# Out of time, in the words of Lambda and of Step Functions; then out of memory; then either of them (platform 57).
_TOO_MUCH = frozenset(
    {"Sandbox.Timedout", "States.Timeout", "Runtime.ExitError", "Runtime.OutOfMemory", "Lambda.Unknown"}
)


def is_cut_off(routes: Mapping[str, Route], failures: Mapping[str, Failure]) -> bool:
    """Whether a step ran out of time where it has the most that there is: in its job, or without one in its function.

    What runs out of time in a function and has a job is tried there first.
    """
    with_job = {step.name for step in STEP_FACTS if step.job is not None}
    return any(
        _has_timed_out(failure) and (routes.get(step) == "glue" or (step in routes and step not in with_job))
        for step, failure in failures.items()
    )


def _has_timed_out(failure: Failure) -> bool:
    """In the words of Lambda, of Step Functions, and of a Glue run's own limit (platform 54)."""
    if failure.Error in ("Sandbox.Timedout", "States.Timeout"):
        return True
    try:
        return bool(json.loads(failure.Cause).get("JobRunState") == "TIMEOUT")
    except (ValueError, AttributeError):
        return False


def outgrown_steps(control: ControlBucket, item: Item) -> frozenset[str]:
    """The steps of a table that a function could not finish; forgotten with the runs' documents, after 90 days.

    Raises:
        StorageError: the control bucket does not answer.
    """
    found = control.find_hint(_key(item))
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def remember_outgrown(
    control: ControlBucket, item: Item, routes: Mapping[str, Route], failures: Mapping[str, Failure]
) -> None:
    """Record which steps of a pass ran out of time or memory in a function.

    A failure to write is only logged: the next pass then finds it out again.
    """
    steps = {step for step, failure in failures.items() if failure.Error in _TOO_MUCH}
    _note(control, item, {step for step in steps if routes.get(step) == "function"})


def note_killed_call(deployment: Deployment, run_id: str, item: Item, error: str) -> None:
    """Record what was too much for a call that carried out many steps and ran out of time or memory (rule 162).

    ``error`` is the name of the call's error.  Compaction grows with the data, so the call has noted that it began
    with it.  Where it was another step, nothing tells which: those without a job get functions of their own from now
    on, and so do all behind them.

    Raises:
        StorageError: the control bucket does not answer.
    """
    if error not in _TOO_MUCH:
        return
    documents, compact = deployment.documents(run_id, item), Operation.COMPACT.value
    ended = documents.outcome(compact) or documents.carried_out(documents.first_plan()).get(compact)
    if documents.begun(compact) is not None and ended is None:
        _note(deployment.control, item, {compact})
    else:
        _note(deployment.control, item, {step.name for step in STEP_FACTS if step.job is None})


def _note(control: ControlBucket, item: Item, steps: Set[str]) -> None:
    if not steps:
        return
    try:
        control.write(_key(item), sorted(steps | outgrown_steps(control, item)))
    except StorageError as error:
        log.warning("%s: that %s is too much for a function was not noted: %s", item.table, ", ".join(steps), error)


def _key(item: Item) -> str:
    return f"{table_folder('outgrown', item.identity.spelling)}.json"
