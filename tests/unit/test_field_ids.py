"""Which column of a file is which of the table: by field id, or by name mapping, never by name alone (rule 20)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.errors import StorageError, TableUnsupported
from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.rows.project import Projection
from icekeeper.rows.read_task import make_read_task
from support.plans import data_file, live_file
from support.rewrites import struct
from support.tables import new_document


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
    """``id`` and ``name`` have changed places; ``old`` was dropped, and another column has its name now."""
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


MAPPING = [
    {"field-id": 1, "names": ["number", "id"]},
    {"field-id": 2, "names": ["name"]},
    {"field-id": 3, "names": ["place"], "fields": [{"field-id": 4, "names": ["c"]}, {"field-id": 5, "names": ["d"]}]},
]


def test_a_file_without_ids_is_read_by_the_name_mapping() -> None:
    """Any of several names, nested ones by their own place; what the mapping does not know is no column."""
    inside = pa.struct([("c", pa.string()), ("d", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("label", pa.string()), ("place", inside)])
    batch = pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(ROWS, schema, strict=True)], schema=schema)
    table = struct((1, "key", "long"), (2, "label", "string"), (3, "place", PLACE))
    assert Projection(schema, table, {}, MAPPING).apply(batch).to_pylist() == [
        {"key": 1, "label": None, "place": {"country": "p", "city": "x"}},
        {"key": 2, "label": None, "place": {"country": "q", "city": "y"}},
    ]


def test_the_name_mapping_is_parsed_once_and_one_that_is_no_json_stops_the_read() -> None:
    """The task carries the mapping itself; where it is damaged, no file of the table can be read."""
    file = live_file(data_file("f0", 1))
    planned = Candidate(file.entry.file, 0, 1, "m", file.entry.identity)
    schema = struct((1, "id", "long"))
    for text, found in ((None, None), ("null", None), (json.dumps(MAPPING), MAPPING)):
        properties = {} if text is None else {"schema.name-mapping.default": text}
        metadata = TableMetadata({**new_document("s3://b/t", 2), "properties": properties})
        assert make_read_task(metadata, [planned], schema, {}).name_mapping == found
    damaged = TableMetadata({**new_document("s3://b/t", 2), "properties": {"schema.name-mapping.default": "[{"}})
    with pytest.raises(StorageError, match="file f0 cannot be read: Expecting"):
        make_read_task(damaged, [planned], schema, {})


def test_ids_of_a_file_go_before_the_name_mapping() -> None:
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
    """Where its columns are those of the schema, as Iceberg-Java reads it; also if not all of them are wanted."""
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
def test_a_file_whose_positions_tell_nothing_is_left_alone(columns: list[tuple[str, pa.DataType]]) -> None:
    """Iceberg-Java takes values of any column that lies there, and null for nested ones (rule 218)."""
    with pytest.raises(TableUnsupported, match=r"no field ids, the table no schema\.name-mapping\.default"):
        Projection(pa.schema(columns), struct((1, "id", "long")), {}, None, (), BY_POSITION)


def test_a_delete_file_without_ids_is_not_read_by_position() -> None:
    """Its columns are the keys alone: their positions are none of the schema's."""
    with pytest.raises(TableUnsupported, match="no field ids"):
        Projection(pa.schema([("id", pa.int64())]), struct((1, "id", "long")), {}, None)


def test_only_without_a_name_mapping_positions_count() -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 7}])
    swapped = [{"field-id": 2, "names": ["id"]}]
    found = Projection(rows.schema, struct((1, "id", "long"), (2, "b", "long")), {}, swapped, (), BY_POSITION).apply(
        rows
    )
    assert found.to_pylist() == [{"id": None, "b": 7}]
