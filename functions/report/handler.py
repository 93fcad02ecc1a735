"""Gather how a table's pass or a whole run ended; write the journal, metrics and a log line."""

from __future__ import annotations

from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from cloudwatch import emit_run
from icekeeper.pipeline.events import ReportRunEvent, ReportTableEvent, parse_event
from icekeeper.pipeline.report_table import report_run, was_scan
from idempotency import once
from observability import about, deployment, function, logger
from table_report import tell_pass


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``ReportTable`` and ``Report``."""
    if "item" not in event:
        run = parse_event(ReportRunEvent, event)
        about(run.run_id)
        told = dict(report_run(deployment(), run))
        logger.info("run %s: %s", told["status"], told["summary"], extra={"status": told["status"]})
        emit_run(told, is_scan=was_scan(deployment(), run.run_id))
        return told
    asked = parse_event(ReportTableEvent, event)
    about(asked.run_id, asked.item)

    plan = None if asked.plan is None else asked.plan.digest
    key = {
        "run_id": asked.run_id,
        "table": asked.item.identity.spelling,
        "plan": plan,
        "failures": sorted(asked.failures),
    }
    return once("report", key, context, lambda: tell_pass(deployment(), asked))
