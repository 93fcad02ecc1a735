"""Plan one table's pass, and write the plan to the control bucket."""

from __future__ import annotations

from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from icekeeper.pipeline.events import PlanEvent, parse_event
from icekeeper.pipeline.plan_table import plan_table
from idempotency import once
from observability import about, deployment, function, logger

__all__ = ["handle"]


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``Plan``."""
    asked = parse_event(PlanEvent, event)
    about(asked.run_id, asked.item)

    def work() -> dict[str, Any]:
        plan = plan_table(deployment(), asked)
        routes = {step: route for step, route in plan.routes.items() if route != "none"}
        logger.info("%s is planned", asked.item.table, extra={"attempt": plan.attempt, "routes": routes})
        return plan.model_dump(mode="json")

    key = {"run_id": asked.run_id, "table": asked.item.identity.spelling, "attempt": asked.attempt}
    return once("plan", key, context, work)
