"""Which passes one call carries out as a whole, and which steps outgrew a function."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any

from pydantic import BaseModel, ConfigDict

from icekeeper.catalogs.addresses import is_table_bucket
from icekeeper.errors import StorageError
from icekeeper.operation_facts import STEP_FACTS, Operation
from icekeeper.pipeline.control_bucket import ControlBucket, proposals_key, table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import WAITING, Failure, Item, PlanReference, Route, RunId

# Steps that ran out of time or memory in a function, by table; plans send them to a Glue job from then on.
#
# A plan chooses by what is known beforehand: the bytes and files that the table refers to.  How many files must be
# listed, or how long rows take to sort, only shows when the step runs; a step that failed so must not fail every hour.

log = logging.getLogger(__name__)

# Out of time, in the words of Lambda and of Step Functions; then out of memory; then either of them
# (platform: vague-lambda-glue-failures).
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
    """In the words of Lambda, of Step Functions, and of a Glue run's own limit (platform: glue-hides-failure-cause)."""
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
    """Record what was too much for a call that carried out many steps and ran out of time or memory.

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


# Which passes of a run are carried out in one call each, and what becomes of those that one call was not enough for.
#
# A pass that ends in one call is one state.  The state machine therefore has two maps: the first has one
# state for each table, the second all states of a pass.  Detection assigns the tables; what a call of the first leaves,
# the second takes up, with the tables that were assigned to it.

SUMMARY = "the rest of its pass follows in states of its own"
AFTER_WAVE = "the rest of its pass follows the wave of the run"


class HandedOn(BaseModel):
    """A table whose pass one call did not end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    catalog: str
    warehouse: str
    table: str
    uuid: str
    error: str = ""
    """The name of the error with which the call ended; empty where it ended well and left something."""


class RestEvent(BaseModel):
    """Take up the passes that one call each did not end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: RunId
    left: tuple[HandedOn, ...]


def handed_on(item: Item, plan: PlanReference, left: Sequence[str]) -> dict[str, Any]:
    """The answer of a call that leaves steps of its pass: what stands for the result of the table until it has one.

    It has the ``plan`` where the run's wave is next, and else is ``left`` to the second map.
    """
    if plan.routes[left[0]] == "wave":
        waiting = {"key": plan.key, "digest": plan.digest}
        return {"table": item.table, "status": WAITING, "summary": AFTER_WAVE, "plan": waiting}
    return {"table": item.table, "status": WAITING, "summary": SUMMARY, "left": _named(item).model_dump()}


def assign_tables(deployment: Deployment, run_id: str, items: Sequence[Item]) -> Mapping[str, Any]:
    """Write the lists of both maps to the control bucket; the answer has their places, as ``in_one_call`` and ``rest``.

    A list of all tables is the proposals themselves, which were written before.

    Raises:
        StorageError: the control bucket does not answer.
    """
    small = [item for item in items if _is_for_one_call(item)]
    others = [item for item in items if not _is_for_one_call(item)]
    lists = {"in_one_call": small, "rest": others}
    return {name: _written(deployment, run_id, name, part, len(items)) for name, part in lists.items()}


def take_up_rest(deployment: Deployment, event: RestEvent) -> Mapping[str, Any]:
    """Write the list of the second map anew, with the tables that are handed on; returns its place.

    Of a call that was killed is remembered what was too much for it: the next plan has that run elsewhere.

    Raises:
        StorageError: the control bucket does not answer.
    """
    errors = {one.model_copy(update={"error": ""}): one.error for one in event.left}
    found = deployment.control.find_objects(proposals_key(event.run_id), Item)
    rest = []
    for item in found:
        if _named(item) in errors:
            note_killed_call(deployment, event.run_id, item, errors[_named(item)])
        elif _is_for_one_call(item):
            continue
        rest.append(item)
    return _written(deployment, event.run_id, "taken-up", rest, None)


def _is_for_one_call(item: Item) -> bool:
    """Whether one call has all rights that a pass needs: in table buckets nobody deletes objects
    (rule: one-call-never-deletes).

    A pass that a person started is followed state by state.
    """
    return item.is_scheduled and not item.in_job and is_table_bucket(item.warehouse)


def _named(item: Item) -> HandedOn:
    return HandedOn(catalog=item.catalog, warehouse=item.warehouse, table=item.table, uuid=item.uuid)


def _written(
    deployment: Deployment, run_id: str, name: str, items: Sequence[Item], proposed: int | None
) -> Mapping[str, Any]:
    """``proposed`` is the number of all proposals: neither an empty list is written, nor one of as many again."""
    key = proposals_key(run_id)
    if proposed is None or 0 < len(items) < proposed:
        key = f"runs/{run_id}/{name.replace('_', '-')}.json"
        deployment.control.write(key, [item.model_dump(mode="json") for item in items])
    return {"bucket": deployment.control.name, "key": key, "count": len(items)}
