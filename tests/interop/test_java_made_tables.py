"""A table that Iceberg-Java made, partitioned by every transform, NaN and -0.0 included: we and it take turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icekeeper.metadata.table_reader import TableReader
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from support.iceberg_java import IcebergJava
from support.java_table import JavaTable
from support.maintained_table import MaintainedTable, outcome_of, registered_table
from support.readers import CanonicalRows, rows_by_engine

COLUMNS = """id INT, ratio FLOAT, price DECIMAL(9, 2), name STRING, `we ird` STRING, `1x` DECIMAL(8, 2), at TIMESTAMP,
    day DATE, flag BOOLEAN, raw BINARY, point STRUCT<x: INT, label: STRING>, tags ARRAY<INT>,
    parts MAP<STRING, STRUCT<n: INT>>"""
PARTITIONING = "`we ird`, `1x`, price, bucket(4, id), truncate(2, name), days(at), ratio, truncate(1, raw), day, flag"
ROWS = """SELECT CAST(id AS INT), IF(id % 3 = 0, FLOAT('NaN'), FLOAT(-0.0)), CAST(id % 2 * -1.25 AS DECIMAL(9, 2)),
    IF(id % 2 = 0, 'straße, eine lange', NULL), IF(id % 2 = 0, 'a', NULL), CAST(7.5 AS DECIMAL(8, 2)),
    TIMESTAMP'2024-02-29 12:00:00', IF(id % 3 = 0, NULL, DATE'1969-12-31'), id % 2 = 0,
    IF(id % 2 = 0, X'FF01', NULL), IF(id % 4 = 0, NULL, NAMED_STRUCT('x', CAST(id AS INT), 'label', 'l')),
    IF(id % 3 = 0, NULL, ARRAY(CAST(id AS INT), NULL)),
    MAP('k', IF(id % 2 = 0, NULL, NAMED_STRUCT('n', CAST(id AS INT))))
    FROM RANGE({start}, {end})"""


@pytest.fixture(params=[1, 2, 3], ids=["v1", "v2", "v3"])
def java_table(request: pytest.FixtureRequest, spark_session: SparkSession, tmp_path: Path) -> Iterator[JavaTable]:
    """Partitioned by every transform, evolved in schema and partitioning."""
    properties = f"'format-version' = '{request.param}', 'commit.manifest-merge.enabled' = 'false'"
    ddl = (
        f"CREATE TABLE {{table}} ({COLUMNS}) USING iceberg PARTITIONED BY ({PARTITIONING}) TBLPROPERTIES ({properties})"
    )
    table = JavaTable.create(spark_session, f"t{tmp_path.name}", ddl)
    insert(table, 0, 8)
    insert(table, 4, 12)
    yield table
    table.drop()


def insert(table: JavaTable, start: int, end: int) -> None:
    table.sql("INSERT INTO {table} " + ROWS.format(start=start, end=end))


def agreed(location: str, java: IcebergJava, snapshot_id: int | None = None) -> CanonicalRows:
    answers = rows_by_engine(location, java, snapshot_id)
    assert answers["java"] == answers["pyiceberg"] == answers["duckdb"]
    return answers["java"]


def under_maintenance(location: str, folder: Path) -> MaintainedTable:
    folder.mkdir()
    return registered_table(location, folder)


def data_files(reader: TableReader) -> int:
    snapshot = reader.metadata.current_snapshot
    assert snapshot is not None
    return len(list(reader.live_paths(reader.manifests(snapshot))))


def test_java_writes_on_top_of_our_commits_and_we_on_top_of_its(
    java_table: JavaTable, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    rows = agreed(java_table.metadata_location, iceberg_java)
    assert len(rows) == 16
    ours = under_maintenance(java_table.metadata_location, tmp_path / "first")
    planned = data_files(ours.reader)
    outcome = ours.maintain(operations="compact,rewrite_manifests", rewrite_all="true")
    assert outcome.status is PassStatus.SUCCEEDED, outcome.summary
    assert outcome_of(outcome, Operation.COMPACT).metrics["compact.files_merged"] == planned
    assert data_files(ours.reader) < planned
    assert agreed(ours.metadata_location, iceberg_java) == rows

    java_table.take_over(ours.metadata_location)
    ids = {i for operation in outcome.operations for i in operation.snapshot_ids}

    def count() -> int:
        (row,) = java_table.sql("SELECT COUNT(*) FROM {table}")
        return int(row[0])

    assert count() == 16
    insert(java_table, 100, 104)
    assert count() == 20
    java_table.sql("ALTER TABLE {table} ADD COLUMN added BIGINT")
    java_table.sql("ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT")
    java_table.sql("ALTER TABLE {table} RENAME COLUMN name TO title")
    java_table.sql("DELETE FROM {table} WHERE id IN (8, 101)")  # copy on write: of our file and of its own
    assert count() == 18
    java_table.call("rewrite_manifests")
    assert count() == 18
    for snapshot_id in ids:
        assert agreed(java_table.metadata_location, iceberg_java, snapshot_id) == rows
    expired = java_table.call("expire_snapshots", ", older_than => TIMESTAMP'2100-01-01 00:00:00', retain_last => 1")
    assert expired["deleted_data_files_count"] > 0
    after = agreed(java_table.metadata_location, iceberg_java)
    assert len(after) == 18

    again = under_maintenance(java_table.metadata_location, tmp_path / "second")
    assert not again.problems()
    outcome = again.maintain(rewrite_all="true")
    assert outcome.status is PassStatus.SUCCEEDED, outcome.summary
    assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED
    assert not again.problems()
    assert agreed(again.metadata_location, iceberg_java) == after
    java_table.take_over(again.metadata_location)
    java_table.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    assert agreed(java_table.metadata_location, iceberg_java) == after
