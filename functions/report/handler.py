"""Gather how a table's pass ended, or how a run did, and tell it."""

from __future__ import annotations

from typing import Any

from icekeeper.pipeline.events import ReportRunEvent, ReportTableEvent, parse_event
from icekeeper.pipeline.report_run import report_run
from icekeeper.pipeline.report_table import report_table
from observability import about, deployment, logger, tell_table

__all__ = ["handle"]


@logger.inject_lambda_context
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``ReportTable`` and ``Report``."""
    if "item" not in event:
        run = parse_event(ReportRunEvent, event)
        about(run.run_id)
        return dict(report_run(deployment(), run))
    asked = parse_event(ReportTableEvent, event)
    about(asked.run_id, asked.item)
    report = report_table(deployment(), asked)
    tell_table(asked.item, report)
    return report.to_json()
