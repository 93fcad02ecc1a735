"""Changes parts of sound files of any format, and corrects the lengths, checksums and offsets of the frame.

A random byte mostly breaks the frame of a file, so that the code behind the frame is never reached.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import fastavro

from icekeeper.metadata.avro_files import open_avro
from icekeeper.row_group_copy.footer_structs import FileMetaData, read_struct, write_struct
from support.hostile.avro import avro_long, avro_text, records_of, unsigned

Join: TypeAlias = Callable[[Sequence[bytes]], bytes]
Mutate: TypeAlias = Callable[[bytes, int], bytes]
"""Changes bytes at random, up to a length, such as libFuzzer's mutator."""

_SHARE_WHOLE = 0.15
"""The share of changes to the whole file, which also damage frames."""
_SHARE_TREES = 0.7
"""The share of changes to a part that is a tree (JSON, Thrift) that change a node."""
_SHARE_RECORDS = 0.3
"""The share of changes to an Avro file that change values of records, within their types."""
_MARKER_BYTES = 16
_VECTOR_MAGIC = bytes.fromhex("d1d33964")
_NUMBERS = (0, 1, -1, 2, 127, 2**31 - 1, -(2**31), 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 2**63, 10**30, 0.5)
_SHAPES: tuple[Any, ...] = ([], [1], [None], ["x"], [[]], {}, {"x": 1}, {"type": "x"}, None, True, False)
_TEXTS = ("", "x", "1", "int", "long", "string", "null", "bytes", "timestamp", "decimal(9,2)", "fixed[3]", "\x1b[2J")
_ODD = (*_NUMBERS, *_SHAPES, *_TEXTS)


def changed(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """The file with a changed part, or changed anywhere, with at most ``most`` bytes."""
    chance = random.Random(seed)
    if chance.random() < _SHARE_WHOLE:
        return mutate(data, most)
    try:
        if data[:4] == b"Obj\x01" and chance.random() < _SHARE_RECORDS:
            return _changed_records(data, chance)[:most]
        parts, join = split(data)
        at = chance.randrange(len(parts))
        tree = _changed_tree(parts[at], chance) if chance.random() < _SHARE_TREES else None
        parts[at] = mutate(parts[at], most) if tree is None else tree
        return join(parts)[:most]
    except Exception:  # the bytes are no longer such a file
        return mutate(data, most)


def split(data: bytes) -> tuple[list[bytes], Join]:
    """The parts of a file, and a function that joins parts; raises any exception if the file is invalid."""
    if data[:4] == b"Obj\x01":
        return _avro(data)
    if data[:4] == b"PFA1":
        return _puffin(data)
    if data[:4] == b"PAR1":
        return _parquet(data)
    if data[:3] == b"ORC":
        return _orc(data)
    if data[4:8] == _VECTOR_MAGIC:
        return [data[8:-4]], lambda parts: vector(_VECTOR_MAGIC + parts[0])
    return [data], lambda parts: parts[0]


def vector(body: bytes) -> bytes:
    """A deletion vector with the right length and checksum; ``body`` begins with its magic number."""
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


# Avro: the header's texts, and each block's number of records and bytes.


def _long(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _long(data, at)
    if not 0 <= length <= len(data) - at:
        raise ValueError(length)
    return data[at : at + length], at + length


def _avro(data: bytes) -> tuple[list[bytes], Join]:
    count, at = _long(data, 4)
    keys, parts = [], []
    for _ in range(count):
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        keys.append(key)
        parts.append(value)
    marker = data[at + 1 : at + 1 + _MARKER_BYTES]
    at += 1 + _MARKER_BYTES
    while at < len(data):
        records, at = _long(data, at)
        block, at = _bytes(data, at)
        at += _MARKER_BYTES
        parts += [avro_long(records), block]

    def join(parts: Sequence[bytes]) -> bytes:
        header = b"".join(avro_text(key) + avro_text(value) for key, value in zip(keys, parts, strict=False))
        blocks = parts[len(keys) :]
        pairs = zip(blocks[::2], blocks[1::2], strict=True)
        body = b"".join(records + avro_text(block) + marker for records, block in pairs)
        return b"Obj\x01" + avro_long(len(keys)) + header + b"\0" + marker + body

    return parts, join


def _changed_records(data: bytes, chance: random.Random) -> bytes:
    """The file with other values in its records; raises any exception if they do not fit its schema."""
    opened = open_avro(data, "an Avro file")
    records = records_of(data, opened.path)
    _change(records, chance)
    about = {key: value for key, value in opened.header.items() if not key.startswith("avro.")}
    sink = io.BytesIO()
    schema = fastavro.parse_schema(json.loads(opened.schema_text))
    fastavro.writer(sink, schema, records, codec="null", metadata=about)
    return sink.getvalue()


# Files with a footer behind their data and its length at the end.


def _puffin(data: bytes) -> tuple[list[bytes], Join]:
    length, flags, magic = struct.unpack("<I4s4s", data[-12:])
    start = len(data) - 12 - length
    if magic != b"PFA1" or start < 8:
        raise ValueError(length)

    def join(parts: Sequence[bytes]) -> bytes:
        return parts[0] + b"PFA1" + parts[1] + struct.pack("<I4s4s", len(parts[1]), flags, magic)

    return [data[: start - 4], data[start:-12]], join


def _parquet(data: bytes) -> tuple[list[bytes], Join]:
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if start < 4:
        raise ValueError(start)
    return [
        data[:start],
        data[start:-8],
    ], lambda parts: parts[0] + parts[1] + len(parts[1]).to_bytes(4, "little") + data[-4:]


_FOOTER_LENGTH, _METADATA_LENGTH = 1, 5
"""Fields of ORC's postscript (ORC specification v1, "Postscript")."""


def _orc(data: bytes) -> tuple[list[bytes], Join]:
    """The stripes, metadata, footer and postscript of a file without compression."""
    end = len(data) - 1
    script = end - data[-1]
    sizes = dict(_numbers(data[script:end]))
    footer = script - sizes[_FOOTER_LENGTH]
    metadata = footer - sizes.get(_METADATA_LENGTH, 0)
    if metadata < 3:
        raise ValueError(metadata)

    def join(parts: Sequence[bytes]) -> bytes:
        sizes = {_FOOTER_LENGTH: len(parts[2]), _METADATA_LENGTH: len(parts[1])}
        script = _with_numbers(parts[3], sizes)
        return b"".join(parts[:3]) + script + bytes([len(script) % 256])

    return [data[:metadata], data[metadata:footer], data[footer:script], data[script:end]], join


def _fields(message: bytes) -> Iterator[tuple[int, bytes, int | None]]:
    """The fields of a Protocol Buffers message: number, bytes, and the value of a numeric field."""
    at = 0
    while at < len(message):
        start, (tag, at) = at, _varint(message, at)
        value = None
        if tag & 7 == 0:
            value, at = _varint(message, at)
        elif tag & 7 == 2:
            length, at = _varint(message, at)
            at += length
        else:
            raise ValueError(tag)
        yield tag >> 3, message[start:at], value


def _numbers(message: bytes) -> Iterator[tuple[int, int]]:
    return ((number, value) for number, _, value in _fields(message) if value is not None)


def _with_numbers(message: bytes, values: dict[int, int]) -> bytes:
    return b"".join(
        field if number not in values else unsigned(number << 3) + unsigned(values[number])
        for number, field, _ in _fields(message)
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


# Trees: JSON documents, and the Thrift structures of a Parquet footer.


def _changed_tree(part: bytes, chance: random.Random) -> bytes | None:
    """The part with one or two changed values; ``None`` if it is not a tree."""
    if part[:1] in (b"{", b"["):
        tree: Any = [json.loads(part)]
        _change(tree, chance)
        return json.dumps(tree[0]).encode()
    if part[:1] == b"\x15":  # the footer's first field: its version
        footer, end = read_struct(FileMetaData, part)
        if end != len(part):
            return None
        _change(footer, chance)
        return write_struct(footer)
    return None


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every value below a node, as its parent and key."""
    if is_dataclass(node):
        held = ((field, getattr(node, field.name)) for field in fields(node))
        # Of the missing values, only numbers can be added.
        pairs: list[tuple[Any, Any]] = [(f.name, old) for f, old in held if old is not None or "int" in str(f.type)]
    elif isinstance(node, dict):
        pairs = list(node.items())
    else:
        pairs = list(enumerate(node)) if isinstance(node, list) else []
    for key, value in pairs:
        yield node, key
        yield from _places(value)


def _change(tree: Any, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 1, 2))):
        places = list(_places(tree))
        if not places:
            return
        parent, key = chance.choice(places)
        _change_value(parent, key, chance, places)


def _change_value(parent: Any, key: Any, chance: random.Random, places: Sequence[tuple[Any, Any]]) -> None:
    value = _held(parent, key)
    way = chance.choice(("odd", "near", "near", "elsewhere", "gone", "twice"))
    if is_dataclass(parent):
        numbers = [held for place in places if isinstance(held := _held(*place), int)]
        other = chance.choice(numbers if way == "elsewhere" else _NUMBERS)
        is_other = value is None or (way in ("odd", "elsewhere") and isinstance(value, int))
        setattr(parent, key, None if way == "gone" else other if is_other else _near(value, chance))
    elif way == "gone":
        del parent[key]
    elif way == "twice" and isinstance(parent, list):
        parent.insert(chance.randint(0, len(parent)), value)
    elif way == "elsewhere":
        other, there = chance.choice(places)
        # A copy, because JSON has no value that contains itself.
        parent[key] = json.loads(json.dumps(other[there]))
    else:
        parent[key] = _near(value, chance) if way == "near" else json.loads(json.dumps(chance.choice(_ODD)))


def _held(parent: Any, key: Any) -> Any:
    return getattr(parent, key) if is_dataclass(parent) else parent[key]


def _near(value: Any, chance: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((value + 1, value - 1, -value, value * 2, value ^ (1 << chance.randrange(40)), 0))
    if isinstance(value, str):
        return chance.choice((*_TEXTS, value + "x", value[1:], value * 2))
    if isinstance(value, bytes):
        return chance.choice((b"", value + b"\xff", value[1:], b"\0" * len(value)))
    return value * chance.choice((0, 2)) if isinstance(value, list) else value
