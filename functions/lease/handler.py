"""Take a table's lease, or give it back."""

from __future__ import annotations

from typing import Any

from icekeeper.pipeline.events import LeaseEvent, parse_event
from icekeeper.pipeline.turn import give_back_turn, take_turn
from observability import about, deployment, function, logger

__all__ = ["handle"]


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``Lease`` and ``Release``."""
    asked = parse_event(LeaseEvent, event)
    about(asked.run_id, asked.item)
    if asked.action == "release":
        is_released = give_back_turn(deployment(), asked.run_id, asked.item)
        logger.info("lease of %s given back" if is_released else "the lease of %s was not ours", asked.item.table)
        return {"released": is_released}
    lease = take_turn(deployment(), asked.run_id, asked.item)
    logger.info("lease of %s taken", asked.item.table, extra={"expires_ms": lease.expires_ms})
    return {"holder": lease.holder, "expires_ms": lease.expires_ms}
