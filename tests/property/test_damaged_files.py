"""Damaged files of every kind end in one sentence that names the file, and in bounded time."""

from __future__ import annotations

import io
import json
import struct
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from icekeeper.errors import MaintenanceError, MetadataUnreadable, TableUnsupported
from icekeeper.metadata.avro_files import read_avro
from icekeeper.metadata.puffin import decode_deletion_vector, encode_deletion_vector
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.storage import Storage
from support.damaged_json import damaged
from support.examples import examples
from support.rewrites import struct as iceberg_struct

SOON = timedelta(seconds=2)
WRITTEN: dict[str, Any] = {
    "type": "record",
    "name": "table",
    "fields": [
        {"name": "id", "type": "long", "field-id": 1},
        {
            "name": "cost",
            "type": [
                "null",
                {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
            ],
            "field-id": 2,
        },
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"], "element-id": 4}, "field-id": 3},
        {
            "name": "by_number",
            "type": {
                "type": "array",
                "logicalType": "map",
                "items": {
                    "type": "record",
                    "name": "k6_v7",
                    "fields": [
                        {"name": "key", "type": "int", "field-id": 6},
                        {"name": "value", "type": ["null", "bytes"], "field-id": 7},
                    ],
                },
            },
            "field-id": 5,
        },
        {"name": "by_name", "type": {"type": "map", "values": "double", "key-id": 9, "value-id": 10}, "field-id": 8},
    ],
}
WANTED = iceberg_struct(
    (1, "id", "long"),
    (2, "cost", "decimal(9,2)"),
    (3, "tags", {"type": "list", "element-id": 4, "element": "string", "element-required": False}),
)
ROWS = [
    {"id": n, "cost": b"\0\0\0\1", "tags": ["a", None], "by_number": [{"key": n, "value": b"x"}], "by_name": {"k": 1.5}}
    for n in range(20)
]


def avro_file() -> bytes:
    plain = json.loads(json.dumps(WRITTEN).replace('"logicalType": "decimal", "precision": 9, "scale": 2', '"x": 1'))
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(plain), ROWS, codec="null")
    return sink.getvalue()


def with_schema(data: bytes, schema: Any) -> bytes:
    """The file with another text in its header, as Avro frames it."""
    text = json.dumps(schema).encode()
    head = io.BytesIO()
    fastavro.schemaless_writer(head, {"type": "map", "values": "bytes"}, {"avro.schema": text, "avro.codec": b"null"})
    marker = data[-16:]
    return b"Obj\x01" + head.getvalue() + marker + data[data.index(marker) + 16 :]


def read_rows(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    told = str(path)
    try:
        for _ in projected_rows(ReadableFile(str(path), "AVRO"), WANTED, Storage({})):
            pass
    except TableUnsupported:
        pass  # a sound file of another type, for all that can be told
    except MaintenanceError as error:
        told = str(error)
    assert str(path) in told
    assert "\n" not in told


@settings(max_examples=examples(60), deadline=SOON, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged(WRITTEN))
def test_an_avro_file_with_a_damaged_schema(tmp_path: Path, schema: Any) -> None:
    read_rows(tmp_path / "a.avro", with_schema(avro_file(), schema))


@settings(max_examples=examples(60), deadline=SOON, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(0, 255), st.integers(0, 255))
def test_an_avro_file_with_damaged_bytes(tmp_path: Path, place: int, value: int, after: int) -> None:
    data = bytearray(with_schema(avro_file(), WRITTEN))
    data[place % len(data)] = value
    data[(place + 1) % len(data)] = after
    read_rows(tmp_path / "a.avro", bytes(data))


def long(number: int) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, "long", number)
    return sink.getvalue()


@settings(deadline=SOON)
@given(
    st.sampled_from(["null", {"type": "fixed", "name": "f", "size": 0}, {"type": "fixed", "name": "f", "size": 9}])
    | st.sampled_from(["long", "float", "string", {"type": "map", "values": "null"}]),
    st.integers(2**20, 2**62),
    st.booleans(),
    st.booleans(),
)
def test_a_number_of_items_that_cannot_be_is_not_counted_to(items: Any, count: int, sized: bool, is_map: bool) -> None:
    """In a manifest; the number of records of a block likewise."""
    of = {"type": "map", "values": items} if is_map else {"type": "array", "items": items}
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": of}]}
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(schema), [{"x": {} if is_map else []}], codec="null")
    data = sink.getvalue()
    marker = data[-16:]
    head = data[: data.index(marker) + 16]
    claim = long(-count) + long(8) if sized else long(count)
    for records, body in ((1, claim + b"\0\0"), (count, b"\0\0\0")):
        broken = head + long(records) + long(len(body)) + body + marker
        with pytest.raises(MetadataUnreadable, match=r"^s3://b/m\.avro is damaged or truncated: ValueError: \d+ items"):
            list(read_avro(broken, "s3://b/m.avro")[2])


VECTORS = [BitMap64(), BitMap64(range(5)), BitMap64([1, 5, 70_000, 1 << 33]), BitMap64(range(0, 20_000, 2))]


@settings(max_examples=examples(60), deadline=SOON)
@given(st.sampled_from(VECTORS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3), st.data())
def test_a_vector_with_the_right_checksum_of_a_damaged_bitmap(
    vector: BitMap64, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    body = bytearray(encode_deletion_vector(vector)[4:-4])
    for place, value in changes:
        if place % len(body) >= 4:
            body[place % len(body)] = value
    body = body[: data.draw(st.just(len(body)) | st.integers(4, len(body)))]
    blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    told = "the deletion vector in s3://b/d.puffin is damaged: "
    try:
        positions = list(decode_deletion_vector(blob, "s3://b/d.puffin", len(vector)).to_array())
    except MetadataUnreadable as error:
        told, positions = str(error), list(vector)
    assert told.startswith("the deletion vector in s3://b/d.puffin is damaged: ")
    assert positions == sorted(set(positions))
    assert len(positions) == len(vector)
