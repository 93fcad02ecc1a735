"""What all functions share: structured logs, metrics in CloudWatch's embedded format, and idempotency."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.detect_tables import Detected
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.report_table import TableReport
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status

__all__ = ["about", "deployment", "logger", "tell_detection", "tell_table"]

logger = Logger(service="icekeeper")
# The most that one document of the embedded metric format holds.
_MAX_METRICS = 100
_PASSES = {"succeeded": "PassesSucceeded", "partial": "PassesPartial", "failed": "PassesFailed"}


@cache
def deployment() -> Deployment:
    """This function's deployment, kept while its container is warm."""
    # The package's own lines go where these go, with the same keys.
    copy_config_to_registered_loggers(source_logger=logger, include={"icekeeper"}, ignore_log_level=False)
    return Deployment.open(os.environ)


def about(run_id: str, item: Item | None = None) -> None:
    """What every further log line is about."""
    logger.append_keys(run_id=run_id, table=None if item is None else item.table)


def tell_detection(found: Detected) -> None:
    """Count what a scan came to."""
    _emit(
        {
            "TablesScanned": found.scanned,
            "TablesProposed": len(found.items),
            "TablesNotReached": found.not_reached,
            "TablesNotReadable": found.errors,
        },
        {},
    )


def tell_table(item: Item, report: TableReport) -> None:
    """Count how a table's pass ended, and what its operations did, by table."""
    totals: dict[str, float] = {}
    if report.status in _PASSES:
        totals[_PASSES[report.status]] = 1
    if report.outcome is not None:
        refused = [one for one in report.outcome.operations if one.status is Status.REFUSED]
        totals["OrphanRemovalsRefused"] = sum(one.operation is Operation.REMOVE_ORPHANS for one in refused)
        _emit(report.outcome.metrics, {"catalog": item.catalog, "table": item.table})
    _emit(totals, {})


def _emit(values: Mapping[str, Any], dimensions: Mapping[str, str]) -> None:
    names = sorted(values)
    for start in range(0, len(names), _MAX_METRICS):
        metrics = EphemeralMetrics(namespace="Icekeeper", service="icekeeper")
        for name, value in dimensions.items():
            metrics.add_dimension(name, value)
        for name in names[start : start + _MAX_METRICS]:
            metrics.add_metric(name=name, unit=_unit(name), value=float(values[name]))
        metrics.flush_metrics()


def _unit(name: str) -> MetricUnit:
    if name.endswith("_ms"):
        return MetricUnit.Milliseconds
    return MetricUnit.Bytes if "bytes" in name else MetricUnit.Count
