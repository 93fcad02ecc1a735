"""Metrics in CloudWatch's embedded metric format: lines in a function's log that CloudWatch turns into metrics.

Custom metrics are billed for every hour in which a combination of name and dimensions has data.  So totals are metrics
only where an alarm or the dashboard asks for them, and where they are not 0; the others are properties of the same log
line, which Logs Insights finds and nobody bills.  ``METRICS=all`` makes metrics of all totals.  Their dimension
``service`` is the stack's name, which ``POWERTOOLS_SERVICE_NAME`` holds.

``METRICS_PER_TABLE`` decides whether there are metrics by table (``catalog``, ``service``, ``table``) as well.
``none`` (the default) writes none.  ``passes`` adds what each pass did, ``all`` also the health of each table of the
lake, whose number grows with the lake and not with the work.  What a pass did is left out where it is 0; the numbers of
requests are told as totals only.
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
    from icekeeper.pipeline.detect_tables import Detected  # with all that detects, which a report does not need


# One document of the embedded metric format holds at most this many.
_MAX_METRICS = 100
_RUN_SUCCEEDED, _RUN_FAILED = "RunsSucceeded", "RunsFailed"
# The totals that alarms and the dashboard ask for; a test compares them with the template.
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
# Its alarm ends only when it is told that nothing is wrong any more.
_TOLD_AT_ZERO = frozenset({"TablesNotReadable"})
_PASSES = {"succeeded": "PassesSucceeded", "partial": "PassesPartial", "failed": "PassesFailed"}
_REPEATEDLY = 3
"""In so many passes in a row an operation must have failed: what passes by itself rings nobody."""
_MOST_NAMED = 100
"""Tables that a log line names; it holds 256 KB."""


def emit_detection(deployment: Deployment, found: Detected, *, is_scan: bool) -> None:
    """Write the counts of a scan, and the totals of the lake.

    A scan of the fleet that finds nothing to do is a run that succeeded: the state machine ends behind it.
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
        _tell_lake(list(_remembered(deployment)))
    except Exception as error:  # a failure to report health must not fail the scan
        logger.warning("how the lake looks cannot be told: %s %s", type(error).__name__, error)


def emit_run(report: RunReport) -> None:
    """Write how the passes ended that one call has reported, summed up, and what their operations did.

    How the run ended comes with its last call.  What people ask for one table says nothing of the schedule, so only
    runs over the fleet count as succeeded or failed.
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
    """The totals that a table adds to; its own metrics are written where they are wanted."""
    totals: dict[str, float] = {}
    if report.status in _PASSES:
        totals[_PASSES[report.status]] = 1
    if report.outcome is None:
        return totals
    refused = [one for one in report.outcome.operations if one.status is Status.REFUSED]
    totals["OrphanRemovalsRefused"] = sum(one.operation is Operation.REMOVE_ORPHANS for one in refused)
    done = {name: value for name, value in report.outcome.metrics.items() if value}
    if _wanted() != "none":
        # The numbers of requests of each table would cost more than the requests.
        of_table = {name: value for name, value in done.items() if not name.endswith(REQUESTS)}
        _emit_of_table(of_table, (report.item.catalog, report.item.table))
    return {**totals, **done}


def _tell_lake(lake: Sequence[LakeStats]) -> None:
    _emit(lake_totals(lake))
    if _wanted() == "all":
        for stats in (one for one in lake if not one.verdict.is_unread):
            values = {**stats.counters, "lake_warnings": len(stats.warnings)}
            _emit_of_table(values, (stats.identity.catalog.name, str(stats.identity.table)))


def _remembered(deployment: Deployment) -> Iterator[LakeStats]:
    for configured in deployment.catalogs(unreachable=lambda error: None):  # the scan has logged it
        try:
            catalog = deployment.runtime_of(configured).catalog
        except MaintenanceError:
            continue
        yield from deployment.state.lake_stats.of_catalog(catalog.id)


def _wanted() -> str:
    return os.environ.get("METRICS_PER_TABLE") or "none"


def _emit(totals: Mapping[str, int | float]) -> None:
    """Write totals: as metrics what somebody asks for, the others as properties of the line."""
    if os.environ.get("METRICS") == "all":
        metrics = dict(totals)
    else:
        metrics = {name: totals[name] for name in _ASKED_FOR & totals.keys() if totals[name] or name in _TOLD_AT_ZERO}
    rest = {name: value for name, value in totals.items() if name not in metrics and value}
    if metrics:
        _write(metrics, {}, rest)
    elif rest:
        logger.info("counted", extra=rest)


def _emit_of_table(values: Mapping[str, int | float], table: tuple[str, str]) -> None:
    """Write metrics of a table, which is named by its catalog and its name."""
    _write(values, {"catalog": _dimension(table[0]), "table": _dimension(table[1])}, {})


def _dimension(name: str) -> str:
    """A name as CloudWatch takes it for a dimension: ASCII, no control characters, at most 1,024
    (platform: cloudwatch-ascii-dimensions)."""
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
