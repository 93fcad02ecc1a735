"""What readers find by filters in row groups that were copied; rows with ids get new columns of lineage beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.duckdb_session import DuckDB
from support.filtered_table import problems_of_copies
from support.java_writer import JavaTables


@pytest.mark.parametrize("format_version", [1, 3])
def test_filters_find_in_copies_what_they_found_before(
    format_version: int, spark_session: object, java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path
) -> None:
    assert problems_of_copies(format_version, java_tables, duckdb, tmp_path, step=4) == []
