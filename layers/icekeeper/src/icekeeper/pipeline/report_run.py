"""The end of a run: every table's result in one document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from icekeeper.pipeline.control_bucket import proposals_key, report_key, table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item, ReportRunEvent, TableResult, parse_event
from icekeeper.pipeline.step_documents import EndedPass

__all__ = ["report_run", "was_scan"]

_WELL = frozenset({"succeeded", "skipped"})
_VANISHED = "its execution ended without a report; its lease runs out by itself"
# How the summaries of passes begin that have no report of their own: those made here, in events.py and in the state
# machine.
_UNTOLD = ("its execution ended ", "the pass could not be reported")


def report_run(deployment: Deployment, event: ReportRunEvent) -> Mapping[str, Any]:
    """Write ``runs/RUN/report.json`` and return its counts.

    ``status`` is ``failed`` when no table ended well and ``partial`` when some did.  A proposed table without a result
    gets the one that its pass wrote to the control bucket; without that it counts as failed.  ``untold`` is the number
    of failed passes that no report of a table has counted.

    Raises:
        StorageError: the report cannot be written, or the proposals cannot be read.
    """
    told_by_states = (*event.in_one_call, *event.earlier, *event.tables)
    missing = () if event.failure is not None else _missing(deployment, event)
    results = (*told_by_states, *missing)
    counts: Counter[str] = Counter(result.status for result in results)
    well = sum(counts[status] for status in _WELL)
    if event.failure is not None or (results and well == 0 and counts["partial"] == 0):
        only_refused = event.failure is None and counts["refused"] == len(results)
        status = "refused" if only_refused else "failed"
    else:
        status = "succeeded" if well == len(results) else "partial"
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no table"
    if event.failure is not None:
        told = f"no table's pass is known: {event.failure.Error}"
    report: dict[str, Any] = {"run_id": event.run_id, "status": status, "summary": told}
    report["tables"] = dict(sorted(counts.items()))
    untold = sum(result.status == "failed" and result.summary.startswith(_UNTOLD) for result in results)
    if untold:
        report["untold"] = untold
    document = {**report, "results": [result.model_dump(mode="json") for result in results]}
    if event.failure is not None:
        document["failure"] = event.failure.model_dump(mode="json")
    deployment.control.write(report_key(event.run_id), document)
    return report


def was_scan(deployment: Deployment, run_id: str) -> bool:
    """Whether detection proposed the tables of a run, rather than a person one of them.

    Raises:
        StorageError: the proposals cannot be read.
    """
    proposed = deployment.control.find_objects(proposals_key(run_id), Item)
    return any(item.is_scheduled for item in proposed)


def _missing(deployment: Deployment, event: ReportRunEvent) -> Iterator[TableResult]:
    """Results for the proposed tables that have none, from what their passes wrote to the control bucket.

    Results name no catalog.  Where several tables share a name and only some are missing, those count as missing first
    whose pass wrote nothing.
    """
    told = Counter(result.table for result in (*event.in_one_call, *event.earlier, *event.tables))
    proposed = deployment.control.find_objects(proposals_key(event.run_id), Item)
    missing = Counter(item.table for item in proposed) - told
    left = [_left(deployment, event.run_id, item) for item in proposed if missing[item.table] > 0]
    for result in sorted(left, key=lambda result: result.summary != _VANISHED):
        missing[result.table] -= 1
        if missing[result.table] >= 0:
            yield result


def _left(deployment: Deployment, run_id: str, item: Item) -> TableResult:
    found = deployment.control.find_object(f"{table_folder(run_id, item.identity.spelling)}/pass.json", EndedPass)
    if found is None:
        return TableResult(table=item.table, status="failed", summary=_VANISHED)
    return parse_event(TableResult, {"table": item.table, "status": found["status"], "summary": found["summary"]})
