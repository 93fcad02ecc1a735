"""The work of a run table by table, in Distributed Maps: plan, compact in functions, expire and sweep.

A child has as few states as possible, because AWS bills each state that is entered,
and is bounded by the timeouts of its tasks.  It returns nothing: outcomes and reasons of failures are documents in the
control bucket.
"""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.operation_facts import STEPS, Stage, steps_of_call
from state_machine.tasks import State, States, camel, description_of, function_task, given_up

_OF_RUN = {"run_id.$": "$.run_id", "started_ms.$": "$.started_ms"}
_THIS_TABLE = {**_OF_RUN, "item.$": "$.item"}
_NOTHING = {"OutputPath": None}
"""A child that ends with this output returns ``{}``."""


def plan_tables() -> State:
    """One task per table; no ``ResultPath``, ``Catch`` and ``Next`` yet."""
    ended = "TableNotPlanned"
    states = {
        "PlanTable": {
            **function_task(
                "plan", _THIS_TABLE, comment="Plan the operations of the table, and where they run", waits=True
            ),
            "ResultPath": None,
            "Catch": [given_up(to=ended)],
            **_NOTHING,
            "End": True,
        },
        # Without it, a failure shared by all tables would make the map's output too long: each has a stack trace.
        ended: _ended("The table is in no stage; the report says why"),
    }
    item = {"item.$": "$$.Map.Item.Value"}
    comment = "Plan each table, those with the most need first"
    return _map("PlanTables", of="tables", comment=comment, item=item, states=states)


def compact_small_tables() -> State:
    """The work of functions before the wave; no ``ResultPath``, ``Catch`` and ``Next`` yet."""
    ended = "TableCompacted"
    states = {
        "AnyPartitions": _choice(
            "Partitions past their retention", {"expire_partitions": "ExpirePartitions"}, "CompactSmall"
        ),
        **_task("expire_partitions", then="AnyToCompact"),
        "AnyToCompact": _choice("Small data files or deletes", {"compact": "CompactSmall"}, ended),
        **_task("compact", "CompactSmall", then=None, failed=ended),
        ended: _ended("The outcomes are in the control bucket"),
    }
    return _stage_map(
        "CompactSmallTables", Stage.SMALL, "Expire partitions, and compact small tables in functions", states
    )


def expire_and_sweep() -> State:
    """The work of functions after the wave; no ``ResultPath``, ``Catch`` and ``Next`` yet.

    Most tables are here for their snapshots, so the first state is not a choice: if nothing expires, the call ends at
    once.  Its answer names the later steps that have nothing to do.
    """
    states = _task("expire_snapshots", then="WhatNext") | _sweep()
    states["ExpireSnapshots"] = {
        **states["ExpireSnapshots"],
        "ResultSelector": {"steps.$": "$.Payload"},
        "ResultPath": "$.done",
    }
    return _stage_map("ExpireAndSweep", Stage.SWEEP, "Snapshots, then orphans, then manifests", states)


def sweep_after_jobs() -> State:
    """The work of functions that waited for a job of the table; no ``ResultPath``, ``Catch`` and ``Next`` yet."""
    comment = "What follows the expiry or the orphans of large tables"
    return _stage_map("SweepAfterJobs", Stage.AFTER_JOBS, comment, _sweep("AfterJobs"))


def _sweep(suffix: str = "") -> States:
    """Orphans, then manifests; the names of the states end with ``suffix``, because a definition has each only once."""
    ended, any_manifests, remove = f"TableSwept{suffix}", f"AnyManifests{suffix}", f"RemoveOrphans{suffix}"
    manifests = {"rewrite_manifests": f"RewriteManifests{suffix}"}
    found = {"Variable": "$.orphans.count", "NumericGreaterThan": 0, "Next": remove}
    any_orphans = _choice("Orphans were listed", manifests, ended)
    to_orphans = {"remove_orphans": f"ListOrphans{suffix}"}
    return {
        f"WhatNext{suffix}": _choice("Orphans to list, or manifests to merge", {**to_orphans, **manifests}, ended),
        f"ListOrphans{suffix}": {
            **function_task("list_orphans", _THIS_TABLE, comment="List old files that nothing references", waits=True),
            "ResultSelector": {"count.$": "$.Payload.count", "listed.$": "$.Payload.listed"},
            "ResultPath": "$.orphans",
            "Catch": [given_up(to=any_manifests)],
            "Next": f"AnyOrphans{suffix}",
        },
        f"AnyOrphans{suffix}": {**any_orphans, "Choices": [found, *any_orphans["Choices"]]},
        **_task("remove_orphans", remove, then=any_manifests, more={"listed.$": "$.orphans.listed"}),
        any_manifests: _choice("Manifests to merge, or distinct values to count", manifests, ended),
        **_task("rewrite_manifests", f"RewriteManifests{suffix}", then=None, failed=ended),
        ended: _ended("The outcomes are in the control bucket"),
    }


def _map(label: str, *, of: str, comment: str, item: State, states: States) -> State:
    """A map over a list in the control bucket; ``of`` is where the list is in the data."""
    return {
        "Type": "Map",
        "Label": label,
        "Comment": comment,
        "MaxConcurrency": "${MaxConcurrentTables}",
        # A table that fails never stops the others.  A fraction, because moto supports nothing else.
        "ToleratedFailurePercentage": 100.0,
        "ItemReader": {
            "Resource": "arn:aws:states:::s3:getObject",
            "ReaderConfig": {"InputType": "JSON"},
            "Parameters": {"Bucket.$": f"$.{of}.bucket", "Key.$": f"$.{of}.key"},
        },
        "ItemSelector": {**_OF_RUN, **item},
        "ItemProcessor": {
            "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
            "StartAt": next(iter(states)),
            "States": states,
        },
    }


def _stage_map(label: str, stage: Stage, comment: str, states: States) -> State:
    item = {f"{name}.$": f"$$.Map.Item.Value.{name}" for name in ("item", "steps")}
    return _map(label, of=f"stages.{stage.value}", comment=comment, item=item, states=states)


def _task(step: str, name: str = "", *, then: str | None, failed: str = "", more: State | None = None) -> States:
    """The task of a step, named after it by default; the same state follows, whether the task succeeds or fails.

    If no state follows (``then`` is ``None``), the child ends, and a failure leads to the state ``failed``.
    """
    payload = {**_THIS_TABLE, **(more or {})}
    task = function_task(step, payload, comment=description_of(steps_of_call(step)), waits=True)
    ways = {**_NOTHING, "End": True} if then is None else {"Next": then}
    return {name or camel(step): {**task, "ResultPath": None, "Catch": [given_up(to=then or failed)], **ways}}


def _choice(comment: str, to: Mapping[str, str], otherwise: str) -> State:
    """A choice by the steps that the stage has for the table: the first call of ``to`` with one of its steps.

    Steps that another call has done are passed over.
    """

    def due(step: str) -> State:
        is_due = {"Variable": f"$.steps.{step}", "IsPresent": True}
        is_open = {"Variable": f"$.done.steps.{step}", "IsPresent": False}
        return {"And": [is_due, is_open]} if step == "rewrite_manifests" else is_due

    return {
        "Type": "Choice",
        "Comment": comment,
        "Choices": [
            {**due(step), "Next": state} for call, state in to.items() for step in STEPS if step in steps_of_call(call)
        ],
        "Default": otherwise,
    }


def _ended(comment: str) -> State:
    return {"Type": "Succeed", "Comment": comment, **_NOTHING}
