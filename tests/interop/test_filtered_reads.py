"""What we write about files hides no row from filters: neither column bounds, nor footers, nor manifest lists do.

A digest of the whole table cannot see that.  ``tests/nightly`` asks more, after each operation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.report.outcome import Status
from support.duckdb_session import DuckDB
from support.filtered_table import FilteredReads, made_table
from support.java_writer import JavaTables
from support.maintained_table import registered_table


@pytest.mark.parametrize(
    ("format_version", "operations"),
    [(1, "rewrite_manifests"), (2, "rewrite_position_deletes,rewrite_manifests"), (3, "compact")],
    ids=["v1", "v2", "v3"],
)
def test_filters_find_what_they_found_before(
    format_version: int,
    operations: str,
    spark_session: object,
    java_tables: JavaTables,
    duckdb: DuckDB,
    tmp_path: Path,
) -> None:
    """Or what they should have found: readers err on tables of others, too."""
    java = made_table(java_tables, format_version, tmp_path / "table")
    before = java.metadata_location
    table = registered_table(before, tmp_path)
    outcome = table.maintain(operations=operations, rewrite_all="true")
    assert [part.status for part in outcome.operations] == [Status.SUCCEEDED] * (operations.count(",") + 1)
    reads = FilteredReads.on(java, java_tables, duckdb, format_version, 45, every=3)
    assert reads.problems(before, table.metadata_location) == []
