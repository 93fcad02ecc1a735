"""Plan the pass over a table, or gather the work of each stage of a run, and write it to the control bucket."""

from __future__ import annotations

from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from icekeeper.pipeline.events import RunEvent, TableEvent, parse_event
from icekeeper.pipeline.gather import gather
from icekeeper.pipeline.plan_table import plan_table
from idempotency import once
from observability import about, deployment, function, logger
from steps import table_key


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``PlanTable`` and ``Gather``."""
    if "item" not in event:
        return _gather(parse_event(RunEvent, event), context)
    asked = parse_event(TableEvent, event)
    about(asked.run_id, asked.item)

    def work() -> dict[str, Any]:
        plan = plan_table(deployment(), asked)
        logger.info("%s is planned", asked.item.table, extra={"routes": dict(plan.routes)})
        return {"steps": len(plan.routes)}

    return once("plan", table_key(asked), context, work)


def _gather(asked: RunEvent, context: Any) -> dict[str, Any]:
    about(asked.run_id)

    def work() -> dict[str, Any]:
        stages = dict(gather(deployment(), asked))
        logger.info("stages", extra={"tables": {stage: tables["count"] for stage, tables in stages.items()}})
        return stages

    return once("gather", {"run_id": asked.run_id}, context, work)
