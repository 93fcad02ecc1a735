"""Spark's incremental readers continue over our rewrites, and the command with Spark keeps standard output clean."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from icekeeper.report.outcome import PassStatus
from support.command import OPERATION_NAMES, PASS, Command, summaries
from support.java_table import JavaTable
from support.maintained_table import registered_table

DDL = "CREATE TABLE {table} (id BIGINT) USING iceberg"


def test_incremental_scans_and_changelogs_report_each_change_once(spark_session: SparkSession, tmp_path: Path) -> None:
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
    reported = changes.select("id", "_change_type").collect()
    assert [tuple(row) for row in reported] == [(number, "INSERT") for number in (1, 2, 3, 4)]
    assert sorted(row.id for row in since.load(f"java.db.{java.name}").collect()) == [1, 2, 3, 4]
    java.drop()


# Spark Structured Streaming continues after our maintenance; each start of a stream takes seconds.


def test_a_spark_stream_does_not_write_an_epoch_twice(spark_session: SparkSession, tmp_path: Path) -> None:
    """It dies after its commit and before its checkpoint: Spark repeats the epoch, Iceberg-Java finds it committed."""
    java = JavaTable.create(spark_session, f"stream{tmp_path.name}", "CREATE TABLE {table} (id BIGINT) USING iceberg")
    arrivals, checkpoints = tmp_path / "arrivals", tmp_path / "checkpoints"
    arrivals.mkdir()

    def epoch(number: int) -> None:
        (arrivals / f"{number}.json").write_text(f'{{"id": {number}}}')
        stream()

    def stream() -> None:
        source = spark_session.readStream.schema("id BIGINT").json(str(arrivals))
        sink = source.writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoints))
        sink.toTable(f"java.db.{java.name}").awaitTermination()

    def ids() -> list[int]:
        return sorted(row["id"] for row in java.sql("SELECT id FROM {table}"))

    epoch(0)
    epoch(1)
    table = registered_table(java.metadata_location, tmp_path)
    assert table.maintain(operations="compact,expire_snapshots").status is PassStatus.SUCCEEDED
    java.take_over(table.metadata_location)
    assert len(java.sql("SELECT * FROM {table}.snapshots")) == 1
    for noted in (checkpoints / "commits").glob("*1*"):
        noted.unlink()
    stream()
    assert ids() == [0, 1]
    epoch(2)
    assert ids() == [0, 1, 2]
    java.drop()


def test_the_spark_engine_is_silent_on_standard_output(command: Command) -> None:
    command.table()
    answer = command.script(*PASS, "--catalog", "C", "--json", "--engine", "spark")
    assert answer.code == 0
    assert summaries(answer)["compact"] == "compacted 6 files into 1 (across 1 bins)"
    assert [line.split()[0] for line in answer.err.splitlines()] == ["ns.t:", *OPERATION_NAMES, "freed"]
