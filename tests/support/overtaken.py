"""Compactions that other writers get in the way of."""

from __future__ import annotations

from collections import Counter
from typing import Any

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome
from support.maintained_table import MaintainedTable, outcome_of
from support.readers import duckdb_rows

COMPACT: dict[str, Any] = {"operations": "compact"}


def ids(table: MaintainedTable) -> Counter[int]:
    """Ids as DuckDB reads them: it knows nothing of us, and applies every kind of delete."""
    return Counter(row["id"] for row in duckdb_rows(table.loaded.metadata_location))


def compacted(table: MaintainedTable, **overrides: Any) -> OperationOutcome:
    return outcome_of(table.maintain(**COMPACT, **overrides), Operation.COMPACT)


def sound(table: MaintainedTable) -> None:
    """Consistent, and nothing left behind by what did not get committed, metadata files apart."""
    table.assert_sound()
    assert table.unreferenced() == set()
