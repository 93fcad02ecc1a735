"""The report of a table's pass, as every function that ends one makes it: journal, metrics, a log line."""

from __future__ import annotations

from typing import Any

from cloudwatch import emit_table
from icekeeper.pipeline.deployment import Deployment, note_pass
from icekeeper.pipeline.events import ReportTableEvent
from icekeeper.pipeline.report_table import report_table
from observability import logger


def tell_pass(deployment: Deployment, asked: ReportTableEvent) -> dict[str, Any]:
    """Gather how the pass ended and tell it; what travels on in the state machine."""
    report = report_table(deployment, asked)
    logger.info("pass %s: %s", report.status, report.summary, extra={"status": report.status})
    emit_table(asked.item, report)
    if report.outcome is not None:
        note_pass(report.outcome)
    return report.to_json()
