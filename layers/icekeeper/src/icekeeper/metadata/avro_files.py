"""Reads and writes Avro container files with raw values, so that values can be written again unchanged.

Logical types are removed from the writer's schema before decoding: dates, decimals and uuids remain the stored integers
and bytes.  Source: Apache Avro 1.12 specification, "Object Container Files".
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

import fastavro
from fastavro.schema import parse_schema
from pydantic_core import from_json

from icekeeper.errors import MaintenanceError, MetadataUnreadable
from icekeeper.machine.foreign_bytes import FileLimits
from icekeeper.metadata.avro_schemas import AvroSchema
from icekeeper.metadata.avro_values import (
    AvroTypes,
    Reader,
    read_bytes,
    read_long,
    read_string,
    require_bounded,
    require_possible,
)

SYNC_BYTES = 16
"""The length of the sync marker at the end of the header and of each block."""

Block = TypeVar("Block")

# Two numbers of at most ten bytes.
_LONGEST_BLOCK_HEADER = 20
# Deflate compresses at most 1,032 bytes into one (zlib, "Maximum Compression Factor").
_MOST_PACKED = 1032
_MAGIC = b"Obj\x01"
# The typical memory of a decoded manifest entry, or of a decoded entry of a manifest list.
_RECORD_BYTES = 1024
# Iceberg-Java's default codec, which Iceberg calls gzip.  Every reader supports it.
_CODEC = "deflate"
# A manifest's schema has about a hundred parts, and three more for each partition field.
_LONGEST_SCHEMA = 1024 * 1024
_MOST_PARTS = 10_000
# An array has an item per column, partition field, row group or equality column.
_MOST_ITEMS = 256 * 1024
_LOGICAL_KEYS = frozenset({"logicalType", "precision", "scale", "adjust-to-utc"})


@dataclass(frozen=True, slots=True)
class AvroFile:
    """A container file in memory whose blocks are not decoded yet.

    Raises:
        MetadataUnreadable: :meth:`values` and :meth:`blocks` find that the file is damaged, truncated or too large.
    """

    path: str
    data: bytes
    header: Mapping[str, str]
    """The key-value metadata."""
    blocks_at: int
    """The position of the first block."""
    limits: FileLimits

    @property
    def schema_text(self) -> str:
        """The writer's schema as JSON text."""
        return self.header["avro.schema"]

    def unpacked_blocks(self) -> Iterator[tuple[int, bytes]]:
        """The number of records of each block, and their decompressed bytes; damage may raise any exception."""
        codec, limits = self.header.get("avro.codec", "null"), self.limits
        data, at, size = self.data, self.blocks_at, len(self.data)
        marker = data[at - SYNC_BYTES : at]
        while at < size:
            count, at = read_long(data, at)
            block, at = read_bytes(data, at)
            if not data.startswith(marker, at):
                raise EOFError("a block does not end with the file's marker")
            at += SYNC_BYTES
            records = limits.unpack(codec, block)
            limits.hold(_RECORD_BYTES * require_possible(count, len(records)))
            yield count, records

    def count(self, *, is_whole: bool) -> int:
        """The number of records according to the headers of the blocks; no block is decompressed.

        If only the beginning of the file was read (not ``is_whole``), the blocks that begin there count.
        """
        with _damage_named(f"{self.path} is damaged or truncated"):
            data, at, records = self.data, self.blocks_at, 0
            marker = data[at - SYNC_BYTES : at]
            end = len(data) if is_whole else len(data) - _LONGEST_BLOCK_HEADER
            while at < end:
                count, at = read_long(data, at)
                size, at = read_long(data, at)
                if not 0 <= count <= size * _MOST_PACKED:
                    raise ValueError(f"a block of {size} bytes claims {count} records")
                records, at = records + count, at + size
                if not data.startswith(marker, at) and (is_whole or at + SYNC_BYTES <= len(data)):
                    raise EOFError("a block does not end with the file's marker")
                at += SYNC_BYTES
            return records

    def values(self, read: Reader) -> Iterator[Any]:
        """The value of each record."""
        with _damage_named(f"{self.path} is damaged or truncated"):
            for count, data in self.unpacked_blocks():
                at = 0
                for _ in range(count):
                    value, at = read(data, at)
                    if at > len(data):
                        raise EOFError("a record ends after its block")
                    yield value
                _require_end(data, at)

    def blocks(self, read: Callable[[bytes, int], tuple[Block, int]]) -> Iterator[tuple[Block, bytes]]:
        """The value of each block, and its bytes.

        ``read`` gets the bytes and the number of records, and returns a value and the position after the records.
        """
        with _damage_named(f"{self.path} is damaged or truncated"):
            for count, data in self.unpacked_blocks():
                found, at = read(data, count)
                _require_end(data, at)
                yield found, data


@contextmanager
def _damage_named(what: str) -> Iterator[None]:
    try:
        yield
    except MaintenanceError:
        raise
    except Exception as error:  # damaged bytes raise EOFError, IndexError, ValueError, zlib.error and other errors
        kind, lines = type(error).__name__, str(error).splitlines()
        raise MetadataUnreadable(f"{what}: {kind}: {lines[0]}" if lines else f"{what}: {kind}") from error


def _require_end(data: bytes, at: int) -> None:
    if at > len(data):
        raise EOFError("a record ends after its block")
    if at != len(data):
        raise ValueError("a block has bytes after its last record")  # (rule: damage-ends-in-a-named-error)


def open_avro(data: bytes, path: str) -> AvroFile:
    """Open a container file.

    fastavro is not used: it parses the schema of each file again, which takes longer than reading a small manifest.

    Raises:
        PolicyError: the setting for the size of decompressed files is malformed.
        MetadataUnreadable: the bytes are not an Avro file.
    """
    with _damage_named(f"{path} is not a readable Avro file"):
        if not data.startswith(_MAGIC):
            raise ValueError("it lacks the magic bytes")
        header: dict[str, str] = {}
        count, at = read_long(data, len(_MAGIC))
        while count:
            if count < 0:  # then the size of these pairs in bytes follows
                _, at = read_long(data, at)
            for _ in range(abs(count)):
                key, at = read_string(data, at)
                header[key], at = read_string(data, at)
            count, at = read_long(data, at)
        if at + SYNC_BYTES > len(data):
            raise EOFError("its header is truncated")
        limits = FileLimits(path, len(data))
        writer_types(header["avro.schema"])
        return AvroFile(path, data, header, at + SYNC_BYTES, limits)


@lru_cache(maxsize=32)  # parsing a schema takes longer than reading a small manifest
def writer_types(schema_text: str) -> AvroTypes:
    """A writer's schema without logical types.  It is cached, so callers must not change it.

    Raises:
        Exception: the text is not a schema, or is larger than any manifest's schema.
    """
    if len(schema_text) > _LONGEST_SCHEMA:
        raise ValueError(f"its schema has {len(schema_text)} characters, at most {_LONGEST_SCHEMA} are allowed")
    parsed = cast("AvroSchema", parse_schema(strip_logical_types(from_json(schema_text, allow_inf_nan=False))))
    require_bounded(parsed, _MOST_PARTS)
    types = AvroTypes(parsed, _MOST_ITEMS)
    types.reader(parsed)
    return types


def write_avro(schema: AvroSchema, records: Iterable[Mapping[str, Any]], header: Mapping[str, str]) -> bytes:
    """The bytes of a container file of ``records``, with ``header`` as its key-value metadata."""
    sink = io.BytesIO()
    fastavro.writer(sink, parse_schema(schema), records, codec=_CODEC, metadata=dict(header))
    return sink.getvalue()


def structure(schema: Any, named: dict[str, Any] | None = None) -> Any:
    """The types and field ids of a schema in order, without names and logical types; ``named``: types by name.

    Two schemas of equal structure encode a record to the same bytes.
    """
    named = {} if named is None else named
    if isinstance(schema, list):
        return tuple(structure(part, named) for part in schema)
    if isinstance(schema, str):
        return named.get(schema, schema)
    kind = schema["type"]
    if kind == "record":
        found: Any = ("record", *((f.get("field-id"), structure(f["type"], named)) for f in schema["fields"]))
    elif kind in ("array", "map"):
        found = (kind, structure(schema.get("items", schema.get("values")), named))
    elif kind == "fixed":
        found = (kind, schema["size"])
    elif kind == "enum":
        found = (kind, tuple(schema["symbols"]))
    else:
        return structure(kind, named)
    if "name" in schema:
        named[schema["name"]] = found
    return found


def strip_logical_types(schema: Any) -> Any:
    """A copy of the schema without logical types."""
    whole = [schema]
    waiting: list[Any] = [whole]
    while waiting:
        part = waiting.pop()
        for key, value in enumerate(part) if isinstance(part, list) else part.items():
            if isinstance(part, dict) and key not in ("type", "items", "values", "fields"):
                continue
            if isinstance(value, dict):
                part[key] = {name: kept for name, kept in value.items() if name not in _LOGICAL_KEYS}
            elif isinstance(value, list):
                part[key] = [*value]
            else:
                continue
            waiting.append(part[key])
    return whole[0]


def decimal_fields(record: Mapping[str, Any]) -> dict[str, int]:
    """Decimal field of a record → its width in bytes; 0: the width varies.

    A field may refer by name to the type of an earlier field.
    """
    sizes: dict[str, int] = {}
    found = {}
    for field in record["fields"]:
        for kind in field["type"] if isinstance(field["type"], list) else [field["type"]]:
            if isinstance(kind, dict) and kind.get("logicalType") == "decimal":
                sizes[str(kind.get("name"))] = kind.get("size", 0)
                found[field["name"]] = kind.get("size", 0)
            elif isinstance(kind, str) and kind in sizes:
                found[field["name"]] = sizes[kind]
    return found


# Fields of a manifest's schema are found by ``field-id``, or by name if a writer omitted the ids.


def is_field(field: Mapping[str, Any], field_id: int, name: str) -> bool:
    """Whether a field has this id, or this name if it has no id."""
    found = field.get("field-id")
    return bool(field["name"] == name if found is None else int(found) == field_id)


def record_of(schema: Mapping[str, Any], field_id: int, name: str) -> dict[str, Any]:
    """The record schema of a nested field, nullable or not (BigQuery makes ``data_file`` nullable).

    Raises:
        LookupError: there is no such field.
    """
    for field in schema["fields"]:
        if is_field(field, field_id, name):
            for kind in field["type"] if isinstance(field["type"], list) else [field["type"]]:
                if isinstance(kind, dict) and kind.get("type") == "record":
                    return kind
    raise LookupError(f"has no field {name}; it is not an Iceberg manifest")


def partition_record(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The record schema of the partitions of entries.

    Raises:
        LookupError: the entries have no partition.
    """
    return record_of(record_of(schema, 2, "data_file"), 102, "partition")
