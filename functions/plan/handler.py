"""Plan one table's pass, and leave the plan in the control bucket."""

from __future__ import annotations

from typing import Any

from icekeeper.pipeline.events import PlanEvent, parse_event
from icekeeper.pipeline.plan_table import plan_table
from observability import about, deployment, logger

__all__ = ["handle"]


@logger.inject_lambda_context
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``Plan``."""
    asked = parse_event(PlanEvent, event)
    about(asked.run_id, asked.item)
    return plan_table(deployment(), asked).model_dump(mode="json")
