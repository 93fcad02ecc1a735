"""Hostile Avro container files."""

from __future__ import annotations

import bz2
import functools
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import fastavro
import pyarrow as pa

from icekeeper.metadata.avro_files import open_avro, writer_types

# Compressed bytes that decompress to much more, made without holding the decompressed bytes.


@functools.cache
def deflated(begin: bytes, piece: bytes = b"", size: int = 0, end: bytes = b"") -> bytes:
    """Compress ``begin``, ``piece`` repeated to ``size`` bytes, and ``end``, without holding the decompressed bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    if piece:
        part = piece * max(1, 2**20 // len(piece))
        # After a full flush, compressed bytes do not refer to earlier bytes, so they can be repeated.
        packed += (packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)) * -(-size // len(part))
    return packed + packer.compress(end) + packer.flush()


def gzipped(begin: bytes, piece: bytes = b"", size: int = 0, end: bytes = b"") -> bytes:
    """Like :func:`deflated`, as a gzip file; up to 1 GB, its checksum is right."""
    part, crc, length = piece * max(1, 2**20 // max(1, len(piece))), zlib.crc32(begin), len(begin) + len(end)
    for _ in range(-(-size // len(part)) if piece and size <= 2**30 else 0):
        crc, length = zlib.crc32(part, crc), length + len(part)
    trailer = zlib.crc32(end, crc).to_bytes(4, "little") + (length % 2**32).to_bytes(4, "little")
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + deflated(begin, piece, size, end) + trailer


@functools.cache
def zstandard(size: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(bytes(2**24))
    return bytes(sink.getvalue()) * (size // 2**24)


@functools.cache
def bzip2(size: int) -> bytes:
    """A bzip2 file that repeats a stream."""
    return bz2.compress(bytes(2**24)) * (size // 2**24)


@functools.cache
def xz(size: int) -> bytes:
    return lzma.compress(bytes(2**26 + 2**24), preset=0) * (size // 2**26)


MARKER = b"0123456789abcdef"


def unsigned(number: int) -> bytes:
    """A number in groups of seven bits, as Avro, Thrift and Protocol Buffers encode it."""
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def avro_long(number: int) -> bytes:
    """A long as Avro encodes it."""
    return unsigned((number << 1) ^ (number >> 63))


def avro_text(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return avro_long(len(data)) + data


def avro_file(schema: Any, blocks: Iterable[tuple[int, bytes]], codec: str = "null") -> bytes:
    """A container file of blocks, given by their claimed number of records and their bytes."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    head = b"Obj\x01" + avro_long(2) + avro_text("avro.schema") + avro_text(text)
    head += avro_text("avro.codec") + avro_text(codec) + b"\0" + MARKER
    return head + b"".join(avro_long(count) + avro_text(data) + MARKER for count, data in blocks)


def uncompressed(data: bytes) -> bytes:
    """The same container file with codec ``null``, so that a changed byte changes a record."""
    opened = open_avro(data, "an Avro file")
    marker = data[opened.blocks_at - len(MARKER) : opened.blocks_at]
    header = {**opened.header, "avro.codec": "null"}
    pairs = b"".join(avro_text(key) + avro_text(value) for key, value in header.items())
    blocks = (avro_long(count) + avro_text(block) + marker for count, block in opened.unpacked_blocks())
    return b"Obj\x01" + avro_long(len(header)) + pairs + b"\0" + marker + b"".join(blocks)


def records_of(data: bytes, path: str) -> list[dict[str, Any]]:
    """All records of a container file, as Icekeeper reads them."""
    opened = open_avro(data, path)
    types = writer_types(opened.schema_text)
    return [*opened.values(types.reader(types.schema))]


def encoded(schema: Any, value: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(deepcopy(schema)), value)
    return sink.getvalue()


def nested_types(levels: int) -> Any:
    """Nested record types; each contains the previous type twice."""
    kind: Any = "boolean"
    for level in range(levels):
        again = f"bomb{level - 1}" if level else "boolean"
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": again}]
        kind = {"type": "record", "name": f"bomb{level}", "fields": fields}
    return kind


def with_column(schema: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """An Avro record schema with a further field at its end."""
    return {**schema, "fields": [*schema["fields"], {"name": "x", "type": kind}]}


DEEP = '{"type":"array","items":' * 100_000 + '"null"' + "}" * 100_000
NULLS = {"type": "array", "items": "null"}
EMPTY = {"type": "array", "items": {"type": "record", "name": "nothing", "fields": []}}
NO_BYTES = {"type": "array", "items": {"type": "fixed", "name": "none", "size": 0}}
BACKWARDS = {"type": "array", "items": {"type": "fixed", "name": "back", "size": -2}}
WIDE = {"type": "record", "name": "w", "fields": [{"name": f"f{n}", "type": "null"} for n in range(1_000)]}
MANY = {"type": "record", "name": "w", "fields": [{"name": f"f{n}", "type": "boolean"} for n in range(20_000)]}
ITSELF = {"type": "record", "name": "i", "fields": [{"name": "a", "type": "i"}]}
TREE = {"type": "record", "name": "tree", "fields": [{"name": n, "type": ["null", "tree"]} for n in "ab"]}


def avro_bombs(schema: Mapping[str, Any], record: bytes) -> dict[str, Callable[[], bytes]]:
    """Attacks on readers of container files of a schema; ``record`` is one sound record."""

    def file(kind: Any, value: bytes) -> bytes:
        return avro_file(with_column(schema, kind), [(1, record + value)])

    text = json.dumps(schema)
    deep = text[:-2] + ', {"name": "x", "type": ' + DEEP + "}]}"
    claim = avro_long(10**13)
    return {
        "10^13 nulls": lambda: file(NULLS, claim + b"\0"),
        "10^13 nulls, with a size": lambda: file(NULLS, avro_long(-(10**13)) + b"\0\0"),
        "10^13 empty records": lambda: file(EMPTY, claim + b"\0"),
        "10^13 fixed of no bytes": lambda: file(NO_BYTES, claim + b"\0"),
        "10^13 pairs of a map": lambda: file({"type": "map", "values": "null"}, claim + b"\0"),
        "10^13 texts": lambda: file({"type": "array", "items": "string"}, claim + b"\0"),
        "a text of 10^13 bytes": lambda: file("string", claim),
        "many blocks of nulls": lambda: file(NULLS, avro_long(1_000) * 100_000 + b"\0"),
        "a fixed type that goes back": lambda: file(BACKWARDS, avro_long(1) + b"\0\0"),
        "a type that contains itself": lambda: file(ITSELF, b""),
        "a tree of 10^6 levels": lambda: file(TREE, b"\2" * 1_000_000),
        "types that double": lambda: file(nested_types(60), b"\0" * 4096),
        "a record of 1,000 nulls": lambda: avro_file(with_column(schema, WIDE), [(1, record)] * 20_000),
        "20,000 fields": lambda: avro_file(with_column(schema, MANY), [(1, record + bytes(20_000))] * 3),
        "a schema of 100,000 levels": lambda: avro_file(deep, [(1, record)]),
        "a schema of 30 MB": lambda: avro_file(text[:-1] + ', "doc": "' + "a" * 30_000_000 + '"}', [(1, record)]),
        "10^13 records": lambda: avro_file(schema, [(10**13, record)]),
        "a block of 10^13 bytes": lambda: avro_file(schema, [])[:-1] + MARKER[-1:] + b"\2" + claim,
        "a header of 10^13 pairs": lambda: b"Obj\x01" + claim + avro_text("a") * 200_000,
        "2 GB of deflate": lambda: avro_file(schema, [(1, deflated(b"", b"\0", 2**31))], "deflate"),
        "bad deflate": lambda: avro_file(schema, [(1, b"\xff" * 99)], "deflate"),
        "cut deflate": lambda: avro_file(schema, [(1, deflated(record * 99)[:-4])], "deflate"),
        "another codec": lambda: avro_file(schema, [(1, record)], "lzo"),
        "a snappy block of 4 GB": lambda: avro_file(schema, [(1, b"\xff\xff\xff\xff\x0f" + bytes(99))], "snappy"),
        "2 GB of zstandard": lambda: avro_file(schema, [(1, zstandard(2**31))], "zstandard"),
        "bad zstandard": lambda: avro_file(schema, [(1, b"\xff" * 99)], "zstandard"),
        "1 GB of bzip2": lambda: avro_file(schema, [(1, bzip2(2**30))], "bzip2"),
        "2 GB of xz": lambda: avro_file(schema, [(1, xz(2**31))], "xz"),
        "nothing": lambda: b"",
        "a marker only": lambda: b"Obj\x01",
    }
