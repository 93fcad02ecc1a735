"""Which passes of a run are carried out in one call each, and what becomes of those that one call was not enough for.

A pass that ends in one call is one state (rule 162).  The state machine therefore has two maps: the first has one state
for each table, the second all states of a pass.  Detection assigns the tables; what a call of the first leaves, the
second takes up, with the tables that were assigned to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from icekeeper.catalogs.addresses import is_table_bucket
from icekeeper.pipeline.control_bucket import proposals_key
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import WAITING, Item, PlanReference, RunId
from icekeeper.pipeline.outgrown import note_killed_call

__all__ = ["HandedOn", "RestEvent", "assign_tables", "handed_on", "take_up_rest"]

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
    """Whether one call has all rights that a pass needs: in table buckets nobody deletes objects (rule 153).

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
