"""List a table's orphans, and write the list to the control bucket."""

from __future__ import annotations

from typing import Any

from icekeeper.pipeline.control_bucket import LISTED_ORPHANS
from icekeeper.pipeline.events import TableEvent, parse_event
from icekeeper.pipeline.run_step import list_orphans
from idempotency import once
from observability import about, function
from steps import table_key, table_work


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``ListOrphans``."""
    asked = parse_event(TableEvent, event)
    about(asked.run_id, asked.item, step=LISTED_ORPHANS)

    def work() -> dict[str, Any]:
        count, digest = list_orphans(table_work(asked, context))
        return {"count": count, "listed": digest}

    return once(LISTED_ORPHANS, table_key(asked), context, work)
