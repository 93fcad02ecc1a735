"""A table that Iceberg-Java wrote, merged by copying its row groups, and what filters find in it before and after."""

from __future__ import annotations

from pathlib import Path

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.duckdb_session import DuckDB
from support.filtered_table import FilteredReads, made_table
from support.java_writer import JavaTables
from support.maintained_table import registered_table


def problems_of_copies(
    format_version: int, tables: JavaTables, duckdb: DuckDB, folder: Path, *, step: int
) -> list[str]:
    """What readers lose, by each ``step``-th condition.

    Of a v2 table nothing would be copied: position deletes may be of all files, each of which is one row group.
    """
    java = made_table(tables, format_version, folder / "table")
    before = java.metadata_location
    table = registered_table(before, folder)
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="1")
    assert outcome.status is Status.SUCCEEDED, outcome
    assert outcome.metrics["compact.bytes_copied"] > 0
    reads = FilteredReads.on(java, tables, duckdb, 7 % step, step, every=3)
    return reads.problems(before, table.metadata_location)
