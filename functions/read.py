"""Finds the tables of a run, plans their passes and lists orphans; its role reads tables and changes none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudwatch import emit_detection
from icekeeper.pipeline.detect_tables import detect_tables
from icekeeper.pipeline.events import DetectEvent, RunEvent, TableEvent, parse_event
from icekeeper.pipeline.gather import gather
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.run_step import list_orphans
from idempotency import once
from observability import about, deployment, function, logger
from steps import table_key, table_work

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


def _detect(step: str, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Find the tables of the fleet that need maintenance, or the requested table."""
    asked = parse_event(DetectEvent, event)

    def work() -> dict[str, Any]:
        answer, found = detect_tables(deployment(), asked)
        logger.info("%s", found.reason, extra={"proposals": len(found.items)})
        emit_detection(deployment(), found, is_scan=not answer["forced"])
        return dict(answer)

    return once(step, asked.model_dump(mode="json"), context, work)


def _plan(step: str, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Plan the pass over a table, and write the plan to the control bucket."""
    asked = parse_event(TableEvent, event)
    about(asked.item)

    def work() -> dict[str, Any]:
        plan = plan_table(deployment(), asked)
        logger.info("%s is planned", asked.item.table, extra={"routes": dict(plan.routes)})
        return {"steps": len(plan.routes)}

    return once(step, table_key(asked), context, work)


def _gather(step: str, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Gather the work of each stage of a run from the plans of its tables."""
    asked = parse_event(RunEvent, event)

    def work() -> dict[str, Any]:
        stages = dict(gather(deployment(), asked))
        logger.info("stages", extra={"tables": {stage: tables["count"] for stage, tables in stages.items()}})
        return stages

    return once(step, {"run_id": asked.run_id}, context, work)


def _list_orphans(step: str, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """List a table's orphans, and write the list to the control bucket."""
    asked = parse_event(TableEvent, event)
    about(asked.item)

    def work() -> dict[str, Any]:
        count, digest = list_orphans(table_work(step, asked, context))
        return {"count": count, "listed": digest}

    return once(step, table_key(asked), context, work)


handle = function({"detect": _detect, "plan": _plan, "gather": _gather, "list_orphans": _list_orphans})
