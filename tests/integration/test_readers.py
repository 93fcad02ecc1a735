"""Checksums of tables by DuckDB: they depend only on rows, cover several snapshots, and fail in one sentence."""

from __future__ import annotations

import decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.demo.measure import Snapshot, read_checksums
from icekeeper.errors import StorageError
from support.corpus import corpus_table
from support.readers import read_checksum

ROWS = pa.table(
    {
        "id": pa.array([3, 1, None], pa.int64()),
        "price": pa.array([decimal.Decimal("1.50"), decimal.Decimal("-0.01"), None], pa.decimal128(9, 2)),
        "ratio": pa.array([-0.0, float("nan"), 1.5], pa.float64()),
        "tags": pa.array([["a", "b"], [], None], pa.list_(pa.string())),
        "point": pa.array([{"x": 1, "y": None}, {"x": 2, "y": "z"}, None]),
        "counts": pa.array([[("k", 1), ("j", 2)], [], None], pa.map_(pa.string(), pa.int32())),
    }
)


def test_the_checksum_depends_only_on_rows(local_catalog: SqlCatalog) -> None:
    """The order of rows, their files and the order of columns do not matter; duplicates do."""
    local_catalog.create_namespace("ns")

    def checksum(name: str, *appended: pa.Table) -> object:
        table = local_catalog.create_table(f"ns.{name}", schema=appended[0].schema)
        for rows in appended:
            table.append(rows)
        return read_checksum(table.metadata_location)

    whole = checksum("whole", ROWS)
    columns = list(reversed(ROWS.column_names))
    assert checksum("parts", ROWS.slice(2, 1).select(columns), ROWS.slice(0, 2).select(columns)) == whole
    assert checksum("twice", ROWS, ROWS.slice(0, 1)) != checksum("other_twice", ROWS, ROWS.slice(1, 1))


def test_an_abort_of_duckdb_is_a_storage_error(tmp_path: Path) -> None:
    """DuckDB 1.5.5 aborts on the manifest list of this table."""
    table = corpus_table("dk_bigquery", tmp_path)
    with pytest.raises(StorageError, match="DuckDB was ended by SIGABRT"):
        read_checksum(table.metadata_path)


def test_a_process_reads_many_snapshots_and_names_an_unreadable_file(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    local_catalog.create_namespace("ns")
    rows = pa.table({"id": [1, 2]})
    table = local_catalog.create_table("ns.t", schema=rows.schema)
    for _ in range(2):
        table.append(rows)
    location, first = table.metadata_location, table.snapshots()[0].snapshot_id
    snapshots: list[Snapshot] = [(location, None), (location, first)]
    found = read_checksums(snapshots)
    assert [checksum.rows for checksum in found] == [4, 2]
    assert found[1] == read_checksum(location, snapshot_id=first)
    missing = tmp_path / "v1.metadata.json"
    with pytest.raises(StorageError, match=rf"^DuckDB could not read {missing}: [^\n]+$"):
        read_checksums([*snapshots, (str(missing), None), (location, None)])
