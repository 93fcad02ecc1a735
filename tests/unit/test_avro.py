"""Avro container files, and their rows as Arrow batches."""

from __future__ import annotations

import datetime
import decimal
import io
import os
import uuid
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from icekeeper.errors import MetadataUnreadable, TableUnsupported
from icekeeper.metadata.avro_files import open_avro
from icekeeper.rows import avro_rows
from icekeeper.rows.file_rows import open_rows
from support.hostile.avro import avro_file, avro_long, avro_text, records_of

# Container files of any writer are split into blocks as by fastavro, and refused if damaged.

SCHEMA: dict[str, Any] = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}


def written(codec: str, records: int = 300) -> bytes:
    sink = io.BytesIO()
    values = [{"n": number * 2**40} for number in range(records)]
    fastavro.writer(sink, SCHEMA, values, codec=codec, metadata={"spec-id": "0", "é": "ü"}, sync_interval=400)
    return sink.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_blocks_and_header_equal_those_of_fastavro(codec: str) -> None:
    data = written(codec)
    container = open_avro(data, "a.avro")
    known: Any = fastavro.block_reader(io.BytesIO(data))
    assert dict(container.header) == dict(known.metadata)
    blocks = [(block.num_records, block.bytes_.getvalue()) for block in known]
    assert len(blocks) > 3
    assert [*container.unpacked_blocks()] == blocks


def test_a_header_in_several_blocks_with_their_sizes_is_read() -> None:
    """Avro allows a negative count, which the size in bytes follows."""
    plain = written("null", 0)
    container = open_avro(plain, "a.avro")
    pairs = b"".join(avro_text(key) + avro_text(value) for key, value in container.header.items())
    sync = plain[container.blocks_at - 16 : container.blocks_at]
    count = len(container.header)
    data = b"Obj\x01" + avro_long(-count) + avro_long(len(pairs)) + pairs
    data += avro_long(1) + avro_text("more") + avro_text("text") + b"\0" + sync
    assert dict(open_avro(data, "a.avro").header) == {**container.header, "more": "text"}


def test_a_file_that_is_truncated_within_a_block_is_refused() -> None:
    data = written("deflate", 120)
    container = open_avro(data, "a.avro")
    ends, at = {container.blocks_at}, container.blocks_at
    marker = data[at - 16 : at]
    while (at := data.find(marker, at)) > 0:
        at += 16
        ends.add(at)
    for length in range(len(data)):
        if length in ends:
            continue
        with pytest.raises(MetadataUnreadable, match=r"m\.avro"):
            records_of(data[:length], "m.avro")


@pytest.mark.parametrize("change", [{"name": {}}, {"name": 7}, {"field-id": ""}, {"field-id": "x"}], ids=str)
def test_a_schema_with_an_invalid_field_is_refused(change: dict[str, Any]) -> None:
    schema = {"type": "record", "name": "t", "fields": [{"name": "x", "type": "long", "field-id": 1, **change}]}
    with pytest.raises(MetadataUnreadable, match=r"^m\.avro is not a readable Avro file: ValueError: "):
        open_avro(avro_file(schema, []), "m.avro")


def test_the_error_of_an_unknown_codec_is_a_single_line() -> None:
    data = avro_file({"type": "record", "name": "t", "fields": []}, [(1, b"")], "a\nb")
    with pytest.raises(MetadataUnreadable, match=r"its codec 'a\\nb' is unknown"):
        records_of(data, "m.avro")


def test_a_block_without_the_sync_marker_at_its_end_is_refused() -> None:
    data = written("deflate")
    with pytest.raises(MetadataUnreadable, match="does not end with the file's marker"):
        records_of(data[:-16] + os.urandom(16), "m.avro")


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_records_are_counted_without_decompressing_a_block(codec: str) -> None:
    data = written(codec)
    found = open_avro(data, "a.avro")
    assert found.count(is_whole=True) == 300
    assert open_avro(written(codec, 0), "a.avro").count(is_whole=True) == 0
    blocks = [count for count, _ in found.unpacked_blocks()]
    counts = [open_avro(data[:length], "a.avro").count(is_whole=False) for length in range(found.blocks_at, len(data))]
    assert counts == sorted(counts), "more bytes show more records"
    assert {*counts} <= {sum(blocks[:number]) for number in range(len(blocks) + 1)}
    assert counts[-1] == 300
    with pytest.raises(MetadataUnreadable, match="does not end with the file's marker"):
        open_avro(data[:-1], "a.avro").count(is_whole=True)
    schema = {"type": "record", "name": "t", "fields": []}
    with pytest.raises(MetadataUnreadable, match="a block of 1 bytes claims 2000 records"):
        open_avro(avro_file(schema, [(2000, b"x")]), "a.avro").count(is_whole=True)


# Avro files as Arrow batches: every type of Iceberg's mapping, field ids, codecs, projection, damage.

PRICE = {"type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
POINT = {
    "type": "record",
    "name": "r15",
    "fields": [
        {"name": "x", "type": "float", "field-id": 16},
        {"name": "cost", "type": ["null", "decimal_9_2"], "field-id": 17},
    ],
}
PAIR = {
    "type": "record",
    "name": "k21_v22",
    "fields": [
        {"name": "key", "type": "int", "field-id": 21},
        {"name": "value", "type": ["null", "r15"], "field-id": 22},
    ],
}
COLUMNS: dict[int, tuple[str, Any]] = {
    1: ("id", "long"),
    2: ("price", ["null", PRICE]),
    3: ("cost", "decimal_9_2"),
    4: ("day", ["null", {"type": "int", "logicalType": "date"}]),
    5: ("clock", {"type": "long", "logicalType": "time-micros"}),
    6: ("zoned", {**MICROS, "adjust-to-utc": True}),
    7: ("local", {**MICROS, "adjust-to-utc": False}),
    8: ("nanos", {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False}),
    9: ("key", {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}),
    10: ("name_key", {"type": "string", "logicalType": "uuid"}),
    11: ("raw", "bytes"),
    12: ("huge", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}),
    13: ("nothing", "null"),
    14: ("kind", {"type": "enum", "name": "kind", "symbols": ["A", "B"]}),
    15: ("point", ["null", POINT]),
    18: ("prices", {"type": "array", "items": ["null", "decimal_9_2"], "element-id": 19}),
    20: ("by_number", {"type": "array", "logicalType": "map", "items": PAIR}),
    23: ("by_name", {"type": "map", "values": "decimal_9_2", "key-id": 24, "value-id": 25}),
    26: ("flag", "boolean"),
    27: ("ratio", "double"),
}
ROWS_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "table",
    "namespace": "of.some",
    "fields": [{"name": name, "type": kind, "field-id": number} for number, (name, kind) in COLUMNS.items()],
}


def row(number: int) -> dict[str, Any]:
    odd = number % 2 == 1
    cost = decimal.Decimal(number).scaleb(-2)
    moment = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.UTC)
    point = None if odd else {"x": 1.5, "cost": None if number % 4 else cost}
    return {
        "id": number,
        "price": None if odd else -cost,
        "cost": cost,
        "day": None if odd else datetime.date(1969, 12, 31),
        "clock": datetime.time(23, 59, 59, 999_999),
        "zoned": moment,
        "local": moment,
        "nanos": 1,
        "key": uuid.UUID(int=number).bytes,
        "name_key": str(uuid.UUID(int=number)),
        "raw": b"\xff",
        "huge": decimal.Decimal(10**37 + number).scaleb(-10, decimal.Context(prec=60)),
        "nothing": None,
        "kind": "B",
        "point": point,
        "prices": [None, cost],
        "by_number": [{"key": 1, "value": point}],
        "by_name": {"k": cost},
        "flag": odd,
        "ratio": -0.0,
    }


def seen(number: int) -> dict[str, Any]:
    """The row as Arrow returns it."""
    given = row(number)
    return given | {
        "local": given["local"].replace(tzinfo=None),
        "nanos": 1,
        "name_key": given["key"],
        "by_number": [(1, given["point"])],
        "by_name": [("k", given["cost"])],
    }


def avro(count: int, *, schema: Any = ROWS_SCHEMA, codec: str = "null") -> bytes:
    sink = io.BytesIO()
    made = [row(number) for number in range(count)]
    fastavro.writer(sink, fastavro.parse_schema(schema), made, codec=codec, sync_interval=2000)
    return sink.getvalue()


def read(data: bytes, names: list[str] | None = None) -> list[dict[str, Any]]:
    schema, batches = open_rows(pa.BufferReader(data), "avro")
    found = batches(schema.names if names is None else names)
    plain = [b.set_column(b.schema.get_field_index("nanos"), "nanos", b["nanos"].view(pa.int64())) for b in found]
    return [row for batch in plain for row in batch.to_pylist()]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_every_type_is_read(codec: str) -> None:
    assert read(avro(50, codec=codec)) == [seen(number) for number in range(50)]


def test_every_column_has_its_field_id() -> None:
    schema = open_rows(pa.BufferReader(avro(1)), "AVRO")[0]

    def ids(field: pa.Field) -> list[int]:
        own = [int((field.metadata or {})[b"PARQUET:field_id"])]
        kind = field.type
        if pa.types.is_struct(kind):
            return own + [i for n in range(kind.num_fields) for i in ids(kind.field(n))]
        if pa.types.is_map(kind):
            return own + ids(kind.key_field) + ids(kind.item_field)
        return own + ids(kind.value_field) if pa.types.is_list(kind) else own

    # Two fields use the record r15, so its ids occur twice.
    assert [i for field in schema for i in ids(field)] == [*range(1, 23), 16, 17, *range(23, 28)]
    assert schema.field("zoned").type == pa.timestamp("us", "UTC")
    assert schema.field("local").type == pa.timestamp("us")
    assert schema.field("nanos").type == pa.timestamp("ns")


@pytest.mark.parametrize("names", [["nanos", "by_number"], ["nanos", "prices", "id"], ["nanos", "cost"]], ids=str)
def test_selected_columns_are_read_without_the_others(names: list[str]) -> None:
    """This includes columns whose type is defined in a column that is not selected."""
    expected = [{name: seen(number)[name] for name, _ in COLUMNS.values() if name in names} for number in range(5)]
    assert read(avro(5), names) == expected


def test_rows_are_counted_without_any_selected_column() -> None:
    _, batches = open_rows(pa.BufferReader(avro(50, codec="deflate")), "AVRO")
    assert sum(batch.num_rows for batch in batches([])) == 50


class CountedReads(io.BytesIO):
    """A stream of an object store, where each read is a request."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        return super().read(size)


def test_a_file_is_read_in_few_requests() -> None:
    """The reader buffers: lengths and counts are only a byte or two, and each request reads up to a mebibyte."""
    source = CountedReads(avro(5_000))
    _, batches = open_rows(pa.PythonFile(source, mode="r"), "AVRO")
    assert sum(batch.num_rows for batch in batches(["id"])) == 5_000
    size = len(source.getvalue())
    assert size < source.reads * 1024 * 1024 <= size + 3 * 1024 * 1024


def test_batches_are_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = avro(50)
    monkeypatch.setattr(avro_rows, "_BATCH_ROWS", 7)
    _, batches = open_rows(pa.BufferReader(data), "AVRO")
    assert [batch.num_rows for batch in batches(["id"])] == [7] * 7 + [1]
    monkeypatch.setattr(avro_rows, "_BATCH_ROWS", 1000)
    monkeypatch.setattr(avro_rows, "_BATCH_BYTES", len(data) // 5)
    _, batches = open_rows(pa.BufferReader(data), "AVRO")
    counts = [batch.num_rows for batch in batches(["id"])]
    assert sum(counts) == 50
    assert 2 < len(counts) < 10  # a batch may end within a block


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_codecs_of_arrow_are_read(codec: str) -> None:
    """The test writes the blocks itself, because fastavro needs further packages for these codecs."""
    opened = open_avro(avro(3), "a.avro")
    arrow = pa.Codec("snappy" if codec == "snappy" else "zstd")
    end = bytes(4) if codec == "snappy" else b""  # the checksum
    blocks = [(count, arrow.compress(data, asbytes=True) + end) for count, data in opened.unpacked_blocks()]
    assert read(avro_file(opened.header["avro.schema"], blocks, codec)) == [seen(number) for number in range(3)]


def test_damage_anywhere_is_an_error() -> None:
    """A file truncated within a block, or with a changed byte in its frame, never yields wrong or fewer rows."""
    data = avro(50, codec="deflate")
    for end in (0, 3, 100, len(data) - 1, len(data) - 17, len(data) - 40):
        with pytest.raises(pa.ArrowInvalid):
            read(data[:end])
    broken = bytearray(data)
    broken[-1] ^= 1
    with pytest.raises(pa.ArrowInvalid, match="sync marker"):
        read(bytes(broken))
    with pytest.raises(pa.ArrowInvalid, match="not an Avro file"):
        read(b"PAR1" + data)


@pytest.mark.parametrize(
    "kind", [["null", "int", "string"], {"type": "array", "items": ["int", "string"], "element-id": 2}], ids=str
)
def test_unions_of_several_types_are_refused(kind: Any) -> None:
    sink = io.BytesIO()
    schema = {"type": "record", "name": "t", "fields": [{"name": "v", "type": kind, "field-id": 1}]}
    fastavro.writer(sink, fastavro.parse_schema(schema), [])
    with pytest.raises(TableUnsupported, match="union of several types"):
        open_rows(pa.BufferReader(sink.getvalue()), "AVRO")
