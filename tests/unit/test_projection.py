"""Rows of older files in the current schema: defaults, partition values, promotions, other writers' Arrow types."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.errors import FileUnreadable, TableUnsupported
from icekeeper.metadata.single_value import raw_from_json
from icekeeper.rows.arrow_schema import stored_schema
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.project import Projection
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.storage import Storage
from support.corpus import digest, expected, require_corpus
from support.rewrites import struct

OLD = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
ID = (1, "id", "long")


def projected(
    batch: pa.RecordBatch, schema: Mapping[str, Any], identity: Mapping[int, Any] | None = None
) -> pa.RecordBatch:
    projection = Projection(batch.schema, schema, identity or {}, None)
    return projection.apply(batch)


def added(field: tuple[Any, ...], identity: Mapping[int, Any] | None = None) -> pa.Array:
    """What two rows of a file without the column have in it."""
    return projected(pa.RecordBatch.from_pydict({"id": [7, 8]}, OLD), struct(ID, field), identity).column(1)


@pytest.mark.parametrize(
    ("kind", "default", "raw", "seen"),
    [
        ("boolean", False, False, False),
        ("int", -1, -1, -1),
        ("long", 2**40, 2**40, 2**40),
        ("float", 1.5, 1.5, 1.5),
        ("double", 2, 2.0, 2.0),
        ("decimal(10, 2)", "-123.45", -12345, decimal.Decimal("-123.45")),
        ("decimal(38,3)", "1E+3", 1_000_000, decimal.Decimal("1000.000")),
        ("string", "ß", "ß", "ß"),
        ("date", "1969-12-31", -1, datetime.date(1969, 12, 31)),
        ("time", "10:30:00.000001", 37_800_000_001, datetime.time(10, 30, 0, 1)),
        ("timestamp", "1969-12-31T23:59:59.123456", -876_544, datetime.datetime(1969, 12, 31, 23, 59, 59, 123456)),
        ("timestamptz", "1970-01-01T01:00:00+01:00", 0, datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
        ("timestamp_ns", "1970-01-01T00:00:00.000000001", 1, 1),
        ("timestamptz_ns", "1970-01-01T00:00:00.1+00:00", 10**8, 10**8),
        ("uuid", "00000000-0000-0000-0000-0000000000ff", bytes(15) + b"\xff", bytes(15) + b"\xff"),
        ("fixed[2]", "00ff", b"\x00\xff", b"\x00\xff"),
        ("binary", "0102", b"\x01\x02", b"\x01\x02"),
    ],
)
def test_a_missing_column_is_its_initial_default(kind: str, default: Any, raw: Any, seen: Any) -> None:
    """Of every type, in the specification's JSON form; being required is no obstacle."""
    assert raw_from_json(kind, default) == raw
    found = added((2, "n", kind, {"initial-default": default, "required": True}))
    found = found.storage if isinstance(found, pa.ExtensionArray) else found
    assert (found.view(pa.int64()) if kind.endswith("_ns") else found).to_pylist() == [seen, seen]


@pytest.mark.parametrize(
    ("kind", "default"),
    [("int", "1"), ("int", True), ("boolean", 1), ("date", "yesterday"), ("decimal(9,2)", "1.234"), ("string", 1)],
)
def test_a_default_of_another_type_is_refused(kind: str, default: Any) -> None:
    with pytest.raises(TableUnsupported, match="is no value of type"):
        added((2, "n", kind, {"initial-default": default}))


def test_a_partition_value_goes_before_a_default_and_a_default_before_null() -> None:
    """Also where the partition value is null (specification, "Column Projection")."""
    field = (2, "n", "int", {"initial-default": 5})
    assert added(field, {2: 9}).to_pylist() == [9, 9]
    assert added(field, {2: None}).to_pylist() == [None, None]
    assert added(field).to_pylist() == [5, 5]
    assert added((2, "n", "int")).to_pylist() == [None, None]
    assert added((2, "n", "int", {"initial-default": None})).to_pylist() == [None, None]


def test_a_required_column_without_a_default_is_refused_by_name() -> None:
    with pytest.raises(TableUnsupported, match="lacks the required column n, which has no default"):
        added((2, "n", "int", {"required": True}))


def test_nested_columns_have_defaults_and_partition_values_too() -> None:
    """Where the struct is there; a null struct stays null."""
    old = pa.schema(
        [
            pa.field(
                "s",
                pa.struct([pa.field("a", pa.int32(), metadata={b"PARQUET:field_id": b"2"})]),
                metadata={b"PARQUET:field_id": b"1"},
            )
        ]
    )
    inner = struct((5, "x", "string"), (6, "y", "int", {"initial-default": 4}))
    new = struct(
        (
            1,
            "s",
            struct(
                (2, "a", "int"),
                (3, "b", "string", {"initial-default": "d", "required": True}),
                (4, "c", inner, {"initial-default": {}}),
                (7, "p", "int"),
            ),
        )
    )
    batch = pa.RecordBatch.from_pydict({"s": [{"a": 1}, None, {"a": None}]}, old).slice(0)
    full = {"b": "d", "c": {"x": None, "y": 4}, "p": 9}
    assert projected(batch, new, {7: 9}).column(0).to_pylist() == [{"a": 1, **full}, None, {"a": None, **full}]
    assert projected(batch.slice(1), new, {7: 9}).column(0).to_pylist() == [None, {"a": None, **full}]


def test_a_missing_struct_list_or_map_is_null_or_its_default() -> None:
    inner = struct((5, "x", "string", {"initial-default": "d"}), (6, "y", "int"))
    tags = {"type": "list", "element-id": 7, "element": "int", "element-required": False}
    assert added((2, "s", inner)).to_pylist() == [None, None]
    assert added((2, "s", inner, {"initial-default": {"6": 3}})).to_pylist() == [{"x": "d", "y": 3}] * 2
    assert added((2, "l", tags, {"initial-default": []})).to_pylist() == [[], []]
    with pytest.raises(TableUnsupported, match="column l has the default"):
        added((2, "l", tags, {"initial-default": [1]}))


@pytest.mark.parametrize(
    ("old", "new", "values", "seen"),
    [
        (pa.date32(), "timestamp", [-1], -86_400_000_000),
        (pa.date32(), "timestamp_ns", [-1], -86_400_000_000_000),
        (pa.timestamp("us"), "timestamp_ns", [-1], -1000),
        (pa.timestamp("ms"), "timestamp", [-1], -1000),
        (pa.large_string(), "string", ["a"], "a"),
        (pa.string_view(), "string", ["a"], "a"),
        (pa.dictionary(pa.int8(), pa.string()), "string", ["a"], "a"),
        (pa.large_binary(), "binary", [b"a"], b"a"),
    ],
    ids=str,
)
def test_promotions_and_other_writers_types(old: pa.DataType, new: str, values: list[Any], seen: Any) -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, old)], schema=pa.schema([pa.field("v", old, metadata={b"PARQUET:field_id": b"1"})])
    )
    found = projected(batch, struct((1, "v", new))).column(0)
    assert (found.view(pa.int64()) if pa.types.is_temporal(found.type) else found).to_pylist() == [seen]


@pytest.mark.parametrize("kind", ["fixed_size_list", "large_list", "list_view"])
@pytest.mark.parametrize("element", ["int", "long"])
def test_every_kind_of_list_is_read(kind: str, element: str) -> None:
    """A Parquet file may carry its writer's Arrow schema; elements are promoted on the way."""
    inner = pa.field("item", pa.int32(), metadata={b"PARQUET:field_id": b"2"})
    made = {
        "fixed_size_list": pa.list_(inner, 2),
        "large_list": pa.large_list(inner),
        "list_view": pa.list_view(inner),
    }[kind]
    values = [[1, 2], None, [3, None]]
    schema = pa.schema([pa.field("l", made, metadata={b"PARQUET:field_id": b"1"})])
    batch = pa.RecordBatch.from_arrays([pa.array(values, made)], schema=schema)
    new = struct((1, "l", {"type": "list", "element-id": 2, "element": element, "element-required": False}))
    if kind == "list_view":  # Arrow's cast of them loses elements
        with pytest.raises(TableUnsupported, match="column l is list_view"):
            projected(batch, new)
        return
    assert projected(batch, new).column(0).to_pylist() == values
    assert projected(batch.slice(1), new).column(0).to_pylist() == values[1:]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ((1, "v", "variant"), "column v is of type variant,"),
        ((1, "g", "geometry(srid:3857)"), "column g is of type geometry(srid:3857),"),
        ((1, "s", struct((2, "g", "geography"))), "column s.g is of type geography,"),
        (
            (1, "l", {"type": "list", "element-id": 2, "element": "unknown", "element-required": False}),
            "column l.element is of type unknown,",
        ),
        ((1, "s", struct((2, "u", "unknown"))), "column s is of type struct of unknown columns only,"),
        ((1, "x", "int128"), "column x is of type int128,"),
    ],
    ids=str,
)
def test_types_that_cannot_be_carried_are_refused_by_name(field: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TableUnsupported) as caught:
        stored_schema(struct(field))
    assert message in str(caught.value)
    assert "the table was left alone" in str(caught.value)


def test_unknown_columns_are_in_no_file() -> None:
    """They are always null, which a reader of a file without them says too (specification, "Parquet")."""
    schema = struct(ID, (2, "u", "unknown"), (3, "s", struct((4, "u", "unknown"), (5, "x", "int"))))
    assert stored_schema(schema) == struct(ID, (3, "s", struct((5, "x", "int"))))


@pytest.mark.parametrize("name", ["im_v3_default_value", "im_v3_all_types"])
def test_impalas_files_with_defaults_read_as_expected(name: str) -> None:
    """Data files that were written before columns with defaults were added, in use as Impala left them."""
    folder = require_corpus() / "tables" / name
    document = json.loads((folder / expected(name)["metadata"]).read_text())
    (schema,) = (s for s in document["schemas"] if s["schema-id"] == document["current-schema-id"])
    found: list[dict[str, Any]] = []
    for path in sorted((folder / "data").glob("*.parquet")):
        batches = projected_rows(ReadableFile(str(path)), schema, Storage({}))
        found += [row for batch in batches for row in batch.to_pylist()]
    assert len(found) == sum(pq.read_metadata(path).num_rows for path in (folder / "data").glob("*.parquet"))
    assert digest(found) == (expected(name)["rows"], expected(name)["sha"])


def test_a_column_that_a_file_must_hold_is_not_made_up(tmp_path: Path) -> None:
    """The key of an equality delete: nothing may stand in for it, no default either."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"id": [1]}, schema=OLD), path)
    schema = struct(ID, (2, "s", struct((3, "n", "int", {"initial-default": 1})), {"initial-default": {}}))
    (batch,) = projected_rows(ReadableFile(str(path)), schema, Storage({}), must_hold=[1])
    assert batch.to_pylist() == [{"id": 1, "s": {"n": 1}}]
    with pytest.raises(FileUnreadable, match=r"f\.parquet cannot be read: a file lacks column\(s\) \[3\]"):
        list(projected_rows(ReadableFile(str(path)), schema, Storage({}), must_hold=[1, 3]))
