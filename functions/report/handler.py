"""Report how the tables of a run ended, and the run; write the journal, metrics and log lines."""

from __future__ import annotations

from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from cloudwatch import emit_run
from icekeeper.pipeline.events import ReportEvent, parse_event
from icekeeper.pipeline.report import report_run
from observability import about, deployment, function, logger
from steps import time_left


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``Report``; a repetition reports only the tables that have no report yet."""
    asked = parse_event(ReportEvent, event)
    about(asked.run_id)
    report = report_run(deployment(), asked, time_left(context))
    for table in report.tables:
        fields = {"catalog": table.item.catalog, "table": table.item.table, "status": table.status}
        logger.info("pass %s: %s", table.status, table.summary, extra=fields)
    emit_run(report)
    logger.info("run %s: %s", report.answer["status"], report.answer["summary"])
    return dict(report.answer)
