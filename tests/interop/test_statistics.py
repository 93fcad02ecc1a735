"""Statistics compared with Iceberg-Java's: equal sketches, equal partition rows, and Java and Spark read them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from icekeeper.metadata.puffin import decode_footer
from icekeeper.metadata.statistics import encode_theta
from icekeeper.operations.statistics.column_sketch import ColumnSketch
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.java_table import JavaTable
from support.maintained_table import MaintainedTable, local_path, outcome_of, registered_table

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


@dataclass(frozen=True)
class Kind:
    """A format version, and the file format of partition statistics."""

    version: int
    file_format: str


@pytest.fixture(params=[Kind(2, "avro"), Kind(3, "parquet")], ids=["v2", "v3"])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def java_table(kind: Kind, spark_session: SparkSession, tmp_path: Path) -> Iterator[JavaTable]:
    """A table with two partition specs and merge-on-read deletes."""
    properties = f"'format-version' = '{kind.version}', 'write.format.default' = '{kind.file_format}'"
    ddl = (
        f"CREATE TABLE {{table}} ({COLUMNS}) USING iceberg PARTITIONED BY (flag, day) "
        f"TBLPROPERTIES ({properties}, 'write.delete.mode' = 'merge-on-read')"
    )
    table = JavaTable.create(spark_session, f"s{tmp_path.name}", ddl)
    table.sql("INSERT INTO {table} " + ROWS.format(start=0, end=60))
    jvm: Any = spark_session._jvm
    by = jvm.org.apache.iceberg.expressions.Expressions
    update = loaded(table).updateSpec().removeField("day")
    for term in (by.bucket("id", 2), by.ref("price"), by.ref("ratio"), by.truncate("name", 1), by.hour("at")):
        update = update.addField(term)
    update.addField(by.ref("raw")).commit()
    table.sql("REFRESH TABLE {table}")
    table.sql("INSERT INTO {table} " + ROWS.format(start=50, end=90))
    table.sql("DELETE FROM {table} WHERE id IN (3, 4, 55)")
    yield table
    table.drop()


def computed(table: JavaTable, folder: Path, **settings: Any) -> MaintainedTable:
    """The table after Icekeeper has computed its statistics."""
    folder.mkdir()
    ours = registered_table(table.metadata_location, folder)
    outcome = outcome_of(ours.maintain(operations="compute_statistics", **settings), Operation.COMPUTE_STATISTICS)
    assert outcome.status is Status.SUCCEEDED, outcome.reason
    assert not ours.problems()
    return ours


def each(iterable: Any) -> Iterator[Any]:
    """Iterate over any Java iterable; py4j iterates only over lists."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def sketches(session: SparkSession, path: str) -> dict[tuple[int, ...], tuple[bytes, dict[str, str]]]:
    """The bytes and properties of each blob of a statistics file by its fields, as Iceberg-Java reads them."""
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


def partition_rows(table: JavaTable, path: str, version: int) -> list[dict[str, Any]]:
    """A partition statistics file as Iceberg-Java reads it."""
    session = table.session
    java = session._jvm.org.apache.iceberg  # type: ignore[union-attr]
    schema = java.PartitionStatsHandler.schema(java.Partitioning.partitionType(loaded(table)), version)
    file = java.hadoop.HadoopFileIO(session._jsc.hadoopConfiguration()).newInputFile(path)
    rows = java.PartitionStatsHandler.readPartitionStatsFile(schema, file)
    anything = session._jvm.java.lang.Class.forName("java.lang.Object")  # type: ignore[union-attr]
    found = []
    for row in each(rows):
        partition = row.partition()
        found.append(
            {
                "partition": tuple(str(partition.get(i, anything)) for i in range(partition.size())),
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


def test_statistics_equal_javas(java_table: JavaTable, kind: Kind, spark_session: SparkSession, tmp_path: Path) -> None:
    """Sketches are equal byte for byte, with deletes applied, for every type that Spark has; partitions are equal row
    for row; Spark plans with Icekeeper's statistics."""
    ours = computed(java_table, tmp_path / "ours")
    sketches_are_equal(ours, java_table.call("compute_table_stats").statistics_file, spark_session)
    partitions_are_equal(ours, java_table, kind)
    java_table.take_over(ours.metadata_location)
    java_lists_them(java_table)
    spark_plans_with_them(java_table)


def sketches_are_equal(ours: MaintainedTable, theirs: str, session: SparkSession) -> None:
    (entry,) = ours.reader.metadata.statistics
    mine, java = sketches(session, entry["statistics-path"]), sketches(session, theirs)
    assert {fields: data for fields, (data, _) in mine.items()} == {fields: data for fields, (data, _) in java.items()}
    assert {fields: p["ndv"] for fields, (_, p) in mine.items()} == {f: p["ndv"] for f, (_, p) in java.items()}
    shaded = session._jvm.org.apache.iceberg.shaded.org.apache.datasketches  # type: ignore[union-attr]
    for data, properties in mine.values():
        sketch = shaded.theta.CompactSketch.wrap(shaded.memory.Memory.wrap(data))
        assert str(int(sketch.getEstimate())) == properties["ndv"]


def partitions_are_equal(ours: MaintainedTable, java_table: JavaTable, kind: Kind) -> None:
    """Java omits the number of rows after deletes; where Icekeeper states it, it equals the count of the table."""
    theirs = java_table.call("compute_partition_stats").partition_statistics_file
    (entry,) = ours.reader.metadata.partition_statistics
    assert entry["statistics-path"].endswith(f".{kind.file_format}")
    mine = partition_rows(java_table, entry["statistics-path"], kind.version)
    javas = partition_rows(java_table, theirs, kind.version)
    assert [{**row, "rows": None} for row in mine] == javas
    known = [row for row in mine if row["rows"] is not None]
    if kind.version == 2:
        assert {row["positions"][1] for row in mine if row["rows"] is None} == {1}
        assert [row["positions"][1] for row in known] == [0] * len(known)
    else:
        assert len(known) == len(mine)
        (count,) = java_table.sql("SELECT COUNT(*) AS n FROM {table}")
        assert sum(row["rows"] for row in known) == count.n


def loaded(table: JavaTable) -> Any:
    """The table as Iceberg-Java's object."""
    java = table.session._jvm.org.apache.iceberg  # type: ignore[union-attr]
    return java.spark.Spark3Util.loadIcebergTable(table.session._jsparkSession, f"java.db.{table.name}")


def java_lists_them(java_table: JavaTable) -> None:
    table = loaded(java_table)
    (file,) = table.statisticsFiles()
    assert file.snapshotId() == table.currentSnapshot().snapshotId()
    data = local_path(file.path()).read_bytes()
    assert file.fileSizeInBytes() == len(data)
    blobs = {tuple(b.fields()): dict(b.properties()) for b in file.blobMetadata()}
    assert blobs == {blob.fields: dict(blob.properties) for blob in decode_footer(data, file.path())}


def spark_plans_with_them(java_table: JavaTable) -> None:
    """Its optimiser takes the number of distinct values from the property ``ndv``."""
    session = java_table.session
    session.conf.set("spark.sql.cbo.enabled", "true")
    try:
        frame = session.table(f"java.db.{java_table.name}")
        statistics = frame._jdf.queryExecution().optimizedPlan().stats().attributeStats()
        distinct = {pair._1().name(): int(str(pair._2().distinctCount().get())) for pair in each(statistics)}
    finally:
        session.conf.unset("spark.sql.cbo.enabled")
    assert (distinct["id"], distinct["flag"], distinct["price"]) == (87, 2, 7)


# py4j passes small numbers as Integer, so the values are large.
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


@pytest.mark.parametrize("iceberg_type", VALUES)
def test_types_that_spark_lacks_are_hashed_as_in_java(iceberg_type: str, spark_session: SparkSession) -> None:
    """The specification requires Java's single-value serialization into its sketch of the Alpha family."""
    jvm: Any = spark_session._jvm
    types, convert = jvm.org.apache.iceberg.types.Types, jvm.org.apache.iceberg.types.Conversions.toByteBuffer
    to_java: dict[str, Callable[[Any], Any]] = {
        "LongType": lambda value: convert(types.LongType.get(), value),
        "UUIDType": lambda value: convert(
            types.UUIDType.get(), jvm.java.util.UUID.fromString(str(uuid.UUID(bytes=value)))
        ),
        "DecimalType": lambda value: convert(types.DecimalType.of(38, 0), jvm.java.math.BigDecimal(str(value))),
        "BinaryType": jvm.java.nio.ByteBuffer.wrap,
    }
    shaded = jvm.org.apache.iceberg.shaded.org.apache.datasketches
    sketch = shaded.theta.UpdateSketch.builder().setFamily(shaded.common.Family.ALPHA).build()
    name, column = VALUES[iceberg_type]
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    for value in (storage.view(pa.int64()) if name == "LongType" else storage).to_pylist():
        sketch.update(to_java[name](value))
    ours = ColumnSketch(iceberg_type)
    ours.add(storage)
    assert encode_theta(ours.sketch()) == bytes(sketch.compact().toByteArray())
