"""Take a table's lease, or give it back."""

from __future__ import annotations

from typing import Any

from icekeeper.pipeline.events import LeaseEvent, parse_event
from icekeeper.pipeline.turn import give_back_turn, take_turn
from observability import about, deployment, logger

__all__ = ["handle"]


@logger.inject_lambda_context
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``Lease`` and ``Release``."""
    asked = parse_event(LeaseEvent, event)
    about(asked.run_id, asked.item)
    if asked.action == "release":
        return {"released": give_back_turn(deployment(), asked.run_id, asked.item)}
    lease = take_turn(deployment(), asked.run_id, asked.item)
    return {"holder": lease.holder, "expires_ms": lease.expires_ms}
