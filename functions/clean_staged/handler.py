"""Clean up the files of failed loads of a run's tables, from their record."""

from __future__ import annotations

from typing import Any

from icekeeper.operation_facts import CLEAN_STAGED
from icekeeper.pipeline.events import Item, RunEvent, TableEvent, parse_event
from icekeeper.pipeline.run_step import TableWork, clean_tables
from idempotency import once
from observability import about, deployment, function
from steps import table_work, time_left


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``CleanStaged``."""
    asked = parse_event(RunEvent, event)
    about(asked.run_id)

    def work_on(item: Item) -> TableWork:
        about(asked.run_id, item, step=CLEAN_STAGED)
        return table_work(TableEvent(**dict(asked), item=item), context)

    def work() -> dict[str, Any]:
        cleaned, left = clean_tables(deployment(), asked.run_id, work_on, time_left(context))
        return {"cleaned": cleaned, "left": left}

    return once(CLEAN_STAGED, {"run_id": asked.run_id}, context, work)
