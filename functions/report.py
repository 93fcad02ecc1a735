"""Reports how the tables of a run ended, and the run: journal, metrics, log lines; its role has no right to a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudwatch import emit_run
from icekeeper.pipeline.events import ReportEvent, parse_event
from icekeeper.pipeline.report import report_run
from observability import deployment, function, logger
from steps import time_left

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


def _report(step: str, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Report the tables that have no report yet, however often it is called."""
    report = report_run(deployment(), parse_event(ReportEvent, event), time_left(context))
    for table in report.tables:
        fields = {"catalog": table.item.catalog, "table": table.item.table, "status": table.status}
        logger.info("pass %s: %s", table.status, table.summary, extra=fields)
    emit_run(report)
    logger.info("run %s: %s", report.answer["status"], report.answer["summary"])
    return dict(report.answer)


handle = function({"report": _report})
