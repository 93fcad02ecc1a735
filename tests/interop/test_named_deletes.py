"""A position delete that names its one data file, written by Iceberg-Java under another partition and another spec."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.duckdb_session import DuckDB
from support.java_table import SharedTable
from support.java_writer import JavaTables
from support.readers import pyiceberg_rows

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "region", "type": "string", "required": True},
    ],
}
BY_REGION = {"spec-id": 0, "fields": [{"name": "region", "transform": "identity", "source-id": 2, "field-id": 1000}]}
IDLE = {
    "min_input_files": "9",
    "delete_compaction_min_deletes": "99",
    "delete_compaction_min_ratio": "1",
}


@pytest.mark.parametrize(
    "passes",
    [
        [("compact", IDLE), ("compact", {"rewrite_all": "true"})],
        [("rewrite_position_deletes", {"min_input_files": "9"}), ("compact", IDLE)],
    ],
    ids=["compact", "rewrite_position_deletes"],
)
def test_no_reader_gets_a_deleted_row_back(
    java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path, passes: list[tuple[str, dict[str, Any]]]
) -> None:
    """Java, DuckDB and PyIceberg believe the name: 25 rows became 31."""
    java = java_tables.create(SCHEMA, BY_REGION, {"format-version": "2"}, tmp_path / "table")
    files: dict[str, Any] = {}
    for first, region in ((0, "eu"), (10, "us"), (20, "asia")):
        rows = [{"1": number, "2": region} for number in range(first, first + 10)]
        files[region] = java.data_file(rows, 0, (region,), "parquet")
    java.append(files.values())
    us = str(files["us"].location())
    java.row_delta(deletes=[java.position_deletes({us: [0, 1, 2]}, 0, ("eu",), "parquet")])
    java.repartition(lambda update: update.removeField("region"))
    spec_id = java.table.spec().specId()
    java.row_delta(deletes=[java.position_deletes({us: [3, 4]}, spec_id, (), "parquet")])
    table = SharedTable(java, tmp_path)

    def readers() -> list[Counter[int]]:
        location = table.metadata_location
        found = (
            [row["1"] for row in java.rows()],
            *([r["id"] for r in read(location)] for read in (duckdb.rows, pyiceberg_rows)),
        )
        return [Counter(ids) for ids in found]

    expected = Counter([*range(10), *range(15, 30)])
    assert readers() == [expected] * 3
    assert {kind for kind, _ in table.problems()} == {"delete_scope"}  # later releases refuse it (platform 113)
    for operation, settings in passes:
        table.maintain(operations=operation, **settings)
        assert readers() == [expected] * 3, operation
    assert not table.problems()
