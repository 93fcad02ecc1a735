"""Readers of changes (incremental scans, changelogs, streams) pass over our rewrites: every row is told once.

``tests/nightly/test_spark_stream.py`` has a stream go on.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from icekeeper.report.outcome import PassStatus
from support.java_table import JavaTable
from support.maintained_table import registered_table

DDL = "CREATE TABLE {table} (id BIGINT) USING iceberg"


def test_incremental_scans_and_changelogs_tell_each_change_once(spark_session: SparkSession, tmp_path: Path) -> None:
    java = JavaTable.create(spark_session, "changes_after_rewrites", DDL)

    def insert(*ids: int) -> None:
        for number in ids:
            java.sql(f"INSERT INTO {{table}} VALUES ({number})")

    def rewrite(folder: str) -> None:
        (tmp_path / folder).mkdir()
        table = registered_table(java.metadata_location, tmp_path / folder)
        assert table.maintain("compact,rewrite_manifests").status is PassStatus.SUCCEEDED
        java.take_over(table.metadata_location)

    insert(0, 1)
    rewrite("first")
    insert(2, 3)
    rewrite("second")
    insert(4)

    ids = [row.snapshot_id for row in java.sql("SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at")]
    since = spark_session.read.format("iceberg").option("start-snapshot-id", ids[0])
    changes = since.load(f"java.db.{java.name}.changes").orderBy("_change_ordinal", "id")
    told = changes.select("id", "_change_type").collect()
    assert [tuple(row) for row in told] == [(number, "INSERT") for number in (1, 2, 3, 4)]
    assert sorted(row.id for row in since.load(f"java.db.{java.name}").collect()) == [1, 2, 3, 4]
    java.drop()
