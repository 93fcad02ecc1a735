"""Filters after every operation, and over copied row groups, on tables of every format version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icekeeper.report.outcome import Status
from support.duckdb_session import DuckDB
from support.filtered_table import FilteredReads, made_table, problems_of_copies
from support.java_writer import JavaTables
from support.maintained_table import registered_table

# Filters after every operation and clustering, on tables of every format version; tests/interop tests a few of them.

PASSES = ("rewrite_position_deletes", "rewrite_manifests", "compact", "rewrite_manifests")


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_filters_find_the_same_rows_after_every_operation(
    format_version: int, spark_session: object, java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path
) -> None:
    java = made_table(java_tables, format_version, tmp_path / "table")
    before = java.metadata_location
    table = registered_table(before, tmp_path)
    for number, operation in enumerate(PASSES):
        (part,) = table.maintain(operations=operation, rewrite_all="true").operations
        # v1 has no deletes, and the deletion vectors of v3 are in a single file already.
        assert part.status is Status.SUCCEEDED or operation == "rewrite_position_deletes"
        reads = FilteredReads.on(java, java_tables, duckdb, number, len(PASSES), every=2)
        assert reads.problems(before, table.metadata_location) == []


@pytest.mark.parametrize("format_version", [1, 2, 3])
@pytest.mark.parametrize(
    "clustering",
    [
        {"strategy": "sort", "sort_order": "v16 asc nulls last"},
        {"strategy": "sort", "sort_order": "v5 desc nulls first, v3 asc nulls last"},
        {"strategy": "zorder", "sort_order": "v4,v15,v18"},
    ],
    ids=["uuid", "text", "zorder"],
)
def test_filters_find_the_same_rows_after_clustering(
    clustering: dict[str, str],
    format_version: int,
    spark_session: object,
    java_tables: JavaTables,
    duckdb: DuckDB,
    tmp_path: Path,
) -> None:
    """The table is unpartitioned; its output files have few rows."""
    java = made_table(java_tables, format_version, tmp_path / "table", partitioned=False)
    before = java.metadata_location
    table = registered_table(before, tmp_path)
    settings: dict[str, Any] = {"target_file_size_mb": "0.005", "rewrite_all": "true", **clustering}
    (part,) = table.maintain(operations="compact", **settings).operations
    assert part.status is Status.SUCCEEDED
    assert len(table.live_files()) >= 4  # z-order makes a power of two
    reads = FilteredReads.on(java, java_tables, duckdb, format_version, 3, every=2)
    assert reads.problems(before, table.metadata_location) == []


# Filters over copied row groups; rows with ids get new lineage columns beside the copied chunks.


@pytest.mark.parametrize("format_version", [1, 3])
def test_filters_find_the_same_rows_in_copied_row_groups(
    format_version: int, spark_session: object, java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path
) -> None:
    assert problems_of_copies(format_version, java_tables, duckdb, tmp_path, step=4) == []
