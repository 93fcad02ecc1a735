"""As much of a table's pass as one call can do: its lease, its plan, and the steps in their order
(rule: one-call-never-deletes).

Each part is the very one that the state machine has functions for, and leaves the same outcomes.  So the state machine
goes on with what the call leaves: what is too large, what deletes files, for which this function has no right, and what
it had no time for.  A repetition after a crash does what is missing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from icekeeper.catalogs.addresses import is_table_bucket
from icekeeper.engines.engine import Engine
from icekeeper.errors import MaintenanceError, PlanStale
from icekeeper.operation_facts import STEP_FACTS, StepFacts
from icekeeper.pass_context.stores import sharing_reads
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Failure, Item, OperationEvent, PlanEvent, PlanReference, RunId
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.run_leases import acquire_table_lease
from icekeeper.pipeline.run_step import RETRIED, run_step
from icekeeper.text import masked

log = logging.getLogger(__name__)

# A step that would perhaps not end in time is left: a function that is killed bars its repetition for 15 minutes.
_TIME_FOR_A_STEP_S = 5 * 60.0
_ATTEMPTS = 3
_PAUSE_S = 2.0


class WholePassEvent(BaseModel):
    """Carry out as much of one table's pass as one call can."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: RunId
    item: Item
    hands_on: bool = False
    """Whether another execution takes up what is left: then the call itself ends this one."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one call can do."""

    max_bytes: int
    """How many bytes of input it can rewrite."""
    time_left_s: Callable[[], float]
    """How many seconds are left for it."""
    sleep: Callable[[float], object] = time.sleep


@dataclass(frozen=True, slots=True)
class WholePass:
    """What became of the pass in one call."""

    plan: PlanReference
    """Its routes are those of the steps that are left."""
    failures: Mapping[str, Failure]
    """By step, as the state machine keeps them."""
    left: tuple[str, ...]
    """The steps that are left to the state machine, in order; without any, the pass can be reported."""


@sharing_reads()
def run_whole_pass(deployment: Deployment, event: WholePassEvent, engine: Engine, limits: CallLimits) -> WholePass:
    """Take the table's lease, plan its pass, and carry out its steps.

    A step that fails stops no other.  The lease is kept, for the report.

    Raises:
        LeaseHeld: another run maintains the table.
        FleetBusy: as many tables are maintained as may be.
        MaintenanceError: the table cannot be planned, as ``plan_table`` says.
    """
    deployment = deployment.for_one_pass()
    acquire_table_lease(deployment, event.run_id, event.item)
    attempt = 1
    while True:
        asked = PlanEvent(run_id=event.run_id, item=event.item, attempt=attempt, waves=True)
        plan = plan_table(deployment, asked)
        try:
            return _steps(deployment, event, plan, engine, limits)
        except PlanStale as stale:
            # Planning ends it: beyond its last attempt a plan has no steps.
            log.info("%s is planned again: %s", event.item.table, stale)
            attempt += 1


def _steps(
    deployment: Deployment, event: WholePassEvent, plan: PlanReference, engine: Engine, limits: CallLimits
) -> WholePass:
    failures: dict[str, Failure] = {}
    wanted = [step for step in STEP_FACTS if plan.routes.get(step.name, "none") != "none"]
    for number, step in enumerate(wanted):
        is_ours = plan.routes[step.name] == "function" and not _needs_right_to_delete(step, event.item)
        is_ours = is_ours and step.name not in plan.outgrown  # a function of its own has all of its memory and time
        if not is_ours or limits.time_left_s() < _TIME_FOR_A_STEP_S:
            # Those behind it wait for it, because the order of operations holds.
            left = tuple(one.name for one in wanted[number:])
            routes = {name: route if name in left else "none" for name, route in plan.routes.items()}
            plan = plan.model_copy(update={"routes": routes})
            kept = deployment.kept
            return WholePass(plan if kept is None else kept.documents.handed_over(plan), failures, left)
        asked = OperationEvent.model_validate(
            {"run_id": event.run_id, "item": event.item, "plan": plan, "operation": step.name}
        )
        failure = _carried_out(deployment, asked, engine, limits)
        if failure is not None:
            failures[step.name] = failure
    return WholePass(plan, failures, ())


def _needs_right_to_delete(step: StepFacts, item: Item) -> bool:
    """In table buckets nobody deletes objects: the bucket does."""
    return step.deletes_files and not is_table_bucket(item.warehouse)


def _carried_out(deployment: Deployment, asked: OperationEvent, engine: Engine, limits: CallLimits) -> Failure | None:
    """Carry a step out; what remains of an error after some attempts, as the state machine would catch it."""
    attempt = 1
    while True:
        try:
            run_step(deployment, asked, engine, max_bytes=limits.max_bytes, time_left_s=limits.time_left_s)
            return None
        except PlanStale:
            raise
        except Exception as error:  # whatever it is: one operation must not take the others with it
            if not isinstance(error, RETRIED) or attempt == _ATTEMPTS:
                if not isinstance(error, MaintenanceError):
                    log.exception("%s: %s broke", asked.item.table, asked.step)
                return Failure(Error=type(error).__name__, Cause=json.dumps({"errorMessage": masked(str(error))}))
            log.info("%s: %s is tried again: %s", asked.item.table, asked.step, error)
            limits.sleep(_PAUSE_S * attempt)
            attempt += 1
