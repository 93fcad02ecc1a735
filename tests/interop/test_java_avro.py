"""Tables whose data, position-delete and equality-delete files Iceberg-Java wrote as Avro, keys inside structs too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.iceberg_java import IcebergJava
from support.maintained_table import KEEPING_SNAPSHOTS, local_path, outcome_of, registered_table
from support.readers import canonical, duckdb_rows

COLUMNS = """id INT, ratio FLOAT, price DECIMAL(9, 2), other DECIMAL(9, 2), huge DECIMAL(38, 10), name STRING,
    `we ird` STRING, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, flag BOOLEAN, raw BINARY,
    point STRUCT<x: INT, label: STRING, inner: STRUCT<deep: INT>>, tags ARRAY<STRING>,
    counts MAP<STRING, INT>, by_number MAP<INT, STRUCT<n: INT>>"""
ROWS = """SELECT CAST(id AS INT), IF(id % 3 = 0, FLOAT('NaN'), FLOAT(-0.0)), CAST(id % 2 * -1.25 AS DECIMAL(9, 2)),
    IF(id % 2 = 0, NULL, CAST(id AS DECIMAL(9, 2))), CAST(id * -10000000000.0000000001 AS DECIMAL(38, 10)),
    IF(id % 2 = 0, 'straße', NULL), IF(id % 2 = 0, 'a', NULL), TIMESTAMP'1969-12-31 23:59:59.123456',
    TIMESTAMP_NTZ'2024-02-29 12:00:00', IF(id % 3 = 0, NULL, DATE'1969-12-31'), id % 2 = 0,
    IF(id % 2 = 0, X'FF01', NULL),
    IF(id % 4 = 0, NULL, NAMED_STRUCT('x', CAST(id AS INT), 'label', 'l' || id, 'inner',
       IF(id % 4 = 1, NULL, NAMED_STRUCT('deep', CAST(id AS INT))))),
    IF(id % 3 = 0, NULL, ARRAY('t' || id, NULL)), MAP('k', IF(id % 2 = 0, NULL, CAST(id AS INT))),
    IF(id % 5 = 0, NULL, MAP(1, IF(id % 2 = 0, NULL, NAMED_STRUCT('n', CAST(id AS INT)))))
    FROM RANGE({start}, {end})"""


class WrittenByJava:
    """A table in Iceberg-Java's Hadoop catalog."""

    def __init__(self, session: SparkSession, name: str, **properties: str) -> None:
        self.session = session
        self.jvm: Any = session._jvm
        self.name = f"java.db.{name}"
        warehouse = Path(session.conf.get("spark.sql.catalog.java.warehouse") or "")
        self.folder = warehouse / "db" / name
        options = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        session.sql(f"CREATE TABLE {self.name} ({COLUMNS}) USING iceberg TBLPROPERTIES ({options})")

    def sql(self, statement: str) -> None:
        self.session.sql(statement.format(table=self.name)).collect()

    def insert(self, start: int, end: int) -> None:
        self.sql("INSERT INTO {table} " + ROWS.format(start=start, end=end))

    @property
    def metadata_location(self) -> str:
        version = (self.folder / "metadata" / "version-hint.text").read_text()
        return (self.folder / "metadata" / f"v{version}.metadata.json").as_uri().replace("file:///", "file:/", 1)

    def delete_equal(self, column: str, value: Any, file_format: str) -> None:
        """Commit an equality delete on a column, nested in structs or not, through Java's own writer."""
        iceberg = self.jvm.org.apache.iceberg
        table = iceberg.spark.Spark3Util.loadIcebergTable(self.session._jsparkSession, self.name)
        field_id = table.schema().findField(column).fieldId()
        only = iceberg.types.TypeUtil.select(table.schema(), self.jvm.java.util.Collections.singleton(field_id))
        ids = self.session.sparkContext._gateway.new_array(self.jvm.int, 1)  # type: ignore[union-attr]
        ids[0] = field_id
        factory = iceberg.data.GenericAppenderFactory(table.schema(), table.spec(), ids, only, None)
        files = iceberg.io.OutputFileFactory.builderFor(table, 1, 1).format(_format(self.jvm, file_format)).build()
        writer = factory.newEqDeleteWriter(files.newOutputFile(), _format(self.jvm, file_format), None)
        record = iceberg.data.GenericRecord.create(only.asStruct())
        parts = column.split(".")
        holder = record
        for part in parts[:-1]:
            below = iceberg.data.GenericRecord.create(holder.struct().field(part).type().asStructType())
            holder.setField(part, below)
            holder = below
        holder.setField(parts[-1], value)
        writer.write(record)
        writer.close()
        table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()
        self.sql("REFRESH TABLE {table}")


def _format(jvm: Any, name: str) -> Any:
    return jvm.org.apache.iceberg.FileFormat.fromString(name)


@pytest.fixture(params=["avro", "orc", "parquet"])
def written(request: pytest.FixtureRequest, spark_session: SparkSession, tmp_path: Path) -> Iterator[WrittenByJava]:
    name = f"f{tmp_path.name}".replace("-", "_").replace("[", "_").replace("]", "_")
    table = WrittenByJava(
        spark_session,
        name,
        **{
            "format-version": "2",
            "write.format.default": request.param,
            "write.delete.format.default": request.param,
            "write.delete.mode": "merge-on-read",
        },
    )
    yield table
    table.sql("DROP TABLE {table} PURGE")


def test_rows_and_deletes_of_every_format_are_those_that_java_reads(
    written: WrittenByJava, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """Position deletes by SQL, equality deletes on a column, a nested one and one that is dropped afterwards."""
    file_format = str(
        json.loads(local_path(written.metadata_location).read_text())["properties"]["write.format.default"]
    )
    written.insert(0, 12)
    written.insert(12, 24)
    written.sql("DELETE FROM {table} WHERE id IN (2, 13)")
    written.delete_equal("name", "none such", file_format)
    written.delete_equal("point.label", "l7", file_format)
    written.delete_equal("point.inner.deep", 14, file_format)
    written.delete_equal("point.x", 5, file_format)
    written.sql("ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT")
    written.sql("ALTER TABLE {table} RENAME COLUMN price TO cost")
    before = iceberg_java.rows(written.metadata_location)
    assert len(before) == 24 - 5
    # Java 1.10 cannot plan a scan once the column of an equality delete is dropped (a NullPointerException).
    written.sql("ALTER TABLE {table} DROP COLUMN point.x")
    for row in before:
        if row["point"] is not None:
            del row["point"]["x"]
    table = registered_table(written.metadata_location, tmp_path)
    outcome = table.maintain(**KEEPING_SNAPSHOTS, rewrite_all="true", proof="full")
    compacted = outcome_of(outcome, Operation.COMPACT)
    assert compacted.status is Status.SUCCEEDED, compacted.summary
    assert compacted.metrics["compact.rows_deleted"] == 5
    assert sum(table.live_deletes().values()) == 0
    after = iceberg_java.rows(table.metadata_location)
    assert canonical(after) == canonical(before)
    assert canonical(duckdb_rows(table.metadata_location)) == canonical(before)
