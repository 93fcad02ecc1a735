"""Take a table's lease, or give it back."""

from __future__ import annotations

from typing import Any

from icekeeper.pipeline.events import LeaseEvent, parse_event
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from observability import about, deployment, function, logger


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``Lease`` and ``Release``."""
    asked = parse_event(LeaseEvent, event)
    about(asked.run_id, asked.item)
    if asked.action == "release":
        is_released = release_table_lease(deployment(), asked.run_id, asked.item)
        logger.info("lease of %s given back" if is_released else "the lease of %s was not ours", asked.item.table)
        return {"released": is_released}
    lease = acquire_table_lease(deployment(), asked.run_id, asked.item)
    logger.info("lease of %s taken", asked.item.table, extra={"expires_ms": lease.expires_ms})
    return {"holder": lease.holder, "expires_ms": lease.expires_ms}
