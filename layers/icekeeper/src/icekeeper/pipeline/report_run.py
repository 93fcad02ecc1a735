"""The end of a run: every table's result in one document, and the fleet's lease given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.detect_tables import end_scheduled_run
from icekeeper.pipeline.events import ReportRunEvent

__all__ = ["report_run"]

_WELL = frozenset({"succeeded", "skipped"})


def report_run(deployment: Deployment, event: ReportRunEvent) -> Mapping[str, Any]:
    """Write ``runs/RUN/report.json``; ``status`` is ``failed`` when no table ended well, ``partial`` when some did.

    Raises:
        StorageError: it cannot be written.
    """
    counts: Counter[str] = Counter(result.status for result in event.tables)
    well = sum(counts[status] for status in _WELL)
    if event.failure is not None or (event.tables and well == 0 and counts["partial"] == 0):
        only_refused = event.failure is None and counts["refused"] == len(event.tables)
        status = "refused" if only_refused else "failed"
    else:
        status = "succeeded" if well == len(event.tables) else "partial"
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no table"
    if event.failure is not None:
        told = f"no table's pass is known: {event.failure.Error}"
    report = {"run_id": event.run_id, "status": status, "summary": told, "tables": dict(sorted(counts.items()))}
    document = {**report, "results": [result.model_dump(mode="json") for result in event.tables]}
    if event.failure is not None:
        document["failure"] = event.failure.model_dump(mode="json")
    deployment.control.write(f"runs/{event.run_id}/report.json", document)
    end_scheduled_run(deployment, event.run_id)
    return report
