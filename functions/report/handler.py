"""Gather how a table's pass or a whole run ended; write the journal, metrics and a log line."""

from __future__ import annotations

from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from cloudwatch import emit_run, emit_table
from icekeeper.pipeline.events import ReportRunEvent, ReportTableEvent, parse_event
from icekeeper.pipeline.report_run import report_run
from icekeeper.pipeline.report_table import report_table
from idempotency import once
from observability import about, deployment, function, logger

__all__ = ["handle"]


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``ReportTable`` and ``Report``."""
    if "item" not in event:
        run = parse_event(ReportRunEvent, event)
        about(run.run_id)
        told = dict(report_run(deployment(), run))
        logger.info("run %s: %s", told["status"], told["summary"], extra={"status": told["status"]})
        emit_run(told)
        return told
    asked = parse_event(ReportTableEvent, event)
    about(asked.run_id, asked.item)

    def work() -> dict[str, Any]:
        report = report_table(deployment(), asked)
        logger.info("pass %s: %s", report.status, report.summary, extra={"status": report.status})
        emit_table(asked.item, report)
        return report.to_json()

    plan = None if asked.plan is None else asked.plan.digest
    key = {
        "run_id": asked.run_id,
        "table": asked.item.identity.spelling,
        "plan": plan,
        "failures": sorted(asked.failures),
    }
    return once("report", key, context, work)
