"""Column metrics of what compaction writes: exact, containing every value, and those that Iceberg-Java finds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import PrimitiveType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from icekeeper.model import DataFile
from icekeeper.rows.arrow_schema import leaf_columns
from support.evolved import Compacted
from support.iceberg_java import IcebergJava
from support.maintained_table import local_path, registered_table

_T = TypeVar("_T")


def test_metrics_are_those_that_java_reads_from_the_file(compacted: Compacted, iceberg_java: IcebergJava) -> None:
    for file in compacted.outputs().values():
        assert metrics_of(file) == java_metrics(iceberg_java, compacted.after, file)


@pytest.mark.parametrize(
    "settings",
    [
        {"default": "truncate(3)", "column.id": "none", "column.label_text": "full", "column.point.label": "counts"},
        {"default": "full"},
        {"default": "counts", "column.raw": "truncate(1)", "column.value": "truncate(5)"},
        {"default": "none", "column.price": "truncate(16)"},
        {"default": "nonsense", "column.day": "nonsense"},
        {"max-inferred-column-defaults": "5", "column.raw": "counts"},
    ],
    ids=str,
)
@pytest.mark.parametrize("compacted", [2], ids=["v2"], indirect=True)
def test_metrics_follow_the_settings_as_in_java(
    settings: dict[str, str], compacted: Compacted, tmp_path: Path, iceberg_java: IcebergJava
) -> None:
    """Also over several row groups, one per input file here."""
    document = json.loads(local_path(compacted.before).read_text())
    properties = {f"write.metadata.metrics.{key}": value for key, value in settings.items()}
    properties["write.parquet.row-group-size-bytes"] = "1"
    properties["write.metadata.path"] = properties["write.data.path"] = (tmp_path / "written").as_uri()
    (tmp_path / "written").mkdir()
    changed = tmp_path / "written" / "00000-changed.metadata.json"
    changed.write_text(json.dumps(document | {"properties": properties}))
    table = registered_table(changed.as_uri(), tmp_path)
    outcome = table.maintain(operations="compact", max_files_to_rewrite="4")
    made = Compacted(2, changed.as_uri(), table.metadata_location, table, outcome)
    (file,) = made.outputs().values()
    assert len(file.split_offsets or ()) == 4
    assert metrics_of(file) == java_metrics(iceberg_java, made.after, file)


def metrics_of(file: DataFile) -> dict[str, Any]:
    names = ("record_count", "column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    return {name: getattr(file, name) for name in names}


def java_metrics(java: IcebergJava, metadata_location: str, file: DataFile) -> dict[str, Any]:
    """What Iceberg-Java's ``ParquetUtil.fileMetrics`` makes of the file's footer and the table's settings; besides,
    what we tell of columns of which the footer says nothing (right by the two tests below)."""
    jvm: Any = java.session._jvm
    hadoop = java.session._jsc.hadoopConfiguration()
    operations = jvm.org.apache.iceberg.StaticTableOperations(
        metadata_location, jvm.org.apache.iceberg.hadoop.HadoopFileIO(hadoop)
    )
    config = jvm.org.apache.iceberg.MetricsConfig.forTable(jvm.org.apache.iceberg.BaseTable(operations, "t"))
    opened = jvm.org.apache.iceberg.hadoop.HadoopInputFile.fromLocation(file.file_path, hadoop)
    told = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics(opened, config)
    schema = json.loads(jvm.org.apache.iceberg.SchemaParser.toJson(operations.current().schema()))
    columns = pq.read_metadata(local_path(file.file_path)).row_group(0).to_dict()["columns"]
    silent = {leaf.field_id for leaf, c in zip(leaf_columns(schema), columns, strict=True) if c["statistics"] is None}

    def ours(told: Mapping[int, _T] | None) -> dict[int, _T]:
        return {i: value for i, value in (told or {}).items() if i in silent}

    return {
        "record_count": told.recordCount(),
        "column_sizes": dict(told.columnSizes()),
        "value_counts": {**ours(file.value_counts), **dict(told.valueCounts())},
        "null_value_counts": {**ours(file.null_value_counts), **dict(told.nullValueCounts())},
        "lower_bounds": {**ours(file.lower_bounds), **java_bounds(jvm, told.lowerBounds())},
        "upper_bounds": {**ours(file.upper_bounds), **java_bounds(jvm, told.upperBounds())},
    }


def java_bounds(jvm: Any, bounds: Any) -> dict[int, bytes]:
    to_bytes = jvm.org.apache.iceberg.util.ByteBuffers.toByteArray
    return {key: bytes(to_bytes(value)) for key, value in dict(bounds).items()}


def test_counts_are_exact(compacted: Compacted) -> None:
    schema = StaticTable.from_metadata(compacted.after).schema()
    for path, file in compacted.outputs().items():
        assert file.value_counts is not None
        assert file.null_value_counts is not None
        assert file.nan_value_counts is not None
        assert file.record_count == pq.read_metadata(local_path(path)).num_rows
        columns = plain_columns(schema, path)
        for field_id, values in columns.items():
            nans = sum(isinstance(value, float) and math.isnan(value) for value in values)
            assert file.value_counts[field_id] == len(values) == file.record_count
            assert file.null_value_counts[field_id] == sum(value is None for value in values)
            assert file.nan_value_counts.get(field_id, 0) == nans
        floats = {i for i in columns if str(schema.find_type(i)) in ("float", "double")}
        assert file.nan_value_counts.keys() == floats


def test_footers_tell_no_bounds_that_readers_misread(compacted: Compacted) -> None:
    """Readers skip row groups by them.  Iceberg-Java orders uuids otherwise than Parquet does; a column of 1.5 and NaN
    is only 1.5 to readers built on Arrow."""
    for path in compacted.outputs():
        rows = pq.ParquetFile(local_path(path)).read(["point.x", "value", "ratio"]).flatten()
        values = {column: set(map(str, rows[column].drop_null().to_pylist())) for column in rows.column_names}
        silent = {column for column in values if values[column] in ({"1.5", "nan"}, {"0.0"}, {"-0.0"})} | {"key"}
        footer = pq.read_metadata(local_path(path))
        for group in range(footer.num_row_groups):
            columns = [footer.row_group(group).column(i) for i in range(footer.num_columns)]
            told = {column.path_in_schema for column in columns if column.statistics is not None}
            assert told == {column.path_in_schema for column in columns} - silent


def test_bounds_contain_every_value(compacted: Compacted) -> None:
    """Decoded by PyIceberg; truncated to 16 characters, upper ones rounded up or left out; never NaN."""
    schema = StaticTable.from_metadata(compacted.after).schema()
    bounded = set()
    for path, file in compacted.outputs().items():
        assert file.lower_bounds is not None
        assert file.upper_bounds is not None
        columns = plain_columns(schema, path)
        assert file.lower_bounds.keys() <= columns.keys()  # nothing inside lists and maps
        assert file.upper_bounds.keys() <= file.lower_bounds.keys()
        for field_id, values in columns.items():
            kind = schema.find_type(field_id)
            assert isinstance(kind, PrimitiveType)
            present = [ordered(v) for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
            if not present:
                assert field_id not in file.lower_bounds
                continue
            if field_id in file.lower_bounds:
                bounded.add(field_id)
                low = from_bytes(kind, file.lower_bounds[field_id])
                assert ordered(low) <= min(present)
                assert len(low) <= 16 if str(kind) in ("string", "binary") else True
            if field_id in file.upper_bounds:
                high = from_bytes(kind, file.upper_bounds[field_id])
                assert ordered(high) >= max(present)
                assert len(high) <= 16 if str(kind) in ("string", "binary") else True
    of_uuids = {field.field_id for field in schema.fields if str(field.field_type) == "uuid"}
    assert of_uuids
    assert bounded == set(plain_columns(schema, next(iter(compacted.outputs())))) - of_uuids


def plain_columns(schema: Schema, path: str) -> dict[int, list[Any]]:
    """Field id → values of every primitive column outside lists and maps, in PyIceberg's raw form."""
    table = pq.read_table(local_path(path))
    columns: dict[int, list[Any]] = {}

    def collect(fields: Any, rows: list[Mapping[str, Any] | None]) -> None:
        for field in fields:
            values = [None if row is None else row[field.name] for row in rows]
            if field.field_type.is_primitive:
                columns[field.field_id] = [raw(value, str(field.field_type)) for value in values]
            elif field.field_type.is_struct:
                collect(field.field_type.fields, values)

    collect(schema.fields, table.to_pylist())
    return columns


def raw(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "date":
        return date_to_days(value)
    if kind.startswith("timestamp"):
        return datetime_to_micros(value)
    return value


def ordered(value: Any) -> Any:
    """A key in the order that the specification gives: text by UTF-8 bytes, -0.0 below +0.0."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return value, math.copysign(1, value)
    if hasattr(value, "bytes"):
        return value.bytes
    return value
