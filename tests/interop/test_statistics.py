"""Statistics beside Iceberg-Java's own: the same sketches byte for byte, the same partition rows, read by it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from icekeeper.metadata.puffin import decode_footer
from icekeeper.metadata.theta import encode_theta
from icekeeper.operations.statistics.column_sketch import ColumnSketch
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.java_table import JavaTable
from support.passes import TableUnderMaintenance, local_path, outcome_of

COLUMNS = """id INT, big BIGINT, ratio FLOAT, precise DOUBLE, price DECIMAL(9, 2), huge DECIMAL(38, 5), name STRING,
    at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, flag BOOLEAN, raw BINARY, point STRUCT<x: INT, label: STRING>,
    tags ARRAY<INT>"""
ROWS = """SELECT CAST(id AS INT), id * 4000000000, IF(id % 3 = 0, FLOAT('NaN'), FLOAT(-0.0)), id * 0.5D,
    CAST(id % 7 * -1.25 AS DECIMAL(9, 2)), CAST(id % 5 AS DECIMAL(38, 5)) * 100000000000000000000,
    IF(id % 4 = 0, '', IF(id % 5 = 0, NULL, CONCAT('straße ', REPEAT('lang ', CAST(id % 30 AS INT))))),
    TIMESTAMP'2024-02-29 12:00:00' + MAKE_INTERVAL(0, 0, 0, 0, 0, 0, id % 9), TIMESTAMP_NTZ'1969-12-31 23:59:59.5',
    IF(id % 3 = 0, NULL, DATE'1969-12-31'), id % 2 = 0, IF(id % 2 = 0, CAST(id AS BINARY), NULL),
    IF(id % 4 = 0, NULL, NAMED_STRUCT('x', CAST(id % 6 AS INT), 'label', 'l')), ARRAY(CAST(id AS INT))
    FROM RANGE({start}, {end})"""


@pytest.fixture(params=[1, 2, 3], ids=["v1", "v2", "v3"])
def java_table(request: pytest.FixtureRequest, spark_session: SparkSession, tmp_path: Path) -> Iterator[JavaTable]:
    """Two partition specs, deletes merged on read where the format has them."""
    mode = "merge-on-read" if request.param > 1 else "copy-on-write"
    properties = f"'format-version' = '{request.param}', 'write.delete.mode' = '{mode}'"
    ddl = f"CREATE TABLE {{table}} ({COLUMNS}) USING iceberg PARTITIONED BY (flag, day) TBLPROPERTIES ({properties})"
    table = JavaTable.create(spark_session, f"s{tmp_path.name}", ddl)
    table.sql("INSERT INTO {table} " + ROWS.format(start=0, end=60))
    table.sql("ALTER TABLE {table} DROP PARTITION FIELD day")
    table.sql("ALTER TABLE {table} ADD PARTITION FIELD bucket(2, id)")
    table.sql("INSERT INTO {table} " + ROWS.format(start=50, end=90))
    table.sql("DELETE FROM {table} WHERE id IN (3, 4, 55)")
    yield table
    table.drop()


def computed(table: JavaTable, folder: Path, **settings: str) -> TableUnderMaintenance:
    """The table after our statistics of it."""
    folder.mkdir()
    ours = TableUnderMaintenance(table.metadata_location, folder)
    outcome = outcome_of(ours.maintain(operations="compute_statistics", **settings), Operation.COMPUTE_STATISTICS)
    assert outcome.status is Status.SUCCEEDED, outcome.reason
    assert not ours.problems()
    return ours


def each(iterable: Any) -> Iterator[Any]:
    """py4j iterates over lists only."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def sketches(session: SparkSession, path: str) -> dict[tuple[int, ...], tuple[bytes, dict[str, str]]]:
    """The blobs of a statistics file, as Iceberg-Java reads them: their bytes and properties by fields."""
    java = session._jvm.org.apache.iceberg  # type: ignore[union-attr]
    file = java.hadoop.HadoopFileIO(session._jsc.hadoopConfiguration()).newInputFile(path)
    reader = java.puffin.Puffin.read(file).build()
    metadata = reader.fileMetadata().blobs()
    found = {}
    for pair in each(reader.readAll(metadata)):
        blob = pair.first()
        assert blob.type() == "apache-datasketches-theta-v1"
        data = java.util.ByteBuffers.toByteArray(pair.second())
        found[tuple(blob.inputFields())] = bytes(data), dict(blob.properties())
    reader.close()
    return found


def test_sketches_are_javas_byte_for_byte(java_table: JavaTable, spark_session: SparkSession, tmp_path: Path) -> None:
    """Deletes applied, every type that Spark has, empty strings and NaN as it counts them."""
    ours = computed(java_table, tmp_path / "ours")
    theirs = java_table.call("compute_table_stats").statistics_file
    (entry,) = ours.reader().metadata.statistics
    mine, java = sketches(spark_session, entry["statistics-path"]), sketches(spark_session, theirs)
    assert {fields: data for fields, (data, _) in mine.items()} == {fields: data for fields, (data, _) in java.items()}
    assert {fields: p["ndv"] for fields, (_, p) in mine.items()} == {
        fields: p["ndv"] for fields, (_, p) in java.items()
    }
    theta = spark_session._jvm.org.apache.iceberg.shaded.org.apache.datasketches  # type: ignore[union-attr]
    for data, properties in mine.values():
        sketch = theta.theta.CompactSketch.wrap(theta.memory.Memory.wrap(data))
        assert str(int(sketch.getEstimate())) == properties["ndv"]


def test_java_takes_our_statistics_over(java_table: JavaTable, spark_session: SparkSession, tmp_path: Path) -> None:
    """Its metadata, and Spark's optimiser, which takes the number of distinct values from it."""
    ours = computed(java_table, tmp_path / "ours")
    java_table.take_over(ours.metadata_location)
    java = spark_session._jvm.org.apache.iceberg  # type: ignore[union-attr]
    table = java.spark.Spark3Util.loadIcebergTable(spark_session._jsparkSession, f"java.db.{java_table.name}")
    (file,) = table.statisticsFiles()
    assert file.snapshotId() == table.currentSnapshot().snapshotId()
    data = local_path(file.path()).read_bytes()
    assert file.fileSizeInBytes() == len(data)
    told = {tuple(b.fields()): dict(b.properties()) for b in file.blobMetadata()}
    assert told == {blob.fields: dict(blob.properties) for blob in decode_footer(data, file.path())}
    spark_session.conf.set("spark.sql.cbo.enabled", "true")
    spark_session.conf.set("spark.sql.iceberg.report-column-stats", "true")
    try:
        frame = spark_session.table(f"java.db.{java_table.name}")
        statistics = frame._jdf.queryExecution().optimizedPlan().stats().attributeStats()
        distinct = {pair._1().name(): int(str(pair._2().distinctCount().get())) for pair in each(statistics)}
    finally:
        spark_session.conf.unset("spark.sql.cbo.enabled")
    assert (distinct["id"], distinct["flag"], distinct["price"]) == (87, 2, 7)


def partition_rows(session: SparkSession, table: Any, path: str, version: int) -> list[dict[str, Any]]:
    """A partition statistics file as Iceberg-Java reads it."""
    java = session._jvm.org.apache.iceberg  # type: ignore[union-attr]
    schema = java.PartitionStatsHandler.schema(java.Partitioning.partitionType(table), version)
    file = java.hadoop.HadoopFileIO(session._jsc.hadoopConfiguration()).newInputFile(path)
    rows = java.PartitionStatsHandler.readPartitionStatsFile(schema, file)
    found = []
    for row in each(rows):
        partition = row.partition()
        found.append(
            {
                "partition": tuple(
                    str(partition.get(i, session._jvm.Object))
                    for i in range(partition.size())  # type: ignore[union-attr]
                ),
                "spec": row.specId(),
                "data": (row.dataRecordCount(), row.dataFileCount(), row.totalDataFileSizeInBytes()),
                "positions": (row.positionDeleteRecordCount(), row.positionDeleteFileCount()),
                "equality": (row.equalityDeleteRecordCount(), row.equalityDeleteFileCount()),
                "vectors": row.dvCount(),
                "updated": (row.lastUpdatedAt(), row.lastUpdatedSnapshotId()),
                "rows": row.totalRecords(),
            }
        )
    rows.close()
    return found


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_partition_rows_are_javas(
    java_table: JavaTable, spark_session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    """Java leaves the number of rows after deletes open; ours is the table's wherever it is stated."""
    java_table.sql(f"ALTER TABLE {{table}} SET TBLPROPERTIES ('write.format.default' = '{file_format}')")
    ours = computed(java_table, tmp_path / "ours")
    java_table.sql("REFRESH TABLE {table}")
    theirs = java_table.call("compute_partition_stats").partition_statistics_file
    java = spark_session._jvm.org.apache.iceberg  # type: ignore[union-attr]
    table = java.spark.Spark3Util.loadIcebergTable(spark_session._jsparkSession, f"java.db.{java_table.name}")
    (entry,) = ours.reader().metadata.partition_statistics
    version = ours.reader().metadata.format_version
    mine = partition_rows(spark_session, table, entry["statistics-path"], version)
    javas = partition_rows(spark_session, table, theirs, version)
    assert entry["statistics-path"].endswith(f".{file_format}")
    assert [{**row, "rows": None} for row in mine] == [{**row, "rows": None} for row in javas]
    assert {row["rows"] for row in javas} == {None}
    counted = [row for row in mine if row["rows"] is not None]
    if version == 2:
        assert [row["positions"][1] for row in mine if row["rows"] is None] == [1] * (len(mine) - len(counted))
    else:
        assert sum(row["rows"] for row in counted) == java_table.sql("SELECT COUNT(*) AS n FROM {table}")[0].n


# py4j hands small numbers over as Integer, which is another type.
VALUES: dict[str, tuple[str, pa.Array]] = {
    "time": ("LongType", pa.array([2**32, 86_399_999_999], pa.time64("us"))),
    "timestamp_ns": ("LongType", pa.array([-(2**40), 2**62], pa.timestamp("ns"))),
    "timestamptz_ns": ("LongType", pa.array([-(2**62), 2**32], pa.timestamp("ns", tz="UTC"))),
    "uuid": ("UUIDType", pa.array([uuid.UUID(int=7).bytes, uuid.UUID(int=2**127 + 1).bytes], pa.uuid())),
    "fixed[3]": ("BinaryType", pa.array([b"\0\0\0", b"abc"], pa.binary(3))),
    "decimal(38, 0)": (
        "DecimalType",
        pa.array([Decimal(10**37), Decimal(-(10**37)), Decimal(-129)], pa.decimal128(38)),
    ),
}


@pytest.mark.parametrize("kind", VALUES)
def test_types_that_spark_lacks_are_hashed_as_java_would(kind: str, spark_session: SparkSession) -> None:
    """Java's single-value serialization into its sketch of the Alpha family, which is what the specification says."""
    jvm = spark_session._jvm
    types, conversions = jvm.org.apache.iceberg.types.Types, jvm.org.apache.iceberg.types.Conversions  # type: ignore[union-attr]
    shaded = jvm.org.apache.iceberg.shaded.org.apache.datasketches  # type: ignore[union-attr]
    sketch = shaded.theta.UpdateSketch.builder().setFamily(shaded.common.Family.ALPHA).build()
    name, column = VALUES[kind]
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    for value in (storage.view(pa.int64()) if name == "LongType" else storage).to_pylist():
        if name == "LongType":
            buffer = conversions.toByteBuffer(types.LongType.get(), value)  # type: ignore[union-attr]
        elif name == "UUIDType":
            buffer = conversions.toByteBuffer(
                types.UUIDType.get(), jvm.java.util.UUID.fromString(str(uuid.UUID(bytes=value)))
            )  # type: ignore[union-attr]
        elif name == "DecimalType":
            decimal = jvm.java.math.BigDecimal(str(value))  # type: ignore[union-attr]
            buffer = conversions.toByteBuffer(types.DecimalType.of(38, 0), decimal)
        else:
            buffer = jvm.java.nio.ByteBuffer.wrap(value)  # type: ignore[union-attr]
        sketch.update(buffer)
    ours = ColumnSketch(kind)
    ours.add(storage)
    assert encode_theta(ours.sketch()) == bytes(sketch.compact().toByteArray())
