"""Rows of older files in the current schema: field ids, defaults, promotions."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.errors import FileUnreadable, StorageError, TableUnsupported
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.types import raw_from_json
from icekeeper.model import FileContent
from icekeeper.report.outcome import Status
from icekeeper.rows.arrow_schema import arrow_schema, raw_column, stored_schema
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.project import Projection
from icekeeper.rows.read_task import ReadableFile, ReadTask, make_read_task
from icekeeper.storage.storage import Storage
from support.corpus import digest, expected, require_corpus
from support.deletes import commit_deletes
from support.maintained_table import compacted, maintained_table
from support.plans import candidate, data_file
from support.rewrites import struct
from support.tables import new_document

# Rows of older files in the current schema: defaults, partition values, promotions, other writers' Arrow types.

OLD = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
ID = (1, "id", "long")


def projected(
    batch: pa.RecordBatch, schema: Mapping[str, Any], identity: Mapping[int, Any] | None = None
) -> pa.RecordBatch:
    projection = Projection(batch.schema, schema, identity or {}, None)
    return projection.apply(batch)


def added(field: tuple[Any, ...], identity: Mapping[int, Any] | None = None) -> pa.Array:
    """The column's values in two rows of a file without the column."""
    return projected(pa.RecordBatch.from_pydict({"id": [7, 8]}, OLD), struct(ID, field), identity).column(1)


def unlike(kind: str, raws: list[Any], value: Any, *, stored: str | None = None, nested: bool = False) -> str | None:
    """The difference between a column of a file and its identity partition value; the file has type ``stored``."""
    fields = [(2, "n", kind)]
    schema = struct(ID, (9, "s", struct(*fields))) if nested else struct(ID, *fields)
    of_file = struct(ID, (9, "s", struct((2, "n", stored or kind)))) if nested else struct(ID, (2, "n", stored or kind))
    column = raw_column(raws, stored or kind)
    target = arrow_schema(of_file)
    if nested:
        column = pa.StructArray.from_arrays([column], fields=list(target.field(1).type))
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(raws)), pa.int64()), column], schema=target)
    projection = Projection(batch.schema, schema, {2: value}, None)
    return projection.column_unlike_partition(projection.apply(batch))


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        ("boolean", False, True),
        ("long", 2**40, 0),
        ("float", -0.0, 0.0),
        ("double", 1.5, math.nan),
        ("double", math.nan, 0.0),
        ("decimal(10, 2)", -12345, 12345),
        ("string", "ß", "ss"),
        ("date", -1, 0),
        ("timestamptz_ns", 10**8, 0),
        ("uuid", bytes(15) + b"\xff", bytes(16)),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_column_equals_its_partition_only_with_the_same_value_in_every_row(
    kind: str, value: Any, other: Any, nested: bool
) -> None:
    """(rule: leave-identity-only-with-equal-values)"""
    assert unlike(kind, [value, value], value, nested=nested) is None
    assert unlike(kind, [None, None], None, nested=nested) is None
    name = "s.n" if nested else "n"
    for raws, partition in (([value, other], value), ([value, None], value), ([None, None], value), ([value], None)):
        assert unlike(kind, raws, partition, nested=nested) == name


def test_a_promoted_column_equals_its_partition_and_a_missing_column_is_ignored() -> None:
    assert unlike("long", [5, 5], 5, stored="int") is None
    assert unlike("long", [5, 6], 5, stored="int") == "n"
    projection = Projection(OLD, struct(ID, (2, "n", "long")), {2: 5}, None)
    rows = projection.apply(pa.RecordBatch.from_pydict({"id": [7, 8]}, OLD))
    assert rows.column(1).to_pylist() == [5, 5]
    assert projection.column_unlike_partition(rows) is None


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
        ("date", "1969-12-31", -1, dt.date(1969, 12, 31)),
        ("time", "10:30:00.000001", 37_800_000_001, dt.time(10, 30, 0, 1)),
        ("timestamp", "1969-12-31T23:59:59.123456", -876_544, dt.datetime(1969, 12, 31, 23, 59, 59, 123456)),
        ("timestamptz", "1970-01-01T01:00:00+01:00", 0, dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        ("timestamp_ns", "1970-01-01T00:00:00.000000001", 1, 1),
        ("timestamptz_ns", "1970-01-01T00:00:00.1+00:00", 10**8, 10**8),
        ("uuid", "00000000-0000-0000-0000-0000000000ff", bytes(15) + b"\xff", bytes(15) + b"\xff"),
        ("fixed[2]", "00ff", b"\x00\xff", b"\x00\xff"),
        ("binary", "0102", b"\x01\x02", b"\x01\x02"),
    ],
)
def test_a_missing_column_has_its_initial_default(kind: str, default: Any, raw: Any, seen: Any) -> None:
    """This holds for every type, in the specification's JSON form, and for required columns."""
    assert raw_from_json(kind, default) == raw
    found = added((2, "n", kind, {"initial-default": default, "required": True}))
    found = found.storage if isinstance(found, pa.ExtensionArray) else found
    assert (found.view(pa.int64()) if kind.endswith("_ns") else found).to_pylist() == [seen, seen]


def test_a_partition_value_precedes_a_default_and_a_default_precedes_null() -> None:
    """A null partition value also has precedence (specification, "Column Projection")."""
    field = (2, "n", "int", {"initial-default": 5})
    assert added(field, {2: 9}).to_pylist() == [9, 9]
    assert added(field, {2: None}).to_pylist() == [None, None]
    assert added(field).to_pylist() == [5, 5]
    assert added((2, "n", "int")).to_pylist() == [None, None]
    assert added((2, "n", "int", {"initial-default": None})).to_pylist() == [None, None]


def test_an_absent_struct_can_be_written_although_its_fields_are_required(tmp_path: Path) -> None:
    inner = struct((4, "f", "fixed[3]"), (5, "u", "uuid"), (6, "n", "int"))
    many = {"type": "list", "element-id": 8, "element": "int", "element-required": True}
    fields = [{"id": 3, "name": "d", "type": inner}, {"id": 7, "name": "m", "type": many}]
    fields = [{**field, "required": True} for field in (*fields, {"id": 9, "name": "b", "type": "string"})]
    inner["fields"] = [{**field, "required": field["name"] != "n"} for field in inner["fields"]]
    column = added((2, "s", {"type": "struct", "fields": fields}))
    assert column.to_pylist() == [None, None]
    pq.write_table(pa.table({"s": column}), tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet")["s"].to_pylist() == [None, None]


def test_a_default_of_another_type_and_a_required_column_without_a_default_are_refused() -> None:
    wrong: list[tuple[str, Any]] = [("int", "1"), ("int", True), ("boolean", 1), ("date", "yesterday")]
    for kind, default in (*wrong, ("decimal(9,2)", "1.234"), ("string", 1)):
        with pytest.raises(TableUnsupported, match="is not a value of type"):
            added((2, "n", kind, {"initial-default": default}))
    with pytest.raises(TableUnsupported, match="lacks the required column n, which has no default"):
        added((2, "n", "int", {"required": True}))


def test_nested_columns_also_have_defaults_and_partition_values() -> None:
    """They apply if the struct is not null; a null struct remains null."""
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
def test_promotions_and_types_of_other_writers(old: pa.DataType, new: str, values: list[Any], seen: Any) -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, old)], schema=pa.schema([pa.field("v", old, metadata={b"PARQUET:field_id": b"1"})])
    )
    found = projected(batch, struct((1, "v", new))).column(0)
    assert (found.view(pa.int64()) if pa.types.is_temporal(found.type) else found).to_pylist() == [seen]


@pytest.mark.parametrize("kind", ["fixed_size_list", "large_list", "list_view"])
@pytest.mark.parametrize("element", ["int", "long"])
def test_every_kind_of_list_is_read(kind: str, element: str) -> None:
    """A Parquet file may contain its writer's Arrow schema; elements are promoted when read."""
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
    if kind == "list_view":  # Arrow's cast of list views loses elements
        with pytest.raises(TableUnsupported, match="column l is list_view"):
            projected(batch, new)
        return
    assert projected(batch, new).column(0).to_pylist() == values
    assert projected(batch.slice(1), new).column(0).to_pylist() == values[1:]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            (1, "s", struct((2, "g", "geometry(srid:1, spherical)"))),
            "column s.g is of type geometry(srid:1, spherical),",
        ),
        (
            (1, "l", {"type": "list", "element-id": 2, "element": "unknown", "element-required": False}),
            "column l.element is of type unknown,",
        ),
        ((1, "s", struct((2, "u", "unknown"))), "column s is of type struct with only unknown columns,"),
        ((1, "x", "int128"), "column x is of type int128,"),
    ],
    ids=str,
)
def test_unsupported_types_are_refused_by_name(field: tuple[Any, ...], message: str) -> None:
    """Unknown columns are in no file, and a reader of a file without them reads null (specification, "Parquet")."""
    with pytest.raises(TableUnsupported) as caught:
        stored_schema(struct(field))
    assert message in str(caught.value)
    assert "the table was left alone" in str(caught.value)
    schema = struct(ID, (2, "u", "unknown"), (3, "s", struct((4, "u", "unknown"), (5, "x", "int"))))
    assert stored_schema(schema) == struct(ID, (3, "s", struct((5, "x", "int"))))


@pytest.mark.parametrize("name", ["im_v3_default_value", "im_v3_all_types"])
def test_impalas_files_with_defaults_read_as_expected(name: str) -> None:
    """Data files by Impala from before columns with defaults were added."""
    folder = require_corpus() / "tables" / name
    document = json.loads((folder / expected(name)["metadata"]).read_text())
    (schema,) = (s for s in document["schemas"] if s["schema-id"] == document["current-schema-id"])
    found: list[dict[str, Any]] = []
    for path in sorted((folder / "data").glob("*.parquet")):
        batches = projected_rows(ReadableFile(str(path)), schema, Storage({}))
        found += [row for batch in batches for row in batch.to_pylist()]
    assert len(found) == sum(pq.read_metadata(path).num_rows for path in (folder / "data").glob("*.parquet"))
    assert digest(found) == (expected(name)["rows"], expected(name)["sha"])


def test_a_missing_key_column_is_not_replaced(tmp_path: Path) -> None:
    """Nothing may replace the key of an equality delete, not even a default."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"id": [1]}, schema=OLD), path)
    schema = struct(ID, (2, "s", struct((3, "n", "int", {"initial-default": 1})), {"initial-default": {}}))
    (batch,) = projected_rows(ReadableFile(str(path)), schema, Storage({}), must_hold=[1])
    assert batch.to_pylist() == [{"id": 1, "s": {"n": 1}}]
    with pytest.raises(FileUnreadable, match=r"f\.parquet cannot be read: a file lacks column\(s\) \[3\]"):
        list(projected_rows(ReadableFile(str(path)), schema, Storage({}), must_hold=[1, 3]))


# Columns of a file are matched with the table's by field id, or by name mapping, never by name alone
# (rule: columns-by-field-id).


def with_id(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(field_id).encode()})


PLACE = {
    "type": "struct",
    "fields": [
        {"id": 5, "name": "country", "required": False, "type": "string"},
        {"id": 4, "name": "city", "required": False, "type": "string"},
    ],
}
ROWS = [[1, 2], ["a", "b"], [{"c": "x", "d": "p"}, {"c": "y", "d": "q"}]]


def test_renamed_moved_and_reused_names_do_not_matter() -> None:
    """``id`` and ``name`` have exchanged places; ``old`` was dropped, and another column now has its name."""
    inside = pa.struct([with_id("c", pa.string(), 4), with_id("d", pa.string(), 5)])
    schema = pa.schema(
        [
            with_id("name", pa.int64(), 1),
            with_id("id", pa.string(), 2),
            with_id("place", inside, 3),
            with_id("old", pa.string(), 9),
        ]
    )
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip([*ROWS, ["u", "v"]], schema, strict=True)], schema=schema
    )
    table = struct((3, "where", PLACE), (2, "name", "string"), (1, "id", "long"), (10, "old", "string"))
    assert Projection(schema, table, {}, None).apply(batch).to_pylist() == [
        {"where": {"country": "p", "city": "x"}, "name": "a", "id": 1, "old": None},
        {"where": {"country": "q", "city": "y"}, "name": "b", "id": 2, "old": None},
    ]


def test_ambiguous_columns_are_refused() -> None:
    for columns, why in (
        ([("n", 1), ("n", 2)], "a file has several columns named n"),
        ([("n", 1), ("m", 1)], "two of a file's columns n, m have the same field id"),
    ):
        stored = pa.schema([with_id(name, pa.int64(), number) for name, number in columns])
        with pytest.raises(TableUnsupported, match=why):
            Projection(stored, struct(ID), {}, None)
    twice = pa.struct([with_id("n", pa.int64(), 1), with_id("n", pa.int64(), 2)])
    schema = pa.schema([with_id("s", twice, 3)])
    batch = pa.RecordBatch.from_arrays([pa.array([[("n", 7), ("n", 8)]], twice)], schema=schema)
    table = struct((3, "s", struct((1, "n", "long"))))
    assert projected(batch, table).column(0).field(0).to_pylist() == [7], "inside a struct by id"


MAPPING = [
    {"field-id": 1, "names": ["number", "id"]},
    {"field-id": 2, "names": ["name"]},
    {"field-id": 3, "names": ["place"], "fields": [{"field-id": 4, "names": ["c"]}, {"field-id": 5, "names": ["d"]}]},
]


def test_a_file_without_ids_is_read_by_the_name_mapping() -> None:
    """Any of several names matches, nested names match at their level; an unmapped column is ignored."""
    inside = pa.struct([("c", pa.string()), ("d", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("label", pa.string()), ("place", inside)])
    batch = pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(ROWS, schema, strict=True)], schema=schema)
    table = struct((1, "key", "long"), (2, "label", "string"), (3, "place", PLACE))
    assert Projection(schema, table, {}, MAPPING).apply(batch).to_pylist() == [
        {"key": 1, "label": None, "place": {"country": "p", "city": "x"}},
        {"key": 2, "label": None, "place": {"country": "q", "city": "y"}},
    ]


def read_task_of(mapping: str | None) -> ReadTask:
    """The task for a file of a table with this name mapping."""
    planned = candidate(data_file("f0", 1))
    properties = {} if mapping is None else {"schema.name-mapping.default": mapping}
    metadata = TableMetadata({**new_document("s3://b/t", 2), "properties": properties})
    return make_read_task(metadata, [planned], struct((1, "id", "long")), {})


def test_a_task_contains_the_name_mapping() -> None:
    mappings: list[tuple[str | None, Any]] = [(None, None), ("null", None), ("[]", []), (json.dumps(MAPPING), MAPPING)]
    assert [read_task_of(text).name_mapping for text, _ in mappings] == [mapping for _, mapping in mappings]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[{", "Expecting property name"),
        ("{}", "mapped fields are not a list"),
        ("false", "mapped fields are not a list"),
        ('[{"field-id": 1}]', "a mapped field has no list of names"),
        ("[[]]", "a mapped field has no list of names"),
        ('[{"field-id": 1, "names": "id"}]', "a mapped field has no list of names"),
        ('[{"field-id": "1", "names": ["id"]}]', r"the field id of \['id'\] is not a number"),
        ('[{"field-id": 1, "names": ["id"], "fields": [{"names": [2]}]}]', "a mapped field has no list of names"),
    ],
)
def test_a_malformed_name_mapping_stops_the_read(text: str, why: str) -> None:
    """Read as a mapping without names, it would replace every column by nulls."""
    with pytest.raises(StorageError, match=f"^the table property .* is malformed; correct or remove it: {why}"):
        read_task_of(text)


def test_ids_of_a_file_precede_the_name_mapping() -> None:
    schema = pa.schema([with_id("name", pa.int64(), 1)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int64())], schema=schema)
    table = struct((1, "id", "long"), (2, "name", "string"))
    found = Projection(schema, table, {}, MAPPING).apply(batch)
    assert found.to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": None}]


NESTED = struct((4, "a", "long"))
BY_POSITION = struct((1, "id", "long"), (2, "name", "string"), (3, "s", NESTED), (5, "more", "int"))["fields"]


@pytest.mark.parametrize(
    "columns",
    [
        [("id", pa.int64()), ("name", pa.string())],
        [("id", pa.int32()), ("name", pa.large_string())],
        [("id", pa.int64())],
    ],
    ids=["same", "promoted", "fewer"],
)
@pytest.mark.parametrize("wanted", [(1, "id", "long"), (2, "name", "string")], ids=["id", "name"])
def test_a_file_without_ids_is_read_by_position(
    columns: list[tuple[str, pa.DataType]], wanted: tuple[Any, ...]
) -> None:
    """This holds if its columns equal the schema, as in Iceberg-Java, also if only some columns are read."""
    rows = pa.RecordBatch.from_pylist([{"id": 7, "name": "x"}], schema=pa.schema(columns))
    found = Projection(rows.schema, struct(wanted), {}, None, (), BY_POSITION).apply(rows)
    value = {"id": 7, "name": "x" if len(columns) == 2 else None}[wanted[1]]
    assert found.to_pylist() == [{wanted[1]: value}]


@pytest.mark.parametrize(
    "columns",
    [
        [("name", pa.string()), ("id", pa.int64())],
        [("id", pa.int64()), ("renamed", pa.string())],
        [("id", pa.string()), ("name", pa.string())],
        [("id", pa.int64()), ("name", pa.string()), ("s", pa.struct([("a", pa.int64())]))],
        [("id", pa.int64()), ("name", pa.string()), ("s", pa.int64())],
        [("id", pa.int64()), ("name", pa.string()), ("s", pa.int64()), ("dropped", pa.int64())],
    ],
    ids=["another order", "another name", "another type", "nested", "no struct", "dropped since"],
)
def test_a_file_whose_positions_do_not_match_is_left_alone(columns: list[tuple[str, pa.DataType]]) -> None:
    """Iceberg-Java takes the values of any column at that position, and null for nested columns
    (rule: columns-by-field-id)."""
    with pytest.raises(TableUnsupported, match=r"no field ids, the table has no schema\.name-mapping\.default"):
        Projection(pa.schema(columns), struct((1, "id", "long")), {}, None, (), BY_POSITION)


def test_positions_count_only_in_data_files_and_without_a_name_mapping() -> None:
    """A delete file contains only the key columns, so their positions are not those of the schema."""
    with pytest.raises(TableUnsupported, match="no field ids"):
        Projection(pa.schema([("id", pa.int64())]), struct((1, "id", "long")), {}, None)
    rows = pa.RecordBatch.from_pylist([{"id": 7}])
    swapped = [{"field-id": 2, "names": ["id"]}]
    projection = Projection(rows.schema, struct((1, "id", "long"), (2, "b", "long")), {}, swapped, (), BY_POSITION)
    assert projection.apply(rows).to_pylist() == [{"id": None, "b": 7}]


# A column of another type than the table's is read only if its values are the same in the table's type
# (rule: read-faithfully-or-not-at-all).

OTHER_VALUES = [
    (pa.bool_(), True, "long"),
    (pa.int32(), 1, "boolean"),
    (pa.string(), "1", "long"),
    (pa.int64(), 1, "string"),
    (pa.float64(), 0.1, "float"),
    (pa.int32(), 1, "double"),
    (pa.float64(), 1.0, "long"),
    (pa.float64(), 0.1, "decimal(9, 2)"),
    (pa.int32(), 1, "decimal(9, 2)"),
    (pa.decimal128(9, 2), Decimal("1.00"), "double"),
    (pa.timestamp("us"), datetime(2024, 2, 29, 1), "time"),
    (pa.timestamp("us"), datetime(2024, 2, 29), "date"),
    (pa.time64("us"), time(1), "timestamp"),
    (pa.dictionary(pa.int8(), pa.string()), "1", "long"),
]
SAME_VALUES = [
    (pa.null(), None, "long"),
    (pa.date32(), date(1970, 1, 2), "timestamp"),
    (pa.int64(), 86_400_000_000, "timestamp"),
    (pa.binary(), b"a", "string"),
    (pa.string_view(), "a", "binary"),
    (pa.float16(), 0.5, "float"),
    (pa.decimal32(9, 2), Decimal("-1.00"), "decimal(9, 2)"),
    (pa.dictionary(pa.int8(), pa.large_string()), "a", "string"),
]


def projection(source: pa.DataType, kind: str) -> Projection:
    field = pa.field("c", source, metadata={b"PARQUET:field_id": b"1"})
    fields = [{"id": 1, "name": "c", "required": False, "type": kind}]
    return Projection(pa.schema([field]), {"type": "struct", "fields": fields}, {}, None)


@pytest.mark.parametrize(("source", "value", "kind"), OTHER_VALUES, ids=str)
def test_a_type_that_arrow_would_cast_to_another_value_is_refused(source: pa.DataType, value: Any, kind: str) -> None:
    assert pa.scalar(value, source).is_valid
    with pytest.raises(TableUnsupported, match=r"column c is .* in a file, which cannot be read as"):
        projection(source, kind)


@pytest.mark.parametrize(("source", "value", "kind"), SAME_VALUES, ids=str)
def test_a_type_with_the_same_values_is_read(source: pa.DataType, value: Any, kind: str) -> None:
    column = pa.array([value], source) if not pa.types.is_dictionary(source) else pa.array([value]).cast(source)
    (read,) = projection(source, kind).apply(pa.record_batch([column], ["c"])).columns
    assert read.is_valid().to_pylist() == [value is not None]


def test_a_key_of_another_type_deletes_no_row(tmp_path: Path) -> None:
    """``true`` is not 1: Iceberg-Java deletes no row, and neither do we."""
    with maintained_table(tmp_path) as table:
        table.create(properties={"format-version": "2"})
        table.fill(2)
        field = pa.field("id", pa.bool_(), metadata={b"PARQUET:field_id": b"1"})
        key = pa.table([pa.array([True])], schema=pa.schema([field]))
        commit_deletes(table, [(key, {"content": FileContent.EQUALITY_DELETES, "equality_ids": (1,), "partition": ()})])
        before = table.live_files()
        outcome = compacted(table)
        assert outcome.status is Status.SKIPPED
        assert "column id is bool in a file, which cannot be read as int64" in str(outcome.reason)
        assert table.live_files() == before
