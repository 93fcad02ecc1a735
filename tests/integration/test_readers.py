"""The independent readers agree with each other before they judge us."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from icekeeper.demo.measure import Snapshot, read_checksums
from icekeeper.errors import StorageError
from support.corpus import corpus_params, corpus_table, expected, table_digest
from support.iceberg_java import IcebergJava
from support.readers import duckdb_rows, pyiceberg_rows, read_checksum, rows_by_engine

MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)
POINT = pa.struct({"x": pa.int32(), "y": pa.string()})
ROWS = pa.table(
    {
        "id": pa.array([3, 1, None], pa.int64()),
        "price": pa.array([decimal.Decimal("1.50"), decimal.Decimal("-0.01"), None], pa.decimal128(9, 2)),
        "ratio": pa.array([-0.0, float("nan"), 1.5], pa.float64()),
        "day": pa.array([MOMENT.date(), None, MOMENT.date()], pa.date32()),
        "at": pa.array([MOMENT, None, MOMENT], pa.timestamp("us", "UTC")),
        "local": pa.array([MOMENT, None, MOMENT], pa.timestamp("us")),
        "raw": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "tags": pa.array([["a", "b"], [], None], pa.list_(pa.string())),
        "point": pa.array(
            [{"x": 1, "y": None}, {"x": 2, "y": "z"}, None], pa.struct({"x": pa.int32(), "y": pa.string()})
        ),
        "counts": pa.array([[("k", 1), ("j", 2)], [], None], pa.map_(pa.string(), pa.int32())),
    }
)


def test_three_engines_read_a_local_table_alike_at_every_snapshot(
    local_catalog: SqlCatalog, iceberg_java: IcebergJava
) -> None:
    local_catalog.create_namespace("ns")
    table = local_catalog.create_table("ns.t", schema=ROWS.schema)
    table.append(ROWS)
    table.append(ROWS.slice(0, 2))
    location = table.metadata_location
    for snapshot_id, rows in [*zip([s.snapshot_id for s in table.snapshots()], [3, 5], strict=True), (None, 5)]:
        answers = rows_by_engine(location, iceberg_java, snapshot_id)
        assert len(answers["java"]) == rows
        assert answers["java"] == answers["duckdb"] == answers["pyiceberg"]

    assert [row["summary"]["total-records"] for row in iceberg_java.metadata_table(location, "snapshots")] == ["3", "5"]
    assert sorted(row["record_count"] for row in iceberg_java.metadata_table(location, "files")) == [2, 3]
    assert len(iceberg_java.metadata_table(location, "manifests")) == 2
    assert {row["status"] for row in iceberg_java.metadata_table(location, "entries")} == {1}


def test_the_checksum_depends_on_rows_only(local_catalog: SqlCatalog) -> None:
    """Neither on their order, nor on the files they lie in, nor on the order of columns; but on each duplicate."""
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


def test_the_same_session_runs_python_tasks(spark_session: SparkSession) -> None:
    assert spark_session.sparkContext.parallelize(range(4), 2).map(lambda number: number * 2).sum() == 12


@pytest.mark.parametrize("address", ["{path}", "file:{path}", "file://{path}"])
def test_duckdb_takes_every_form_of_a_local_address(local_catalog: SqlCatalog, address: str) -> None:
    local_catalog.create_namespace("ns")
    table = local_catalog.create_table("ns.t", schema=ROWS.schema)
    table.append(ROWS)
    path = table.metadata_location.removeprefix("file://")
    assert read_checksum(address.format(path=path)).rows == 3


def test_duckdb_says_in_one_sentence_why_it_cannot_read(tmp_path: Path) -> None:
    missing = tmp_path / "v1.metadata.json"
    with pytest.raises(StorageError, match=r"^DuckDB could not read .*v1\.metadata\.json: [^\n]+$"):
        read_checksum(str(missing))


def test_an_aborting_duckdb_is_an_error_of_ours_not_our_end(tmp_path: Path) -> None:
    """This table's manifest list is none: DuckDB 1.5.5 aborts on it."""
    table = corpus_table("dk_bigquery", tmp_path)
    with pytest.raises(StorageError, match="DuckDB was ended by SIGABRT"):
        read_checksum(table.metadata_path)


@pytest.mark.parametrize("name", corpus_params("append_only_full_pass"))
def test_the_readers_find_the_expected_rows_in_foreign_tables(
    name: str, tmp_path: Path, iceberg_java: IcebergJava
) -> None:
    table = corpus_table(name, tmp_path)
    answer = (expected(name)["rows"], expected(name)["sha"])
    if expected(name)["rows"] > 20_000:
        pytest.skip("collecting so many rows in three engines takes 15 s and proves nothing more")
    for engine in expected(name)["agree"]:
        if engine.startswith("duckdb"):
            assert table_digest(table, duckdb_rows(table.metadata_path)) == answer
        elif engine.startswith("java"):
            assert table_digest(table, iceberg_java.rows(table.metadata_path)) == answer
        elif engine.startswith("pyiceberg"):
            assert table_digest(table, pyiceberg_rows(table.metadata_path)) == answer


# One process of DuckDB reads many snapshots, and says which one it could not read.


def test_many_snapshots_are_told_in_their_order_and_what_cannot_be_read_by_name(
    local_catalog: SqlCatalog, tmp_path: Path
) -> None:
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
    with pytest.raises(StorageError, match=f"^DuckDB could not read {missing}: "):
        read_checksums([*snapshots, (str(missing), None), (location, None)])
