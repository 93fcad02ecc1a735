"""A small table's whole pass in one call; what it cannot do, or not end in time, it leaves to the state machine."""

from __future__ import annotations

from typing import Any

import icekeeper.operations.compaction.compact  # noqa: F401 - its first call would import it, with less of a processor
from icekeeper.errors import MaintenanceError
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import ReportTableEvent, parse_event
from icekeeper.pipeline.one_call import handed_on
from icekeeper.pipeline.run_leases import release_table_lease
from icekeeper.pipeline.whole_pass import CallLimits, WholePassEvent, run_whole_pass
from idempotency import once
from observability import about, deployment, function, logger
from steps import local_engine, most_bytes, time_left
from table_report import tell_pass


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``MaintainSmall``: the ``report`` of a pass that ended, or its ``plan`` and ``failures``.

    As ``MaintainSmallTable``, which ``hands_on``: the report itself, or that the rest is left, without the lease.
    """
    asked = parse_event(WholePassEvent, event)
    about(asked.run_id, asked.item)
    key = {
        "run_id": asked.run_id,
        "table": asked.item.identity.spelling,
        "after_wave": asked.item.after_wave,
        **({"hands_on": True} if asked.hands_on else {}),
    }
    return once("maintain_small", key, context, lambda: _work(asked, context))


def _work(asked: WholePassEvent, context: Any) -> dict[str, Any]:
    limits = CallLimits(max_bytes=most_bytes(), time_left_s=time_left(context))
    ours = deployment().keeping(asked.run_id, asked.item)
    done = run_whole_pass(ours, asked, local_engine(), limits)
    failures = {step: failure.model_dump() for step, failure in done.failures.items()}
    if done.left:
        logger.info("left to the state machine: %s", ", ".join(done.left))
        if asked.hands_on:
            _release(ours, asked)
            return handed_on(asked.item, done.plan, done.left)
        return {"plan": done.plan.model_dump(mode="json"), "failures": failures}
    report = tell_pass(
        ours,
        ReportTableEvent(run_id=asked.run_id, item=asked.item, plan=done.plan, failures=done.failures),
    )
    _release(ours, asked)
    return report if asked.hands_on else {"report": report}


def _release(ours: Deployment, asked: WholePassEvent) -> None:
    try:
        release_table_lease(ours, asked.run_id, asked.item)
    except MaintenanceError as error:  # it runs out by itself
        logger.warning("the lease of %s could not be given back: %s", asked.item.table, error)
