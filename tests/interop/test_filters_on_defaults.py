"""Rows that have a column's default are found by it once they are rewritten, in files that are copied from others too.

Iceberg-Java finds fewer of them before: to its filters of row groups a column that a file lacks is null (platform 70).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.java_writer import JavaTable, JavaTables
from support.maintained_table import registered_table
from support.readers import duckdb_rows

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "int", "required": True}]}


def test_java_finds_rows_by_a_default(java_tables: JavaTables, tmp_path: Path) -> None:
    java = java_tables.create(SCHEMA, {"spec-id": 0, "fields": []}, {"format-version": "3"}, tmp_path / "table")
    append(java, range(2))
    java.evolve(partial(_add_columns, java))
    added = {field["name"]: str(field["id"]) for field in java.schema["fields"]}
    append(java, range(2, 5), {added["n"]: 7, added["text"]: "other"})
    make = java_tables.jvm.org.apache.iceberg.expressions.Expressions
    conditions = [make.equal("n", 7), make.equal("text", "default"), make.isNull("n")]
    assert [sorted(java.ids_where(condition)) for condition in conditions] == [[2, 3, 4], [], []]

    table = registered_table(java.metadata_location, tmp_path)
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="1")
    assert outcome.status is Status.SUCCEEDED, outcome
    assert outcome.metrics["compact.bytes_copied"] > 0
    java.take_over(table.metadata_location)
    assert [sorted(java.ids_where(condition)) for condition in conditions] == [[0, 1, 2, 3, 4], [0, 1], []]
    assert sorted(row["id"] for row in duckdb_rows(table.metadata_location) if row["text"] == "default") == [0, 1]


def append(java: JavaTable, ids: range, values: dict[str, Any] | None = None) -> None:
    """A file for each row."""
    java.append(java.data_file([{"1": i, **(values or {})}], 0, [], "parquet") for i in ids)


def _add_columns(java: JavaTable, update: Any) -> None:
    update.addColumn("n", java.type("int"), java.literal(7))
    update.addColumn("text", java.type("string"), java.literal("default"))
