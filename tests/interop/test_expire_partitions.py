"""Iceberg-Java's partitions expire as it partitioned them; it, DuckDB and PyIceberg read exactly the remaining rows."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.iceberg_java import IcebergJava
from support.java_table import JavaTable
from support.maintained_table import outcome_of, registered_table
from support.readers import canonical, duckdb_rows, pyiceberg_rows

# Far enough apart that no run at the turn of an hour, day, month or year sees it otherwise.
AGES = (0, 40, 800)
# Every kind of partition with every version would take minutes; each kind and each version are tried.
KINDS = [
    (1, "days(at)", {}),
    (1, "text", {"partition_time_pattern": "text=%Y%m%d"}),
    (2, "hours(at)", {}),
    (2, "bucket(2, id), months(at)", {"partition_time_column": "at"}),
    (3, "years(at)", {}),
    (3, "day", {}),
]
PROPERTIES = (
    "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read'"
)


@pytest.mark.parametrize(("version", "transform", "settings"), KINDS)
def test_old_partitions_go_and_readers_agree(
    spark_session: SparkSession,
    iceberg_java: IcebergJava,
    tmp_path: Path,
    version: int,
    transform: str,
    settings: dict[str, Any],
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    table = JavaTable.create(
        spark_session,
        f"expiring_{tmp_path.name}",
        "CREATE TABLE {table} (id BIGINT, at TIMESTAMP, day DATE, text STRING) USING iceberg "
        f"PARTITIONED BY ({transform}) TBLPROPERTIES ('format-version' = '{version}', {PROPERTIES})",
    )
    for index, age in enumerate(AGES):
        at = now - datetime.timedelta(days=age)
        table.sql(
            f"INSERT INTO {{table}} SELECT id, TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}', DATE '{at:%Y-%m-%d}', "
            f"'{at:%Y%m%d}' FROM RANGE({index * 10}, {index * 10 + 10}, 1, 1)"
        )
    if version > 1:
        table.sql("DELETE FROM {table} WHERE id IN (3, 13, 23)")
    before = canonical(iceberg_java.rows(table.metadata_location))
    ours = registered_table(table.metadata_location, tmp_path)
    passed = ours.maintain(operations="expire_partitions", partition_retention_hours=str(24 * 400), **settings)
    outcome = outcome_of(passed, Operation.EXPIRE_PARTITIONS)
    assert outcome.status is Status.SUCCEEDED, outcome.summary
    assert outcome.metrics["expire_partitions.rows_removed"] == 10
    assert outcome.metrics["expire_partitions.delete_files_removed"] == (version > 1)
    rows = iceberg_java.rows(ours.metadata_location)
    assert sorted(row["id"] for row in rows) == [i for i in range(20) if version == 1 or i not in (3, 13)]
    answer = canonical(rows)
    assert set(map(repr, answer)) <= set(map(repr, before))
    assert canonical(duckdb_rows(ours.metadata_location)) == answer
    assert canonical(pyiceberg_rows(ours.metadata_location)) == answer
    assert not ours.problems()
    # Java goes on from there.
    table.take_over(ours.metadata_location)
    table.sql("INSERT INTO {table} SELECT * FROM {table} WHERE id = 1")
    assert len(iceberg_java.rows(table.metadata_location)) == len(rows) + 1
    table.drop()
