"""Metrics in CloudWatch's embedded metric format: lines in a function's log that CloudWatch turns into metrics.

Custom metrics are billed for every hour in which a combination of name and dimensions has data.  So a total is a metric
only if an alarm or the dashboard reads it, and if it is not 0; other totals are properties of the same log line, which
Logs Insights finds and AWS does not bill.  Their dimension ``service`` is the stack's name, from
``POWERTOOLS_SERVICE_NAME``.

``METRICS`` widens this, each value by one step: ``all`` makes metrics of all totals; ``passes`` adds metrics by table
(``catalog``, ``service``, ``table``) of what each pass did; ``tables`` adds the health of each table, so the number of
metrics grows with the number of tables, not with the work.  Zeros of a pass are left out; the numbers of requests are
written as totals only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from icekeeper.errors import MaintenanceError
from icekeeper.health.examine import lake_totals
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.report import RunReport, TableReport
from icekeeper.policy import Operation
from icekeeper.report.outcome import REQUESTS, Status
from icekeeper.state.lake_stats import LakeStats
from icekeeper.text import escaped
from observability import SERVICE, logger

if TYPE_CHECKING:
    from icekeeper.pipeline.detect_tables import Detected  # imports detection, which the report function does not need


# A document of the embedded metric format holds at most this many metrics.
_MAX_METRICS = 100
_RUN_SUCCEEDED, _RUN_FAILED = "RunsSucceeded", "RunsFailed"
# The totals that alarms and the dashboard read; a test compares them with the template.
_ASKED_FOR = frozenset(
    {
        "CatalogsEmpty",
        "JobsFailed",
        "OperationsFailedRepeatedly",
        "OrphanRemovalsRefused",
        "PassesFailed",
        "PassesPartial",
        "PassesSucceeded",
        _RUN_FAILED,
        _RUN_SUCCEEDED,
        "TablesNotReached",
        "TablesNotReadable",
        "compact.bytes_written",
        "compact.files_merged",
        "expire_snapshots.snapshots_expired",
        "lake_data_files",
        "lake_delete_files",
        "lake_snapshots",
        "lake_tables",
        "lake_tables_warned",
        "remove_orphans.orphans_removed",
    }
)
# Written even if it is 0: its alarm ends only when it receives a zero.
_TOLD_AT_ZERO = frozenset({"TablesNotReadable"})
_PASSES = {"succeeded": "PassesSucceeded", "partial": "PassesPartial", "failed": "PassesFailed"}
_REPEATEDLY = 3
"""An operation must have failed in this many passes in a row: a temporary problem raises no alarm."""
_MOST_NAMED = 100
"""The most tables that a log line names; a line holds 256 KB."""


def emit_detection(deployment: Deployment, found: Detected, *, is_scan: bool) -> None:
    """Write the counts of a scan, and the totals of the lake.

    A scan of the fleet that finds nothing to do is a successful run: the state machine ends after it.
    """
    _emit(
        {
            "TablesScanned": found.scanned,
            "TablesProposed": len(found.items),
            "TablesNotReached": found.not_reached,
            "TablesNotReadable": found.errors,
            "CatalogsEmpty": found.empty_catalogs,
            **({_RUN_SUCCEEDED: 1} if is_scan and not found.items else {}),
        }
    )
    if found.scanned == 0:
        return
    try:
        _put_lake_metrics(list(_remembered(deployment)))
    except Exception as error:  # a failure to report health must not fail the scan
        logger.warning("the health of the lake cannot be reported: %s %s", type(error).__name__, error)


def emit_run(report: RunReport) -> None:
    """Write the totals of the passes that one call has reported: how they ended, and what their operations did.

    The last call of a run also writes how the run ended.  A run that a person starts for one table says nothing about
    the schedule, so only runs over the fleet count as succeeded or failed.
    """
    totals: Counter[str] = Counter()
    repeatedly: list[str] = []
    for table in report.tables:
        totals.update(_of_table(table))
        failing = [f"{name} {times} times" for name, times in table.failures.items() if times >= _REPEATEDLY]
        if failing:
            totals["OperationsFailedRepeatedly"] += len(failing)
            repeatedly.append(f"{table.item.catalog} {table.item.table}: {', '.join(failing)}")
    if report.has_ended:
        if report.is_scan:
            totals[_RUN_FAILED if report.answer["status"] == "failed" else _RUN_SUCCEEDED] += 1
        totals["JobsFailed"] += report.failed_jobs
    _emit(totals)
    if repeatedly:
        named = "; ".join(repeatedly[:_MOST_NAMED])
        more = f"; and {len(repeatedly) - _MOST_NAMED} table(s) more" if len(repeatedly) > _MOST_NAMED else ""
        logger.error("failed in several passes in a row: %s%s", named, more)


def _of_table(report: TableReport) -> Mapping[str, float]:
    """The totals that a table adds to; its own metrics are written if ``METRICS`` asks for them."""
    totals: dict[str, float] = {}
    if report.status in _PASSES:
        totals[_PASSES[report.status]] = 1
    if report.outcome is None:
        return totals
    refused = [operation for operation in report.outcome.operations if operation.status is Status.REFUSED]
    totals["OrphanRemovalsRefused"] = sum(operation.operation is Operation.REMOVE_ORPHANS for operation in refused)
    done = {name: value for name, value in report.outcome.metrics.items() if value}
    if _wants("passes"):
        # Metrics of the requests of each table would cost more than the requests.
        of_table = {name: value for name, value in done.items() if not name.endswith(REQUESTS)}
        _emit_of_table(of_table, (report.item.catalog, report.item.table))
    return {**totals, **done}


def _put_lake_metrics(lake: Sequence[LakeStats]) -> None:
    _emit(lake_totals(lake))
    if _wants("tables"):
        for stats in (stats for stats in lake if not stats.verdict.is_unread):
            values = {**stats.counters, "lake_warnings": len(stats.warnings)}
            _emit_of_table(values, (stats.identity.catalog.name, str(stats.identity.table)))


def _remembered(deployment: Deployment) -> Iterator[LakeStats]:
    for configured in deployment.catalogs(unreachable=lambda error: None):  # the scan has logged it
        try:
            catalog = deployment.runtime_of(configured).catalog
        except MaintenanceError:
            continue
        yield from deployment.state.lake_stats.of_catalog(catalog.id)


def _wants(metrics: str) -> bool:
    steps = ("few", "all", "passes", "tables")
    return steps.index(metrics) <= steps.index(os.environ.get("METRICS", "").strip() or "few")


def _emit(totals: Mapping[str, int | float]) -> None:
    """Write totals: those that are wanted as metrics, the others as properties of the line."""
    if _wants("all"):
        metrics = dict(totals)
    else:
        metrics = {name: totals[name] for name in _ASKED_FOR & totals.keys() if totals[name] or name in _TOLD_AT_ZERO}
    rest = {name: value for name, value in totals.items() if name not in metrics and value}
    if metrics:
        _write(metrics, {}, rest)
    elif rest:
        logger.info("counted", extra=rest)


def _emit_of_table(values: Mapping[str, int | float], table: tuple[str, str]) -> None:
    """Write metrics of a table, given as catalog and name."""
    _write(values, {"catalog": _dimension(table[0]), "table": _dimension(table[1])}, {})


def _dimension(name: str) -> str:
    """A name as a CloudWatch dimension: ASCII, without control characters, at most 1,024 characters."""
    return escaped(name).encode("ascii", "backslashreplace").decode()[:1024]


def _write(
    values: Mapping[str, int | float], dimensions: Mapping[str, str], properties: Mapping[str, int | float]
) -> None:
    names = sorted(values)
    for start in range(0, len(names), _MAX_METRICS):
        metrics = EphemeralMetrics(namespace="Icekeeper", service=SERVICE)
        for dimension, value in dimensions.items():
            metrics.add_dimension(dimension, value)
        for name in names[start : start + _MAX_METRICS]:
            metrics.add_metric(name=name, unit=_unit(name), value=float(values[name]))
        for name, number in properties.items() if start == 0 else ():
            metrics.add_metadata(name, number)
        metrics.flush_metrics()


def _unit(name: str) -> MetricUnit:
    if name.endswith("_ms"):
        return MetricUnit.Milliseconds
    if name.endswith("_s"):
        return MetricUnit.Seconds
    return MetricUnit.Bytes if "bytes" in name else MetricUnit.Count
