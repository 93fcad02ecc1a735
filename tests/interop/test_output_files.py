"""Output files have the paths, bounds and metrics that Iceberg-Java gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, PartitionValue
from icekeeper.operations.compaction.terms.output_names import output_names
from icekeeper.operations.compaction.terms.write_properties import metrics_modes, output_properties
from icekeeper.rows.arrow_schema import leaf_columns
from support.evolved import Compacted
from support.iceberg_java import IcebergJava
from support.maintained_table import local_path, registered_table
from support.rewrites import rewritten, rows, struct, written
from support.tables import new_document

# Paths, metrics modes and metrics of output files equal those of Iceberg-Java.

PARTITIONED = struct(
    (1, "text", "string"),
    (2, "day", "date"),
    (3, "at", "timestamp"),
    (4, "zoned", "timestamptz"),
    (5, "price", "decimal(9,2)"),
    (6, "id", "long"),
    (7, "raw", "binary"),
    (8, "we ird~/ü", "int"),
    (9, "flag", "boolean"),
    (10, "clock", "time"),
)

SOURCES: list[tuple[str, str, int, PartitionValue]] = [
    ("text", "identity", 1, "a b/c=ü~*&.-_"),
    ("day", "identity", 2, -1),
    ("day_month", "month", 2, -1),
    ("at", "identity", 3, 1_709_208_015_120_000),
    ("at_2", "identity", 3, -6_000_000_000_000),
    ("zoned", "identity", 4, 4_000_000_000_001),
    ("zoned_hour", "hour", 4, 474_000),
    ("at_year", "year", 3, 54),
    ("at_day", "day", 3, 19_782),
    ("price", "identity", 5, (-1250).to_bytes(4, "big", signed=True)),
    ("price_t", "truncate[10]", 5, (0).to_bytes(4, "big", signed=True)),
    ("id_bucket", "bucket[16]", 6, 7),
    ("raw", "identity", 7, b"\xff\x00\xfe"),
    ("we ird~/ü", "identity", 8, 3),
    ("flag", "identity", 9, True),
    ("clock", "identity", 10, 3_600_000_000),
    ("gone", "void", 6, None),
    ("text_null", "truncate[3]", 1, None),
]


def metadata(location: str, schema: dict[str, Any], **properties: str) -> TableMetadata:
    document = new_document(location, 2)
    spec = [
        {"field-id": 1000 + n, "name": name, "transform": transform, "source-id": source}
        for n, (name, transform, source, _) in enumerate(SOURCES)
    ]
    document["schemas"] = [{**schema, "schema-id": 0}]
    document["current-schema-id"] = 0
    document["partition-specs"] = [{"spec-id": 0, "fields": spec}, {"spec-id": 1, "fields": []}]
    document["default-spec-id"] = 0
    document["properties"] = {key.replace("__", "-").replace("_", "."): value for key, value in properties.items()}
    return TableMetadata(document)


def java_location(java: IcebergJava, table: TableMetadata, spec_id: int, name: str) -> str:
    """The path that Java's location provider gives to a file of this name."""
    jvm: Any = java.session._jvm
    iceberg = jvm.org.apache.iceberg
    schema = iceberg.SchemaParser.fromJson(json.dumps(table.current_schema))
    spec = iceberg.PartitionSpecParser.fromJson(schema, json.dumps(table.specs[spec_id]))
    properties = jvm.java.util.HashMap()
    for key, setting in table.properties.items():
        properties.put(key, setting)
    provider = iceberg.LocationProviders.locationsFor(table.location, properties)
    if spec.isUnpartitioned():
        return str(provider.newDataLocation(name))
    partition = iceberg.PartitionData(spec.partitionType())
    for position, (value, field) in enumerate(zip([s[3] for s in SOURCES], spec.partitionType().fields(), strict=True)):
        if value is not None:
            partition.set(position, java_value(jvm, str(field.type().toString()), value))
    return str(provider.newDataLocation(spec, partition, name))


def java_value(jvm: Any, kind: str, value: PartitionValue) -> Any:
    if kind.startswith("decimal"):
        assert isinstance(value, bytes)
        return jvm.java.math.BigDecimal(jvm.java.math.BigInteger(value), 2)
    if isinstance(value, bytes):
        return jvm.java.nio.ByteBuffer.wrap(value)
    return value  # py4j converts small numbers to Integer; long values here are larger


@pytest.mark.parametrize("spec_id", [0, 1], ids=["partitioned", "unpartitioned"])
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"write_data_path": "s3://other/here/"},
        {"write_object__storage_enabled": "true"},
        {"write_object__storage_enabled": "true", "write_data_path": "s3://other/here"},
        {"write_object__storage_enabled": "true", "write_object__storage_partitioned__paths": "false"},
        {
            "write_object__storage_enabled": "true",
            "write_object__storage_partitioned__paths": "false",
            "write_data_path": "s3://other",
        },
    ],
    ids=["plain", "data-path", "hashed", "hashed-elsewhere", "flat", "flat-elsewhere"],
)
def test_files_have_the_paths_that_java_gives(
    properties: dict[str, str], spec_id: int, iceberg_java: IcebergJava
) -> None:
    table = metadata("s3://bucket/db/t", PARTITIONED, **properties)
    partition = tuple(source[3] for source in SOURCES) if spec_id == 0 else ()
    names = output_names(table, spec_id, partition, "compact-1-00000-x")
    for number in (0, 7):
        name = f"compact-1-00000-x-{number:05d}.parquet"
        there = java_location(iceberg_java, table, spec_id, name)
        # The hash omits the attempt, so that the files of all attempts share a folder.
        assert names.path(number) == there.removesuffix(".parquet") + "-a0.parquet"
        assert replace(names, attempt=3).path(number) == there.removesuffix(".parquet") + "-a3.parquet"


NESTED = struct(
    (1, "s", struct((11, "a", "int"), (12, "b", struct((13, "c", "int"), (14, "e", "string"))))),
    (2, "l", {"type": "list", "element-id": 21, "element": "int", "element-required": False}),
    (
        6,
        "m",
        {
            "type": "map",
            "key-id": 61,
            "key": "string",
            "value-id": 62,
            "value": struct((63, "v", "int")),
            "value-required": False,
        },
    ),
    (3, "x", "int"),
    (4, "y", "string"),
    (5, "z", "int"),
)


@pytest.mark.parametrize("is_sorted", [False, True], ids=["unsorted", "sorted"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"default": "counts"},
        {"default": "none", "column.s.b.c": "full"},
        {"default": "full", "column.z": "none"},
        {"default": "counts", "column.z": "none", "column.x": "nonsense"},
        *({"max-inferred-column-defaults": str(n), "column.y": "nonsense"} for n in range(11)),
    ],
    ids=lambda settings: ",".join(f"{key}={value}" for key, value in settings.items()) or "none",
)
def test_metrics_modes_are_inherited_as_in_java(
    settings: dict[str, str], is_sorted: bool, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """This covers nested columns, columns beyond the limit, and sort columns."""
    document = dict(metadata(tmp_path.as_uri(), NESTED).document)
    document["partition-specs"] = [{"spec-id": 0, "fields": []}]
    document["properties"] = {f"write.metadata.metrics.{key}": value for key, value in settings.items()}
    if is_sorted:
        order = [
            {"transform": transform, "source-id": source, "direction": "asc", "null-order": "nulls-first"}
            for transform, source in (("identity", 5), ("bucket[4]", 3), ("truncate[2]", 14))
        ]
        document["sort-orders"] = [{"order-id": 0, "fields": []}, {"order-id": 1, "fields": order}]
        document["default-sort-order-id"] = 1
    file = tmp_path / "00000-a.metadata.json"
    file.write_text(json.dumps(document))
    jvm: Any = iceberg_java.session._jvm
    iceberg = jvm.org.apache.iceberg
    file_io = iceberg.hadoop.HadoopFileIO(iceberg_java.session._jsc.hadoopConfiguration())
    base = iceberg.BaseTable(iceberg.StaticTableOperations(str(file), file_io), "t")
    config = iceberg.MetricsConfig.forTable(base)
    table = TableMetadata(document)
    modes = metrics_modes(table.current_schema, output_properties(table))
    of_java = {leaf.field_id: str(config.columnMode(leaf.name).toString()) for leaf in leaf_columns(NESTED)}
    assert modes == of_java


TIMED = struct(
    (1, "local", "timestamp_ns"),
    (2, "zoned", "timestamptz_ns"),
    (3, "point", struct((4, "at", "timestamp_ns"))),
    (5, "day", "date"),
    (6, "text", "string"),
)


def test_metrics_of_nanoseconds_equal_those_of_java(iceberg_java: IcebergJava, tmp_path: Path) -> None:
    """Spark cannot read tables with nanoseconds, but Iceberg's own classes read their bounds."""
    values: dict[str, list[Any]] = {
        "local": [-(2**63), 1, None],
        "zoned": [2**63 - 1, -1, None],
        "point": [{"at": 5}, None, {"at": -5}],
        "day": [None, -1, 1],
        "text": ["a", None, "z" * 20],
    }
    properties = {"write.parquet.row-group-size-bytes": "1"}
    tables = [rows(TIMED, {name: [column[n]] for name, column in values.items()}) for n in range(3)]
    file = written(rewritten(TIMED, tables, tmp_path, table_properties=properties, proof="full"))
    assert len(file.split_offsets or ()) == 3
    jvm: Any = iceberg_java.session._jvm
    iceberg = jvm.org.apache.iceberg
    hadoop = iceberg_java.session._jsc.hadoopConfiguration()
    opened = iceberg.hadoop.HadoopInputFile.fromLocation(file.file_path, hadoop)
    of_java = iceberg.parquet.ParquetUtil.fileMetrics(opened, iceberg.MetricsConfig.getDefault())
    assert dict(of_java.valueCounts()) == file.value_counts
    assert dict(of_java.nullValueCounts()) == file.null_value_counts
    assert java_bounds(jvm, of_java.lowerBounds()) == file.lower_bounds
    assert java_bounds(jvm, of_java.upperBounds()) == file.upper_bounds
    assert file.lower_bounds is not None
    assert file.lower_bounds.keys() == {1, 2, 4, 5, 6}


def java_bounds(jvm: Any, bounds: Any) -> dict[int, bytes]:
    to_bytes = jvm.org.apache.iceberg.util.ByteBuffers.toByteArray
    return {key: bytes(to_bytes(value)) for key, value in dict(bounds).items()}


# Column metrics of output files: exact, containing every value, and equal to those of Iceberg-Java.

_T = TypeVar("_T")


def test_metrics_equal_those_that_java_reads_from_the_file(compacted: Compacted, iceberg_java: IcebergJava) -> None:
    for file in compacted.outputs().values():
        assert metrics_of(file) == java_metrics(iceberg_java, compacted.after, file)


@pytest.mark.parametrize("compacted", [2], ids=["v2"], indirect=True)
def test_metrics_follow_the_settings_as_in_java(
    compacted: Compacted, tmp_path: Path, iceberg_java: IcebergJava
) -> None:
    """A column of each mode, in a file with a row group per input file."""
    columns = {"column.id": "none", "column.label_text": "full", "column.point.label": "counts"}
    settings = {"default": "truncate(3)", **columns}
    document = json.loads(local_path(compacted.before).read_text())
    properties = {f"write.metadata.metrics.{key}": value for key, value in settings.items()}
    properties["write.parquet.row-group-size-bytes"] = "1"
    properties["write.metadata.path"] = properties["write.data.path"] = (tmp_path / "written").as_uri()
    (tmp_path / "written").mkdir()
    changed = tmp_path / "written" / "00000-changed.metadata.json"
    changed.write_text(json.dumps(document | {"properties": properties}))
    table = registered_table(changed.as_uri(), tmp_path)
    table.maintain(operations="compact", max_files_to_rewrite="4")
    made = Compacted(changed.as_uri(), table.metadata_location, table)
    (file,) = made.outputs().values()
    assert len(file.split_offsets or ()) == 4
    assert metrics_of(file) == java_metrics(iceberg_java, made.after, file)


def metrics_of(file: DataFile) -> dict[str, Any]:
    names = ("record_count", "column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    return {name: getattr(file, name) for name in names}


def java_metrics(java: IcebergJava, metadata_location: str, file: DataFile) -> dict[str, Any]:
    """The metrics of Iceberg-Java's ``ParquetUtil.fileMetrics`` for the footer and the table's settings, and our own
    metrics of columns without footer statistics (``property/test_row_proof`` proves these)."""
    jvm: Any = java.session._jvm
    hadoop = java.session._jsc.hadoopConfiguration()
    operations = jvm.org.apache.iceberg.StaticTableOperations(
        metadata_location, jvm.org.apache.iceberg.hadoop.HadoopFileIO(hadoop)
    )
    config = jvm.org.apache.iceberg.MetricsConfig.forTable(jvm.org.apache.iceberg.BaseTable(operations, "t"))
    opened = jvm.org.apache.iceberg.hadoop.HadoopInputFile.fromLocation(file.file_path, hadoop)
    of_java = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(opened, config)
    schema = json.loads(jvm.org.apache.iceberg.SchemaParser.toJson(operations.current().schema()))
    columns = pq.read_metadata(local_path(file.file_path)).row_group(0).to_dict()["columns"]
    silent = {leaf.field_id for leaf, c in zip(leaf_columns(schema), columns, strict=True) if c["statistics"] is None}

    def ours(known: Mapping[int, _T] | None) -> dict[int, _T]:
        return {i: value for i, value in (known or {}).items() if i in silent}

    return {
        "record_count": of_java.recordCount(),
        "column_sizes": dict(of_java.columnSizes()),
        "value_counts": {**ours(file.value_counts), **dict(of_java.valueCounts())},
        "null_value_counts": {**ours(file.null_value_counts), **dict(of_java.nullValueCounts())},
        "lower_bounds": {**ours(file.lower_bounds), **java_bounds(jvm, of_java.lowerBounds())},
        "upper_bounds": {**ours(file.upper_bounds), **java_bounds(jvm, of_java.upperBounds())},
    }
