"""Deletes files that no table needs: listed orphans, and the files of failed loads; its role cannot commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icekeeper.pipeline.events import Item, RunEvent, TableEvent, parse_event
from icekeeper.pipeline.run_step import TableWork, clean_tables
from idempotency import once
from observability import about, deployment, function
from steps import carry_out, table_work, time_left

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


def _clean_staged(step: str, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Clean up the files of failed loads of a run's tables, from their record."""
    asked = parse_event(RunEvent, event)

    def work_on(item: Item) -> TableWork:
        about(item)
        return table_work(step, TableEvent(**dict(asked), item=item), context)

    def work() -> dict[str, Any]:
        cleaned, left = clean_tables(deployment(), asked.run_id, work_on, time_left(context))
        return {"cleaned": cleaned, "left": left}

    return once(step, {"run_id": asked.run_id}, context, work)


handle = function({"remove_orphans": carry_out, "clean_staged": _clean_staged})
