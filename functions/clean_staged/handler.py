"""Clean up the files of failed loads of a run's tables, from their record."""

from __future__ import annotations

from typing import Any

from icekeeper.errors import MaintenanceError
from icekeeper.operation_facts import CLEAN_STAGED, Stage
from icekeeper.pipeline.control_bucket import StageItem, stage_key
from icekeeper.pipeline.events import RunEvent, TableEvent, parse_event
from icekeeper.pipeline.run_step import run_steps
from idempotency import once
from observability import about, deployment, function, logger
from steps import table_work

_LEAST_S = 60.0
"""No further tables are begun in the last minute of the call; their loads are cleaned by the next run."""


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``CleanStaged``."""
    asked = parse_event(RunEvent, event)
    about(asked.run_id)
    return once(CLEAN_STAGED, {"run_id": asked.run_id}, context, lambda: _work(asked, context))


def _work(asked: RunEvent, context: Any) -> dict[str, Any]:
    tables = deployment().control.find_objects(stage_key(asked.run_id, Stage.STAGED), StageItem)
    done = 0
    for table in tables:
        about(asked.run_id, table.item, step=CLEAN_STAGED)
        work = table_work(TableEvent(**dict(asked), item=table.item), context)
        if context.get_remaining_time_in_millis() < _LEAST_S * 1000:
            break
        try:
            run_steps(work, [CLEAN_STAGED])
            done += 1
        except MaintenanceError as error:  # it is told beside the table's outcomes, and stops no other
            logger.warning("%s: %s: %s", table.item.table, type(error).__name__, error)
    return {"cleaned": done, "left": len(tables) - done}
