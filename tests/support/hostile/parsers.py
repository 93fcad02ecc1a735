"""Hostile input of every parser: metadata, rows, settings; and the readers of formats that are not fuzzed."""

from __future__ import annotations

import io
import json
import sqlite3
import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from support.hostile.avro import (
    NULLS,
    avro_bombs,
    avro_file,
    avro_long,
    avro_text,
    deflated,
    encoded,
    gzipped,
    nested_types,
    unsigned,
    zstandard,
)

Cases: TypeAlias = Mapping[str, Callable[[], bytes]]

# Metadata files, manifest lists, manifests and Puffin files.

DOCUMENT = {
    "format-version": 2,
    "location": "s3://b/t",
    "table-uuid": "u",
    "schemas": [{"schema-id": 0, "type": "struct", "fields": []}],
    "current-schema-id": 0,
}
DOCUMENT_TEXT = json.dumps(DOCUMENT).encode()


def with_field(value: bytes, key: bytes = b"x") -> bytes:
    """A metadata document with a further field."""
    return DOCUMENT_TEXT[:-1] + b',"' + key + b'":' + value + b"}"


def packed_field(begin: bytes, piece: bytes, size: int, end: bytes) -> bytes:
    return gzipped(DOCUMENT_TEXT[:-1] + b',"x":' + begin, piece, size, end + b"}")


def metadata_json(_: Path) -> Any:
    """With a reader of its own: that of ``targets`` writes the document again, for which its largest has no memory."""
    from icekeeper.metadata.document_files import parse_document

    surrogate = b'"\\ud800"'
    return lambda data: parse_document(data, "s3://b/m.json"), {
        "2 GB of gzip": lambda: packed_field(b'"', b"a", 2**31, b'"'),
        "60 MB of empty lists": lambda: packed_field(b"[", b"[],", 60 * 2**20, b"0]"),
        "60 MB of empty objects": lambda: packed_field(b"[", b"{},", 60 * 2**20, b"0]"),
        "60 MB of one wide character": lambda: packed_field(b'"', b"a", 55 * 2**20, "😀".encode() + b'"'),
        "60 MB of small numbers": lambda: packed_field(b"[", b"9999,", 60 * 2**20, b"0]"),
        "100,000 members of gzip": lambda: gzipped(b" ") * 100_000,
        "bad gzip": lambda: b"\x1f\x8b" + b"x" * 99,
        "gzip with other bytes within": lambda: gzipped(DOCUMENT_TEXT)[:14] + b"\xff" * 30,
        "cut gzip": lambda: gzipped(DOCUMENT_TEXT)[:-12],
        "100,000 lists in each other": lambda: with_field(b"[" * 100_000 + b"]" * 100_000),
        "900 lists in each other": lambda: with_field(b"[" * 900 + b"]" * 900),
        "100,000 objects in each other": lambda: with_field(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "100,000 types in each other": lambda: with_field(
            b'[{"type":"struct","fields":' * 100_000 + b"[]" + b"}]" * 100_000, b"schemas"
        ),
        "a lone surrogate in the location": lambda: with_field(surrogate, b"location"),
        "a lone surrogate elsewhere": lambda: with_field(surrogate),
        "NaN": lambda: with_field(b"NaN"),
        "Infinity": lambda: with_field(b"-Infinity", b"last-updated-ms"),
        "a number of 2,000,000 digits": lambda: with_field(b"9" * 2_000_000, b"last-updated-ms"),
        "a number of 4,300 digits": lambda: with_field(b"9" * 4300, b"last-updated-ms"),
        "UTF-16": lambda: DOCUMENT_TEXT.decode().encode("utf-16"),
        "bytes that are no UTF-8": lambda: with_field(b'"\xff"'),
        "nothing": lambda: b"",
        "nul": lambda: b"\0" * 99,
        "a list": lambda: b"[]",
        "two documents": lambda: DOCUMENT_TEXT * 2,
        "a key that stands twice": lambda: with_field(b"3", b"format-version"),
    }


MANIFEST = "s3://b/m.avro"


def manifest_list() -> Cases:
    from icekeeper.metadata.avro_schemas import manifest_list_schema

    schema = manifest_list_schema(2)
    numbers = {f["name"]: 0 for f in schema["fields"]} | {"partitions": None, "key_metadata": None}
    record = encoded(schema, {**numbers, "manifest_path": MANIFEST})
    lean = {**schema, "fields": [f for f in schema["fields"] if f["field-id"] in (500, 501, 502, 507)]}
    short = avro_text("m") + b"\0\0"
    summaries = avro_long(2_000_000) + b"\0\0\0\0" * 2_000_000 + b"\0"
    path_of_number = json.dumps(schema).replace('"string"', '"long"')
    # Manifests, which the same reader unpacks, try all of its bombs.
    bombs = {case: data for case, data in avro_bombs(schema, record).items() if " GB of " not in case}
    return {
        **bombs,
        "15,000,000 lines": lambda: avro_file(
            {**lean, "fields": lean["fields"][:3]}, [(15_000_000, deflated(b"", short, 60 * 2**20))], "deflate"
        ),
        "partitions without end": lambda: avro_file(lean, [(6, deflated((short + b"\2" + summaries) * 6))], "deflate"),
        "a path that is a number": lambda: avro_file(path_of_number, [(1, b"\0" * 99)]),
        "a field id that is none": lambda: avro_file(json.dumps(schema).replace(": 500", ': "x"'), [(1, record)]),
    }


def manifest() -> Cases:
    from icekeeper.metadata.avro_schemas import manifest_schema

    schema = manifest_schema(2, [{"schema-id": 0, "fields": []}], {"spec-id": 0, "fields": []})
    text = json.dumps(schema)
    file = {"content": 0, "file_path": "s3://b/f", "file_format": "PARQUET", "partition": {}, "record_count": 1}
    entry = {"status": 1, "data_file": {**file, "file_size_in_bytes": 1}}
    record = encoded(schema, entry)
    return {
        **avro_bombs(schema, record),
        "partitions that double": lambda: avro_file(
            text.replace('"fields": []', f'"fields": [{{"name": "p", "type": {json.dumps(nested_types(60))}}}]'),
            [(1, record)],
        ),
        "a path that is a number": lambda: avro_file(text.replace('"string"', '"long"'), [(1, record)]),
        "a path that is null": lambda: avro_file(
            text.replace('"name": "file_path", "type": "string"', '"name": "file_path", "type": ["null", "string"]'),
            [(1, b"\2\0\0\0\0\0" + bytes(99))],
        ),
        "equality ids that are nulls": lambda: avro_file(
            text.replace('{"type": "array", "items": "int", "element-id": 136}', json.dumps(NULLS)), [(1, record)]
        ),
        "1,000 fields of many layouts": lambda: many_layouts(schema, record),
    }


def many_layouts(schema: Mapping[str, Any], record: bytes) -> bytes:
    fields = [{"name": f"u{n}", "type": "string"} for n in range(1_000)]
    wide = {**schema, "fields": [*schema["fields"], *fields]}
    texts = [b"".join(avro_text(bytes([65]) * ((n * 7 + k) % 60 + 1)) for n in range(1_000)) for k in range(64)]
    return avro_file(wide, [(len(texts), b"".join(record + text for text in texts))] * 6)


def puffin_file(payload: bytes, flags: int = 0) -> bytes:
    """A file that has only a footer."""
    return b"PFA1PFA1" + payload + struct.pack("<I4s4s", len(payload), bytes([flags, 0, 0, 0]), b"PFA1")


def puffin_footer() -> Cases:
    blob = {"type": "t", "fields": [1], "snapshot-id": 1, "sequence-number": 1, "offset": 4, "length": 1}

    def footer(**changes: Any) -> bytes:
        return puffin_file(json.dumps({"blobs": [blob | changes]}).encode())

    return {
        "10,000,000 blobs": lambda: puffin_file(b'{"blobs":[' + b"{}," * 10_000_000 + b"{}]}"),
        "100,000 lists in each other": lambda: puffin_file(b'{"blobs":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "a number of 4,000 digits": lambda: footer(offset=10**4000),
        "a place before the file": lambda: footer(offset=-1),
        "fields that are lists": lambda: footer(fields=[[1]]),
        "properties that are lists": lambda: footer(properties={"a": [1]}),
        "a codec that is a list": lambda: footer(**{"compression-codec": ["zstd"]}),
        "a type that is an object": lambda: footer(type={}),
        "a blob that is none": lambda: puffin_file(b'{"blobs":[1]}'),
        "blobs that are none": lambda: puffin_file(b'{"blobs":7}'),
        "a footer that is a list": lambda: puffin_file(b"[]"),
        "a compressed footer": lambda: puffin_file(b"{}", 1),
        "a footer of 4 GB": lambda: b"PFA1PFA1" + struct.pack("<I4s4s", 2**32 - 1, bytes(4), b"PFA1"),
        "nothing": lambda: b"",
    }


def vector(bitmaps: bytes) -> bytes:
    body = bytes.fromhex("d1d33964") + bitmaps
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def full_bitmap() -> bytes:
    """All 2^32 positions: a run of 65,536 in each of 65,536 containers."""
    count = 65_536
    head = struct.pack("<I", 12347 | count - 1 << 16) + b"\xff" * (count // 8)
    keys = b"".join(struct.pack("<HH", key, 65_535) for key in range(count))
    first = len(head) + len(keys) + 4 * count
    places = struct.pack(f"<{count}I", *range(first, first + 6 * count, 6))
    return head + keys + places + struct.pack("<HHH", 1, 0, 65_535) * count


def deletion_vector() -> Cases:
    return {
        "2^32 positions in 1 MB": lambda: vector(struct.pack("<QI", 1, 0) + full_bitmap()),
        "2^64 bitmaps": lambda: vector(struct.pack("<Q", 2**64 - 1)),
        "2^32 bitmaps": lambda: vector(struct.pack("<Q", 2**32) + bytes(100)),
        "a container without end": lambda: vector(struct.pack("<QII", 1, 0, 12347 | 65_535 << 16)),
        "nothing": lambda: b"",
    }


def sketch() -> Cases:
    claims = struct.pack("<BBBBBBH", 2, 3, 3, 0, 0, 0b11010, 0x93CC)
    return {
        "2 GB of zstd": lambda: b"zstd:" + zstandard(2**31),
        "2 GB of lz4": lambda: b"lz4:" + lz4(2**31),
        "bad zstd": lambda: b"zstd:" + b"x" * 99,
        "another codec": lambda: b"brotli:" + b"x" * 99,
        "2^32 hashes": lambda: b":" + claims + struct.pack("<IfQ", 2**32 - 1, 1, 1),
    }


def lz4(size: int) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(bytes(2**24))
    return bytes(sink.getvalue()) * (size // 2**24)


# Data files.


def avro_rows() -> Cases:
    schema = {"type": "record", "name": "t", "fields": [{"name": "id", "type": "long", "field-id": 1}]}
    record = encoded(schema, {"id": 1})
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    price = {**schema, "fields": [{"name": "cost", "type": decimal, "field-id": 2}]}
    return {
        **avro_bombs(schema, record),
        "a decimal of 30 MB": lambda: avro_file(price, [(1, avro_text(b"\x7f" * 30_000_000))]),
    }


SCHEMA = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1", "iceberg.id": "1"})])
TABLE = pa.table([pa.array(range(1000), pa.int64())], schema=SCHEMA)


def parquet_file(**options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, **options)
    return sink.getvalue()


def with_footer(footer: bytes) -> bytes:
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def parquet_footer() -> Cases:
    """Attacks on readers of a footer: its fields are version, schema, rows and row groups, in this order."""
    version = b"\x15\x02"
    return {
        "2,000,000 empty row groups": lambda: with_footer(
            version + b"\x39\xfc" + unsigned(2_000_000) + bytes(2_000_000) + b"\0"
        ),
        "a list of 2^31 columns": lambda: with_footer(version + b"\x19\xfc" + unsigned(2**31 - 1)),
        "a text of 2^31 bytes": lambda: with_footer(version + b"\x58" + unsigned(2**31 - 1) + b"x"),
        "unknown structs in each other": lambda: with_footer(version + b"\xcc" + b"\x1c" * 1_000_000),
        "a number without end": lambda: with_footer(b"\x15" + b"\xff" * 1_000_000),
        "a footer of 4 GB": lambda: b"PAR1" + b"\xff\xff\xff\xff" + b"PAR1",
        "nothing but its marks": lambda: with_footer(b""),
        "nothing": lambda: b"",
    }


def pages(data: bytes, offset: int) -> bytes:
    """A sound file with other bytes at the start of its first page."""
    return data[:offset] + b"\x15\x00\x15" + unsigned(2 * (2**31 - 1)) + data[offset + 8 :]


def parquet_rows() -> Cases:
    return {
        **parquet_footer(),
        "a page that claims 2 GB": lambda: pages(parquet_file(compression="zstd"), 4),
        "a cut file": lambda: parquet_file()[:-100],
    }


def orc_rows() -> Cases:
    sink = io.BytesIO()
    orc.write_table(TABLE, sink)
    sound = sink.getvalue()
    return {
        "a cut file": lambda: sound[:-50],
        "another postscript": lambda: sound[:-20] + b"\xff" * 19 + sound[-1:],
        "a postscript of 255 bytes": lambda: sound[:-1] + b"\xff",
        "nothing": lambda: b"",
    }


# Policy files, inventories, control documents and state, and their readers.


def policy_file(_: Path) -> Any:
    from icekeeper.policy.policy_file import parse_policy_file

    laughs = "a0: &a0 ha\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    rules = "rules:\n" + "- settings:\n    operations: compact\n"
    return lambda data: parse_policy_file(data.decode(), "P"), {
        "a billion laughs": lambda: laughs.encode() + rules.encode(),
        "a list of lists": lambda: ("rules: " + "[" * 100_000 + "]" * 100_000).encode(),
        "100,000 levels of lists": lambda: ("rules:\n" + "- " * 100_000 + "x").encode(),
        "900 levels of lists": lambda: ("rules:\n" + "- " * 900 + "x").encode(),
        "2,000 levels of fields": lambda: ("rules:\n" + "".join(" " * n + "a:\n" for n in range(2_000))).encode(),
        "a tag of Python": lambda: b"rules: !!python/object/apply:os.system [id]",
        "a nul": lambda: b"rules:\0",
        "a text without end": lambda: b'rules: "' + b"a" * 1_000_000,
        "a key that stands twice": lambda: rules.encode() * 2,
        "nothing": lambda: b"",
    }


def inventory(folder: Path) -> Any:
    from icekeeper.operations.orphans.inventory import InventoryFiles
    from icekeeper.storage.storage import Storage

    def read(data: bytes) -> None:
        name, _, content = data.partition(b"|")
        path = folder / name.decode()
        path.write_bytes(content)
        for _found in InventoryFiles(Storage({}), str(path), "s3://b/t").objects():
            pass

    head = b"path,size,last_modified\n"
    line = b"s3://b/t/f,%b,%b\n"
    return read, {
        "a line of 2 GB": lambda: b"i.csv.gz|" + gzipped(head, b"a", 2**31),
        "a line of 2 GB, plain": lambda: b"i.txt.gz|" + gzipped(b"s3://b/t/", b"a", 2**31),
        "a quoted value of 2 GB": lambda: b"i.csv.gz|" + gzipped(head + b'"', b"a\n", 2**31),
        "bad gzip": lambda: b"i.csv.gz|\x1f\x8b" + b"x" * 99,
        "gzip with other bytes within": lambda: b"i.csv.gz|" + gzipped(head * 99)[:14] + b"\xff" * 30,
        "cut gzip": lambda: b"i.csv.gz|" + gzipped(head * 99)[:-20],
        "no UTF-8": lambda: b"i.csv|" + head + b"\xff\xff,1,\n",
        "a size of 5,000 digits": lambda: b"i.csv|" + head + line % (b"9" * 5_000, b""),
        "a date that is none": lambda: b"i.csv|" + head + line % (b"1", b"yesterday"),
        "the year 1": lambda: b"i.csv|" + head + line % (b"1", b"0001-01-01T00:00:00+14:00"),
        "a nul": lambda: b"i.csv|" + head + b"s3://b/t/\0,1,\n",
        "no Parquet": lambda: b"i.parquet|" + b"x" * 99,
        "another column": lambda: b"i.parquet|" + parquet({"path": [[1]], "size": [1]}),
        "no ORC": lambda: b"i.orc|" + b"x" * 99,
    }


def parquet(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def inventory_manifest(folder: Path) -> Any:
    from icekeeper.operations.orphans.inventory import InventoryFiles
    from icekeeper.storage.storage import Storage

    path = folder / "manifest.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        InventoryFiles(Storage({}), str(path), "s3://b/t").parts()

    return read, {
        **json_bombs(),
        "60 MB of files": lambda: b'{"fileFormat":"ORC","files":[' + b'{"key":""},' * 5_000_000 + b"]}",
        "files that are numbers": lambda: b'{"fileFormat":"ORC","files":[1]}',
        "files that are a number": lambda: b'{"fileFormat":"ORC","files":1}',
    }


def json_bombs() -> Cases:
    return {
        "100,000 lists in each other": lambda: b"[" * 100_000 + b"]" * 100_000,
        "100,000 objects in each other": lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "60 MB of empty lists": lambda: b"[" + b"[]," * (20 * 2**20) + b"0]",
        "a number of 5,000 digits": lambda: b"9" * 5_000,
        "no UTF-8": lambda: b'"\xff"',
        "nothing": lambda: b"",
        "a nul": lambda: b"\0",
    }


def control_document(folder: Path) -> Any:
    from pydantic import BaseModel

    from icekeeper.pipeline.control_bucket import ControlBucket

    class Shape(BaseModel):
        kind: str

    bucket = ControlBucket(str(folder))

    def read(data: bytes) -> None:
        (folder / "d.json").write_bytes(data)
        bucket.find_document("d.json", Shape)

    return read, {**json_bombs(), "another shape": lambda: b'{"kind":7}', "a list": lambda: b"[]"}


def state_item(_: Path) -> Any:
    from icekeeper.state.claims import _claims, _look
    from icekeeper.state.dynamodb.table import decoded
    from icekeeper.state.item_layout import read_paths

    class Table:
        def __init__(self, item: Any) -> None:
            self.item = item

        def query(self, pk: str) -> list[Any]:
            return [self.item]

    def read(data: bytes) -> None:
        name, _, value = data.partition(b"|")
        key = {"pk": {"S": "p"}, "sk": {"S": "s"}}
        if name == b"paths":
            table: Any = Table(decoded({**key, "paths": {"B": value}}))
            assert all(isinstance(path, str) for paths in read_paths(table, "l") for path in paths)
            return
        text = {"S": value.decode()}
        whole = {name: {"S": "x"} for name in ("catalog", "warehouse", "uuid", "location")}
        whole |= dict.fromkeys(("look", "folders", "data_roots"), text) | {"seen": {"S": '["", -1, -1, []]'}}
        if name == b"seen":
            whole |= {"folders": {"S": "[]"}, "data_roots": {"S": "[]"}, "seen": text}
        whole["entry"] = {"S": '["c","w","n.t"]'}
        item = decoded({**key, **whole})
        {b"claims": _claims, b"seen": _claims, b"look": _look}[name](item)

    deep = b"[" * 100_000 + b"]" * 100_000
    return read, {
        "300 MB of paths": lambda: b"paths|\x78\x01" + deflated(b'["', b"a", 300 * 2**20, b'"]'),
        "bad paths": lambda: b"paths|" + b"x" * 99,
        "cut paths": lambda: b"paths|" + zlib.compress(b'["a"]' * 99)[:-9],
        "paths in each other": lambda: b"paths|" + zlib.compress(deep),
        "claims in each other": lambda: b"claims|" + deep,
        "a look in each other": lambda: b"look|" + deep,
        "a look that is a number": lambda: b"look|7",
        "folders that are lists": lambda: b"claims|[[1]]",
        "a head of few parts": lambda: b"seen|[1]",
        "a head whose snapshots are none": lambda: b'seen|["m", 1, 1, ["x"]]',
    }


def state_file(folder: Path) -> Any:
    from icekeeper.model import CatalogId, TableName
    from icekeeper.state.identity import TableIdentity
    from icekeeper.state.requests import MaintenanceRequest
    from icekeeper.state.sqlite.store import SqliteStateStore

    path = folder / "state.db"
    identity = TableIdentity(CatalogId("c", "w"), TableName.parse("n.t"), "u", "s3://b/t")
    store = SqliteStateStore(path)
    store.requests.file(MaintenanceRequest(identity=identity, requested_ms=1, settings={"a": "b"}))
    deep = "[" * 100_000 + "]" * 100_000

    def read(data: bytes) -> None:
        if data.startswith(b"settings|"):
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(
                    "UPDATE items SET attributes = json_set(attributes, '$.settings', ?)",
                    (data.decode().partition("|")[2],),
                )
                connection.commit()
            store.requests.pending()
        else:
            other = folder / "other.db"
            other.write_bytes(data)
            SqliteStateStore(other).requests.pending()

    return read, {
        "settings in each other": lambda: b"settings|" + deep.encode(),
        "settings that are a number": lambda: b"settings|7",
        "settings with a number of 5,000 digits": lambda: b'settings|{"a":' + b"9" * 5_000 + b"}",
        "no database": lambda: b"x" * 9_999,
        "a database of its first page": lambda: path.read_bytes()[:4096],
        "settings with a lone surrogate": lambda: b'settings|{"a":"\\ud800"}',
        "json": lambda: json.dumps({}).encode(),
    }
