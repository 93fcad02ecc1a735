"""Copied row groups hide no row from filters either: their footers, bounds and page indexes are those of others.

``rewrite_all`` copies nothing, so :mod:`test_filtered_reads` sees only what we have encoded.  ``tests/nightly`` asks
more.
"""

from __future__ import annotations

from pathlib import Path

from support.duckdb_session import DuckDB
from support.filtered_table import problems_of_copies
from support.java_writer import JavaTables


def test_filters_find_in_copies_what_they_found_before(
    spark_session: object, java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path
) -> None:
    assert problems_of_copies(3, java_tables, duckdb, tmp_path, step=60) == []
