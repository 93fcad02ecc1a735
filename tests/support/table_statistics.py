"""Computes statistics of a table, and reads what was computed."""

from __future__ import annotations

from typing import Any

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status
from support.maintained_table import NAME, MaintainedTable, outcome_of
from support.readers import duckdb_rows

UP_TO_DATE = "statistics are up to date"


def computed(table: MaintainedTable, **settings: Any) -> OperationOutcome:
    outcome = table.maintain(operations="compute_statistics", **settings)
    return outcome_of(outcome, Operation.COMPUTE_STATISTICS)


def previewed(table: MaintainedTable, **settings: str) -> OperationOutcome:
    overrides = {"operations": "compute_statistics", **settings}
    outcome: PassOutcome = table.runtime.maintain(NAME, overrides, table.engine, dry_run=True)
    return outcome_of(outcome, Operation.COMPUTE_STATISTICS)


def entry(table: MaintainedTable) -> dict[str, Any]:
    """Of the head."""
    metadata = table.loaded.metadata
    head = metadata.refs["main"].snapshot_id
    (found,) = (dict(e) for e in metadata.statistics if e["snapshot-id"] == head)
    return found


def ndv(table: MaintainedTable) -> dict[int, int]:
    """Field id → distinct values, as the table says."""
    return {blob["fields"][0]: int(blob["properties"]["ndv"]) for blob in entry(table)["blob-metadata"]}


def computed_from(table: MaintainedTable) -> set[int]:
    return {blob["snapshot-id"] for blob in entry(table)["blob-metadata"]}


def true_ndv(table: MaintainedTable) -> dict[int, int]:
    """As DuckDB reads the rows."""
    rows = duckdb_rows(table.loaded.metadata_location)
    return {1: len({row["id"] for row in rows}), 2: len({row["region"] for row in rows})}


def rows_read(outcome: OperationOutcome) -> tuple[Status, int, int]:
    metrics = outcome.metrics
    return outcome.status, int(metrics["compute_statistics.rows_read"]), int(metrics["compute_statistics.files_read"])
