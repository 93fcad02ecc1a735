"""Spark Structured Streaming goes on after our maintenance: every start of a stream takes seconds."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from icekeeper.report.outcome import PassStatus
from support.java_table import JavaTable
from support.maintained_table import registered_table


def test_a_spark_stream_does_not_write_an_epoch_twice(spark_session: SparkSession, tmp_path: Path) -> None:
    """It dies after its commit and before it has noted that: Spark repeats the epoch, Iceberg-Java finds the mark."""
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
