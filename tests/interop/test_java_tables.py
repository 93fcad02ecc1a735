"""Tables of Iceberg-Java: Avro, ORC, every transform, manifests, and position deletes."""

from __future__ import annotations

import datetime
import io
import json
import struct as binary
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from icekeeper.commit.attempt import assign_row_ids
from icekeeper.metadata.avro_schemas import manifest_list_schema, manifest_schema
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.manifest_read import decode_manifest, decode_manifest_list
from icekeeper.metadata.manifest_write import encode_manifest, encode_manifest_list
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from icekeeper.rows.file_rows import why_unreadable
from support.duckdb_session import DuckDB
from support.examples import NIGHTLY
from support.iceberg_java import IcebergJava
from support.java_table import JavaTable, SharedTable
from support.java_writer import BY_REGION, ID_AND_REGION, JavaTables
from support.maintained_table import KEEPING_SNAPSHOTS, MaintainedTable, outcome_of, registered_table
from support.plans import data_file
from support.readers import CanonicalRows, canonical, duckdb_rows, pyiceberg_rows, rows_by_engine

# Partitions of Iceberg-Java's tables expire; Iceberg-Java, DuckDB and PyIceberg read exactly the remaining rows.

EXPIRING = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": number, "name": name, "type": kind, "required": False}
        for number, (name, kind) in enumerate(
            {"id": "long", "at": "timestamptz", "day": "date", "text": "string"}.items(), 1
        )
    ],
}
# The ages are so far apart that a run at the turn of an hour, day, month or year has the same result.
AGES = (0, 40, 800)
# Each kind of partition and each format version, but not every combination.
KINDS: list[tuple[int, list[tuple[str, int]], dict[str, Any]]] = [
    (1, [("day", 2)], {}),
    (1, [("identity", 4)], {"partition_time": "text=%Y%m%d"}),
    (2, [("hour", 2)], {}),
    (2, [("bucket[2]", 1), ("month", 2)], {"partition_time": "at"}),
    (3, [("year", 2)], {}),
    (3, [("identity", 3)], {}),
]


@pytest.mark.parametrize(("version", "transforms", "settings"), KINDS)
def test_old_partitions_expire_and_readers_agree(
    java_tables: JavaTables, tmp_path: Path, version: int, transforms: list[tuple[str, int]], settings: dict[str, Any]
) -> None:
    fields = [
        {"name": f"p{number}", "transform": transform, "source-id": source, "field-id": 1000 + number}
        for number, (transform, source) in enumerate(transforms)
    ]
    properties = {"format-version": str(version)}
    java = java_tables.create(EXPIRING, {"spec-id": 0, "fields": fields}, properties, tmp_path / "table")
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    moments = [now - datetime.timedelta(days=AGES[number // 10]) for number in range(30)]
    rows = [{"1": n, "2": at, "3": at.date(), "4": f"{at:%Y%m%d}"} for n, at in enumerate(moments)]
    deleted = (3, 13, 23) if version > 1 else ()
    files, places = [], {}
    for partition in sorted({*(by := java.partitions(0, rows))}, key=repr):
        own = [row for row, its in zip(rows, by, strict=True) if its == partition]
        files.append(java.data_file(own, 0, partition, "parquet"))
        if found := [at for at, row in enumerate(own) if row["1"] in deleted]:
            places[str(files[-1].location())] = (partition, found)
    java.append(files)
    if version == 2:
        java.row_delta(
            deletes=[java.position_deletes({path: at}, 0, of, "parquet") for path, (of, at) in places.items()]
        )
    elif version == 3:
        java.delete_by_vectors({path: at for path, (_, at) in places.items()})
    table = SharedTable(java, tmp_path)
    passed = table.maintain(operations="expire_partitions", partition_retention_hours=str(24 * 400), **settings)
    outcome = outcome_of(passed, Operation.EXPIRE_PARTITIONS)
    assert outcome.status is Status.SUCCEEDED, outcome.summary
    assert outcome.metrics["expire_partitions.rows_removed"] == 10
    assert outcome.metrics["expire_partitions.delete_files_removed"] == (version > 1)
    names = ("id", "at", "day", "text")
    left = canonical(dict(zip(names, row.values(), strict=True)) for row in rows[:20] if row["1"] not in deleted)
    assert canonical(dict(zip(names, row.values(), strict=True)) for row in java.rows()) == left
    assert canonical(duckdb_rows(table.metadata_location)) == left
    assert canonical(pyiceberg_rows(table.metadata_location)) == left
    assert not table.problems()
    java.append([java.data_file(rows[:1], 0, java.partitions(0, rows[:1])[0], "parquet")])
    assert len(java.rows()) == len(left) + 1


# A pass names and skips ORC files with timestamps that Arrow cannot read, and merges the others of their partition.

FAR = "is ORC with timestamps before 1678 or after 2261, which are not read"
DAY = 86_400 * 10**6
EDGE = 106_751 * DAY
"""The last full day that Arrow reads."""


@pytest.mark.parametrize(
    ("kind", "file_format", "least", "greatest", "reason"),
    [
        ("timestamp", "ORC", -EDGE, EDGE, None),
        ("timestamp", "orc", -EDGE - DAY, 0, FAR),
        ("timestamptz", "ORC", 0, EDGE + DAY, FAR),
        ("timestamp", "PARQUET", -EDGE - DAY, EDGE + DAY, None),
        ("long", "ORC", -EDGE - DAY, EDGE + DAY, None),
        ("timestamp", "CSV", 0, 0, "is CSV, which is not read"),
    ],
)
def test_bounds_show_which_files_cannot_be_read(
    kind: str, file_format: str, least: int, greatest: int, reason: str | None
) -> None:
    bounds = [{1: binary.pack("<q", value)} for value in (least, greatest)]
    file = data_file("f", 1, file_format=file_format, lower_bounds=bounds[0], upper_bounds=bounds[1])
    assert why_unreadable(file, (), {1: kind}) == reason


def test_encrypted_files_are_unreadable_and_files_without_bounds_are_not() -> None:
    assert why_unreadable(data_file("f", 1, key_metadata=b"k"), (), {}) == "is encrypted"
    assert why_unreadable(data_file("f", 1, file_format="ORC"), (), {1: "timestamp"}) is None


def test_files_beside_an_unreadable_orc_file_are_merged(java_tables: JavaTables, tmp_path: Path) -> None:
    fields = [
        {"id": 1, "name": "id", "type": "int", "required": True},
        {"id": 2, "name": "at", "type": "timestamp", "required": False},
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    spec = {"spec-id": 0, "fields": []}
    java = java_tables.create(schema, spec, {"format-version": "2"}, tmp_path / "table")
    files = [
        java.data_file([{"1": number, "2": datetime.datetime(year, 6, 1)}], 0, [], "orc")
        for number, year in enumerate((2020, 1500, 2021))
    ]
    java.append(files)
    table = registered_table(java.metadata_location, tmp_path)
    outcome = outcome_of(table.maintain(operations="compact"), Operation.COMPACT)
    assert outcome.status is Status.SUCCEEDED
    assert (
        outcome.summary
        == f"compacted 2 files into 1 (across 1 bins); left 1 file(s) unchanged: {files[1].location()} {FAR}"
    )
    again = outcome_of(table.maintain(operations="compact", rewrite_all="true"), Operation.COMPACT)
    assert again.metrics["compact.files_unsupported"] == 1
    assert len(table.live_files()) == 2
    java.take_over(table.metadata_location)
    everything = java_tables.jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
    assert sorted(java.ids_where(everything)) == [0, 1, 2]


# Data, position-delete and equality-delete files that Iceberg-Java wrote as Parquet, ORC and Avro.

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


FORMATS = ("parquet", "orc", "avro")


def delete_equal(table: JavaTable, column: str, value: Any, file_format: str) -> None:
    """Commit an equality delete by a top-level or nested column through Java's writer."""
    jvm: Any = table.session._jvm
    iceberg = jvm.org.apache.iceberg
    java = iceberg.spark.Spark3Util.loadIcebergTable(table.session._jsparkSession, f"java.db.{table.name}")
    field_id = java.schema().findField(column).fieldId()
    only = iceberg.types.TypeUtil.select(java.schema(), jvm.java.util.Collections.singleton(field_id))
    ids = table.session.sparkContext._gateway.new_array(jvm.int, 1)  # type: ignore[union-attr]
    ids[0] = field_id
    kind = iceberg.FileFormat.fromString(file_format)
    factory = iceberg.data.GenericAppenderFactory(java.schema(), java.spec(), ids, only, None)
    files = iceberg.io.OutputFileFactory.builderFor(java, 1, 1).format(kind).build()
    writer = factory.newEqDeleteWriter(files.newOutputFile(), kind, None)
    record = holder = iceberg.data.GenericRecord.create(only.asStruct())
    *parents, name = column.split(".")
    for part in parents:
        below = iceberg.data.GenericRecord.create(holder.struct().field(part).type().asStructType())
        holder.setField(part, below)
        holder = below
    holder.setField(name, value)
    writer.write(record)
    writer.close()
    java.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


def test_rows_and_deletes_of_every_format_read_as_in_java(
    spark_session: SparkSession, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """The table has position deletes by SQL, and equality deletes by top-level, nested and dropped columns."""
    properties = "'format-version' = '2', 'write.delete.mode' = 'merge-on-read'"
    ddl = f"CREATE TABLE {{table}} ({COLUMNS}) USING iceberg TBLPROPERTIES ({properties})"
    java = JavaTable.create(spark_session, f"f{tmp_path.name}", ddl)
    for first, name in zip(range(0, 36, 12), FORMATS, strict=True):
        formats = f"'write.format.default' = '{name}', 'write.delete.format.default' = '{name}'"
        java.sql(f"ALTER TABLE {{table}} SET TBLPROPERTIES ({formats})")
        java.sql("INSERT INTO {table} " + ROWS.format(start=first, end=first + 12))
        java.sql(f"DELETE FROM {{table}} WHERE id = {first + 2}")
        delete_equal(java, "name", "none such", name)
        delete_equal(java, "point.label", f"l{first + 7}", name)
        delete_equal(java, "point.inner.deep", first + 10, name)
        delete_equal(java, "point.x", first + 5, name)
        java.sql("REFRESH TABLE {table}")
    java.sql("ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT")
    java.sql("ALTER TABLE {table} RENAME COLUMN price TO cost")
    before = iceberg_java.rows(java.metadata_location)
    assert sorted(row["id"] for row in before) == [i for i in range(36) if i % 12 not in (2, 5, 7, 10)]
    # Java 1.10 cannot plan a scan after the column of an equality delete is dropped (a NullPointerException).
    java.sql("ALTER TABLE {table} DROP COLUMN point.x")
    for row in before:
        if row["point"] is not None:
            del row["point"]["x"]
    table = registered_table(java.metadata_location, tmp_path)
    outcome = table.maintain(**KEEPING_SNAPSHOTS, rewrite_all="true", proof="full")
    compacted = outcome_of(outcome, Operation.COMPACT)
    assert compacted.status is Status.SUCCEEDED, compacted.summary
    assert compacted.metrics["compact.rows_deleted"] == 12
    assert sum(table.live_deletes().values()) == 0
    assert canonical(iceberg_java.rows(table.metadata_location)) == canonical(before)
    assert canonical(duckdb_rows(table.metadata_location)) == canonical(before)
    java.drop()


# A table of Iceberg-Java, partitioned by every transform, with NaN and -0.0: Icekeeper and Java commit in turn.

FIELDS = """id INT, ratio FLOAT, price DECIMAL(9, 2), name STRING, `we ird` STRING, `1x` DECIMAL(8, 2), at TIMESTAMP,
    day DATE, flag BOOLEAN, raw BINARY, point STRUCT<x: INT, label: STRING>, tags ARRAY<INT>,
    parts MAP<STRING, STRUCT<n: INT>>"""
PARTITIONING = "`we ird`, `1x`, price, bucket(4, id), truncate(2, name), days(at), ratio, truncate(1, raw), day, flag"
ALL = """SELECT CAST(id AS INT), IF(id % 3 = 0, FLOAT('NaN'), FLOAT(-0.0)), CAST(id % 2 * -1.25 AS DECIMAL(9, 2)),
    IF(id % 2 = 0, 'straße, eine lange', NULL), IF(id % 2 = 0, 'a', NULL), CAST(7.5 AS DECIMAL(8, 2)),
    TIMESTAMP'2024-02-29 12:00:00', IF(id % 3 = 0, NULL, DATE'1969-12-31'), id % 2 = 0,
    IF(id % 2 = 0, X'FF01', NULL), IF(id % 4 = 0, NULL, NAMED_STRUCT('x', CAST(id AS INT), 'label', 'l')),
    IF(id % 3 = 0, NULL, ARRAY(CAST(id AS INT), NULL)),
    MAP('k', IF(id % 2 = 0, NULL, NAMED_STRUCT('n', CAST(id AS INT))))
    FROM RANGE({start}, {end})"""


@pytest.fixture(params=[1, 3] if NIGHTLY else [3], ids="v{}".format)
def java_table(request: pytest.FixtureRequest, spark_session: SparkSession, tmp_path: Path) -> Iterator[JavaTable]:
    """A table partitioned by every transform."""
    properties = f"'format-version' = '{request.param}', 'commit.manifest-merge.enabled' = 'false'"
    ddl = (
        f"CREATE TABLE {{table}} ({FIELDS}) USING iceberg PARTITIONED BY ({PARTITIONING}) TBLPROPERTIES ({properties})"
    )
    table = JavaTable.create(spark_session, f"t{tmp_path.name}", ddl)
    insert(table, 0, 8)
    insert(table, 4, 12)
    yield table
    table.drop()


def insert(table: JavaTable, start: int, end: int) -> None:
    table.sql("INSERT INTO {table} " + ALL.format(start=start, end=end))


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


def test_java_and_icekeeper_commit_on_top_of_each_other(
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
    java_table.sql("DELETE FROM {table} WHERE id IN (8, 101)")  # copy on write, of Icekeeper's and Java's files
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


# Icekeeper's manifests and manifest lists have Iceberg-Java's schemas and the same values.

# Partition fields that Spark SQL supports, with odd names.
JAVA_TABLE = """
    CREATE TABLE java.db.{name} (
        id BIGINT NOT NULL, flag BOOLEAN, `we ird` INT, `1x` DECIMAL(9,2), `a-b` DECIMAL(9,2), huge DECIMAL(38,10),
        day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, text STRING, raw BINARY, f FLOAT, d DOUBLE
    ) USING iceberg
    PARTITIONED BY (flag, `we ird`, `1x`, `a-b`, huge, day, local, text, raw, f, d,
                    bucket(4, id), truncate(3, text), days(at))
    TBLPROPERTIES ('format-version' = '{version}')
"""
JAVA_ROW = """
    INSERT INTO java.db.{name} VALUES (1, true, 1, 1.5, 2.5, 3.5, DATE '2024-02-29', TIMESTAMP '2024-02-29 12:00:00Z',
        TIMESTAMP_NTZ '2024-02-29 12:00:00', 'text', X'00ff', CAST('NaN' AS FLOAT), -0.0D)
"""


@pytest.mark.parametrize("version", [1, 2, 3])
def test_avro_schemas_equal_those_of_java(version: int, iceberg_java: IcebergJava) -> None:
    """Names, ids, types, defaults and order are equal; only documentation strings are missing."""
    name = f"avro_v{version}"
    iceberg_java.session.sql(JAVA_TABLE.format(name=name, version=version))
    iceberg_java.session.sql(JAVA_ROW.format(name=name))
    warehouse = iceberg_java.session.conf.get("spark.sql.catalog.java.warehouse")
    path = Path(str(warehouse)) / "db" / name / "metadata" / "v2.metadata.json"
    metadata = parse_document(path.read_bytes(), str(path))
    snapshot = metadata.current_snapshot
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    list_data = Path(snapshot.manifest_list.removeprefix("file:")).read_bytes()
    assert without_doc(avro_schema(list_data)) == without_doc(manifest_list_schema(version))
    (manifest,) = decode_manifest_list(list_data, snapshot.manifest_list)
    data = Path(manifest.manifest_path.removeprefix("file:")).read_bytes()
    spec = metadata.specs[metadata.default_spec_id]
    ours = manifest_schema(version, metadata.schemas_current_first, spec)
    assert without_doc(avro_schema(data)) == without_doc(ours)

    # Icekeeper writes the same manifest with the same values, bounds of partitions included.
    (read,) = decode_manifest(data, manifest, spec)
    again = encode_manifest(
        metadata,
        spec_id=spec["spec-id"],
        content=ManifestContent.DATA,
        entries=[replace(read, sequence_number=None, file_sequence_number=None)],
        path=manifest.manifest_path,
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
    )
    assert records(again.data) == records(data)
    ((ours_listed,), _) = assign_row_ids([again.manifest], 0) if version > 2 else ((again.manifest,), 0)
    assert replace(ours_listed, manifest_length=0) == replace(manifest, manifest_length=0)

    # It writes the same manifest list with the same header, row ids included.
    listed = encode_manifest_list(
        version,
        [manifest],
        snapshot_id=snapshot.snapshot_id,
        parent_snapshot_id=None,
        sequence_number=snapshot.sequence_number,
        first_row_id=0,
    )
    assert records(listed) == records(list_data)
    assert header(listed) == header(list_data)


def avro_schema(data: bytes) -> Any:
    return json.loads(fastavro.reader(io.BytesIO(data)).metadata["avro.schema"])


def header(data: bytes) -> dict[str, str]:
    """Iceberg's entries in the header, without Avro's."""
    found = fastavro.reader(io.BytesIO(data)).metadata
    return {key: value for key, value in found.items() if not key.startswith("avro.") and key != "iceberg.schema"}


def without_doc(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_doc(value) for key, value in schema.items() if key != "doc"}
    return [without_doc(part) for part in schema] if isinstance(schema, list) else schema


def records(data: bytes) -> list[Any]:
    return [json.loads(json.dumps(record, default=repr)) for record in fastavro.reader(io.BytesIO(data))]


# Iceberg-Java writes a position delete that names its single data file under another partition and another spec.

IDLE = {"min_input_files": "9", "delete_compaction_min_deletes": "99", "delete_compaction_min_ratio": "1"}


@pytest.mark.parametrize(
    "passes",
    [
        [("compact", IDLE), ("compact", {"rewrite_all": "true"})],
        [("rewrite_position_deletes", {"min_input_files": "9"}), ("compact", IDLE)],
    ],
    ids=["compact", "rewrite_position_deletes"],
)
def test_no_reader_finds_a_deleted_row_after_a_pass(
    java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path, passes: list[tuple[str, dict[str, Any]]]
) -> None:
    """Java, DuckDB and PyIceberg go by the named file; once, a pass restored deleted rows."""
    java = java_tables.create(ID_AND_REGION, BY_REGION, {"format-version": "2"}, tmp_path / "table")
    files: dict[str, Any] = {}
    for first, region in ((0, "eu"), (10, "us"), (20, "asia")):
        rows = [{"1": number, "2": region} for number in range(first, first + 10)]
        files[region] = java.data_file(rows, 0, (region,), "parquet")
    java.append(files.values())
    us = str(files["us"].location())
    java.row_delta(deletes=[java.position_deletes({us: [0, 1, 2]}, 0, ("eu",), "parquet")])
    java.repartition(lambda update: update.removeField("region"))
    spec_id = java.table.spec().specId()
    java.row_delta(deletes=[java.position_deletes({us: [3, 4]}, spec_id, (), "parquet")])
    table = SharedTable(java, tmp_path)

    def readers() -> list[Counter[int]]:
        location = table.metadata_location
        found = (
            [row["1"] for row in java.rows()],
            *([r["id"] for r in read(location)] for read in (duckdb.rows, pyiceberg_rows)),
        )
        return [Counter(ids) for ids in found]

    expected = Counter([*range(10), *range(15, 30)])
    assert readers() == [expected] * 3
    # Later releases of Java refuse such a delete (platform: java-checks-delete-partition).
    assert {kind for kind, _ in table.problems()} == {"delete_scope"}
    for operation, settings in passes:
        table.maintain(operations=operation, **settings)
        assert readers() == [expected] * 3, operation
    assert not table.problems()
