"""A table with a sort order by Iceberg-Java: sorted as Java sorts it, and read alike by every engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.iceberg_java import IcebergJava
from support.maintained_table import KEEPING_SNAPSHOTS, local_path, outcome_of, registered_table
from support.readers import rows_by_engine

COLUMNS = "id BIGINT, name STRING, ratio DOUBLE, price DECIMAL(9, 2), at TIMESTAMP, raw BINARY"
ROWS = """SELECT id * 7919 % 1000, IF(id % 5 = 0, NULL, CONCAT('straße ', CAST(id * 31 % 17 AS STRING))),
    CASE id % 4 WHEN 0 THEN DOUBLE('NaN') WHEN 1 THEN DOUBLE(-0.0) WHEN 2 THEN DOUBLE(0.0) ELSE -id END,
    IF(id % 7 = 0, NULL, CAST(id % 13 * -1.25 AS DECIMAL(9, 2))),
    TIMESTAMP'1969-12-31 12:00:00' + MAKE_INTERVAL(0, 0, 0, 0, CAST(id AS INT)), UNHEX(HEX(id % 300))
    FROM RANGE({start}, {end})"""
# Most rows have one of three ratios, so that the other columns matter.
ORDER = (
    "ratio DESC NULLS FIRST, bucket(4, name) DESC NULLS LAST, truncate(8, name), days(at) DESC, price NULLS LAST, "
    "id DESC"
)


@pytest.fixture
def sorted_table(spark_session: SparkSession) -> Iterator[str]:
    """The name of a table with five unsorted files; its order was set later."""
    name = "java.db.sorted_by_all"
    spark_session.sql(f"CREATE TABLE {name} ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version' = '2')")
    for start in range(0, 500, 100):
        spark_session.sql(f"INSERT INTO {name} {ROWS.format(start=start, end=start + 100)}")
    spark_session.sql(f"ALTER TABLE {name} WRITE ORDERED BY {ORDER}")
    yield name
    spark_session.sql(f"DROP TABLE {name}")


def location_of(session: SparkSession, name: str) -> str:
    folder = Path(session.conf.get("spark.sql.catalog.java.warehouse") or "") / Path(*name.split(".")[1:])
    version = (folder / "metadata" / "version-hint.text").read_text()
    return (folder / "metadata" / f"v{version}.metadata.json").as_uri().replace("file:///", "file:/", 1)


def ids_in_file(path: str) -> list[Any]:
    ids: list[Any] = pq.read_table(local_path(path))["id"].to_pylist()
    return ids


def test_rows_are_in_the_order_of_iceberg_java(
    sorted_table: str, spark_session: SparkSession, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """Java's own sort rewrite of the same table has the rows in the same order; every engine reads the same rows."""
    before = location_of(spark_session, sorted_table)
    table = registered_table(before, tmp_path)
    outcome = outcome_of(table.maintain(**KEEPING_SNAPSHOTS, strategy="sort"), Operation.COMPACT)
    assert outcome.status is Status.SUCCEEDED, outcome
    (ours,) = iceberg_java.metadata_table(table.metadata_location, "files")
    assert ours["sort_order_id"] == 1
    rows = rows_by_engine(table.metadata_location, iceberg_java)
    assert rows["java"] == rows["pyiceberg"] == rows["duckdb"] == rows_by_engine(before, iceberg_java)["java"]
    assert table.problems() == {}
    spark_session.sql(
        f"CALL java.system.rewrite_data_files(table => '{sorted_table.removeprefix('java.')}', strategy => 'sort', "
        "options => map('rewrite-all', 'true'))"
    )
    (theirs,) = iceberg_java.metadata_table(location_of(spark_session, sorted_table), "files")
    assert ids_in_file(ours["file_path"]) == ids_in_file(theirs["file_path"])
    again = outcome_of(table.maintain(**KEEPING_SNAPSHOTS), Operation.COMPACT)
    assert again.reason == "no files eligible for compaction"
