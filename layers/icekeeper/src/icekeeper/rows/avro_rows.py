"""Reads an Avro data or delete file block by block, as Arrow batches with field ids.

Source: specification, "Avro" data type mappings: ids are ``field-id``, ``element-id``, ``key-id`` and ``value-id``.  A
map whose keys are not strings is an array of key-value records with ``logicalType: map``.  An optional column is a
union with null.  Values are decoded as stored (dates as days); Arrow gives them their types.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, parse_schema
from pydantic_core import from_json

from icekeeper.errors import MaintenanceError, TableUnsupported
from icekeeper.machine.foreign_bytes import CODECS, FileLimits, require_fitting
from icekeeper.metadata.avro_files import strip_logical_types
from icekeeper.metadata.avro_values import AvroTypes, require_bounded, require_possible
from icekeeper.metadata.types import decimal_unscaled
from icekeeper.rows.arrow_schema import FIELD_ID_KEY

# Decoded records are Python objects, many times larger than in Arrow, so batches are smaller than for other formats.
_BATCH_ROWS = 16 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
# Most parts of a schema: columns and nested types.
_MOST_PARTS = 100_000

# Converts a decoded value into a value that Arrow accepts for its type; None: no conversion is needed.
Prepare: TypeAlias = Callable[[Any], Any] | None

_DECIMALS = Context(prec=76)
_DECIMAL_BYTES = 64
_PLAIN: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_TIMESTAMPS: Mapping[str, str] = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}


class AvroRows:
    """An open Avro file: its schema as an Arrow schema, and its rows."""

    def __init__(self, stream: pa.NativeFile) -> None:
        """Raises TableUnsupported for a schema without an Iceberg mapping, pa.ArrowInvalid for a damaged header."""
        with _naming_damage("header"):
            self._container = AvroContainer(stream)
            self._schema = _full_names(self._container.schema)
            require_bounded(self._schema, _MOST_PARTS)
            self._types = _Types()
            self._columns = [self._types.column(part) for part in self._schema["fields"]]
            self.schema = pa.schema([column for column, _ in self._columns])

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows in file order, with the columns of these names.

        Raises:
            pa.ArrowInvalid: the file is damaged.
        """
        chosen = [(column, prepare) for column, prepare in self._columns if column.name in names]
        kind = pa.struct([column for column, _ in chosen])
        prepare = _record([(column.name, prepare) for column, prepare in chosen])
        stored: Any = parse_schema(strip_logical_types(self._schema))
        read = AvroTypes(stored).fields_reader({column.name: column.name for column, _ in chosen})
        rows: list[Any] = []
        size = 0
        for count, payload in self._container.blocks():
            data, at, end = payload(), 0, 0
            with _naming_damage("rows"):
                require_possible(count, len(data))
            for _ in range(count):
                try:
                    row, end = read(data, at)
                    if end > len(data):
                        raise EOFError("a row ends after its block")
                    rows.append(row if prepare is None else prepare(row))
                except Exception as error:
                    raise _damaged("rows", error) from error
                size += end - at
                at = end
                if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield _batch(rows, kind)
                    rows, size = [], 0
        if rows:
            yield _batch(rows, kind)


def _full_names(schema: Any) -> dict[str, Any]:
    """The schema with full names for all named types, both where they are defined and where they are used."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise TableUnsupported("the rows of an Avro file are not records")
    try:
        parsed: Any = parse_schema(schema)
    except (SchemaParseException, UnknownType, ValueError) as error:
        raise pa.ArrowInvalid(f"the schema of an Avro file is damaged: {error}") from error
    return {key: value for key, value in parsed.items() if not key.startswith("__")}


def _batch(rows: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    with _naming_damage("rows"):
        return pa.RecordBatch.from_struct_array(pa.array(rows, kind))


@contextmanager
def _naming_damage(what: str) -> Iterator[None]:
    """Convert the many error types that fastavro and Python raise for damaged bytes into ArrowInvalid."""
    try:
        yield
    except (MaintenanceError, pa.ArrowException, OSError):
        raise
    except Exception as error:
        raise _damaged(what, error) from error


def _damaged(what: str, error: Exception) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"damaged Avro file, in its {what}: {type(error).__name__}: {error}")


class _Types:
    """Converts Avro types into Arrow types, each with the function that prepares its decoded values."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[pa.DataType, Prepare]] = {}

    def column(self, part: Mapping[str, Any]) -> tuple[pa.Field, Prepare]:
        kind, prepare = self.resolve(part["type"])
        return _with_id(part["name"], kind, part.get("field-id")), prepare

    def resolve(self, schema: Any) -> tuple[pa.DataType, Prepare]:
        """The Arrow type of an Avro schema; raises TableUnsupported for types that Iceberg does not map."""
        if isinstance(schema, list):
            others = [branch for branch in schema if branch != "null"]
            if len(others) == 1:
                kind, prepare = self.resolve(others[0])
                return kind, _optional(prepare)
            if not others:
                return pa.null(), None
            raise TableUnsupported("an Avro file has a union of several types, which Iceberg does not have")
        if isinstance(schema, str):
            if schema in self._named:
                return self._named[schema]
            if schema in _PLAIN:
                return _PLAIN[schema], None
            raise TableUnsupported(f"an Avro file has the unknown type {schema}")
        if isinstance(schema["type"], dict | list):
            return self.resolve(schema["type"])
        found = self._complex(schema)
        if "name" in schema:
            self._named[schema["name"]] = found
        return found

    def _complex(self, schema: Mapping[str, Any]) -> tuple[pa.DataType, Prepare]:
        kind, logical = str(schema["type"]), str(schema.get("logicalType") or "")
        if kind == "record":
            columns = [self.column(part) for part in schema["fields"]]
            prepare = _record([(column.name, prepare) for column, prepare in columns])
            return pa.struct([column for column, _ in columns]), prepare
        if kind == "array" and logical == "map":
            (key, prepare_key), (value, prepare_value) = (self.column(part) for part in schema["items"]["fields"])
            return pa.map_(key.with_nullable(False), value), _pairs(key.name, value.name, prepare_key, prepare_value)
        if kind == "array":
            element, prepare = self.resolve(schema["items"])
            return pa.list_(_with_id("element", element, schema.get("element-id"))), _each(prepare)
        if kind == "map":
            value, prepare = self.resolve(schema["values"])
            key = _with_id("key", pa.string(), schema.get("key-id")).with_nullable(False)
            return pa.map_(key, _with_id("value", value, schema.get("value-id"))), _entries(prepare)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            scale = int(schema.get("scale", 0))
            return pa.decimal128(int(schema["precision"]), scale), lambda raw: _decimal(raw, scale)
        if kind == "fixed":
            return pa.binary(int(schema["size"])), None
        if kind == "enum":
            return pa.string(), None
        if kind == "string" and logical == "uuid":
            return pa.binary(16), lambda text: bytes.fromhex(text.replace("-", ""))
        if kind == "long" and logical in _TIMESTAMPS:
            return pa.timestamp(_TIMESTAMPS[logical], "UTC" if schema.get("adjust-to-utc") else None), None
        return _LOGICAL.get((kind, logical), _PLAIN.get(kind)) or self.resolve(kind)[0], None


def _with_id(name: str, kind: pa.DataType, field_id: int | None) -> pa.Field:
    return pa.field(name, kind, metadata=None if field_id is None else {FIELD_ID_KEY: str(field_id)})


def _optional(prepare: Prepare) -> Prepare:
    return None if prepare is None else lambda value: None if value is None else prepare(value)


def _record(columns: Sequence[tuple[str, Prepare]]) -> Prepare:
    changed = [(name, prepare) for name, prepare in columns if prepare is not None]

    def prepare_record(record: dict[str, Any]) -> dict[str, Any]:
        for name, prepare in changed:
            record[name] = prepare(record[name])
        return record

    return prepare_record if changed else None


def _each(prepare: Prepare) -> Prepare:
    return None if prepare is None else lambda values: [prepare(value) for value in values]


def _pairs(key: str, value: str, prepare_key: Prepare, prepare_value: Prepare) -> Prepare:
    """For a map that is stored as an array of key-value records."""
    keys, values = prepare_key or _same, prepare_value or _same
    return lambda records: [(keys(record[key]), values(record[value])) for record in records]


def _entries(prepare: Prepare) -> Prepare:
    values = prepare or _same
    return lambda entries: [(key, values(value)) for key, value in entries.items()]


def _same(value: Any) -> Any:
    return value


def _decimal(raw: bytes, scale: int) -> Decimal:
    if len(raw) > _DECIMAL_BYTES:  # the time of the conversion grows with the square of the length
        raise ValueError(f"a decimal has {len(raw)} bytes")
    return Decimal(decimal_unscaled(raw)).scaleb(-scale, _DECIMALS)


# Container files: Apache Avro 1.12 specification, "Object Container Files".

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
# A schema of 2,000 columns has 0.2 MB.
_LONGEST_HEADER = 8 * 1024 * 1024
_BLOCK = "a block of it"
# Numbers are read byte by byte, and each read of an object store's stream is a request.
_BUFFER_BYTES = 1024 * 1024


class AvroContainer:
    """An open container file: opening it reads the header, :meth:`blocks` reads a block at a time."""

    def __init__(self, stream: pa.NativeFile) -> None:
        """Raises pa.ArrowInvalid if the stream is not a container file or has an unknown codec."""
        self._stream = io.BufferedReader(stream, _BUFFER_BYTES)
        self._size = int(stream.size())
        if self._stream.read(len(_MAGIC)) != _MAGIC:
            raise pa.ArrowInvalid("not an Avro file")
        header: dict[str, bytes] = {}
        while count := self._long():
            if count < 0:  # then the size of the block in bytes follows
                self._long()
            for _ in range(abs(count)):
                key = self._header_text()
                header[key.decode()] = self._header_text()
        self._sync = self._exactly(_SYNC_BYTES)
        if "avro.schema" not in header:
            raise pa.ArrowInvalid("not an Avro file: its header has no schema")
        self.schema: Any = from_json(header["avro.schema"], allow_inf_nan=False)
        self._codec = header.get("avro.codec", b"null").decode()
        if self._codec not in CODECS:
            raise pa.ArrowInvalid(f"Avro codec {self._codec!r} is not known; known: {', '.join(sorted(CODECS))}")

    def blocks(self) -> Iterator[tuple[int, Callable[[], bytes]]]:
        """Every block in file order: its number of records, and a function that returns their decompressed bytes.

        Raises:
            pa.ArrowInvalid: the file is damaged or truncated.
            MetadataUnreadable: a block is too large, compressed or decompressed.
        """
        while self._stream.tell() < self._size:
            count, size = self._long(), self._length()
            require_fitting(_BLOCK, size)
            data = self._exactly(size)
            if self._exactly(_SYNC_BYTES) != self._sync:
                raise pa.ArrowInvalid("damaged Avro file: a block does not end with the file's sync marker")
            yield count, partial(self._decompressed, data)

    def _decompressed(self, data: bytes) -> bytes:
        try:
            return FileLimits(_BLOCK).unpack(self._codec, data)
        except MaintenanceError:
            raise
        except Exception as error:  # every codec raises its own errors
            raise pa.ArrowInvalid(f"damaged Avro file: {error}") from error

    def _header_text(self) -> bytes:
        length = self._length()
        if self._stream.tell() + length > _LONGEST_HEADER:
            raise pa.ArrowInvalid(f"damaged Avro file: its header has more than {_LONGEST_HEADER} bytes")
        return self._exactly(length)

    def _length(self) -> int:
        length = self._long()
        if not 0 <= length <= self._size:
            raise pa.ArrowInvalid("damaged Avro file: a length is out of range")
        return length

    def _long(self) -> int:
        """A zig-zag variable-length integer."""
        value = shift = 0
        while True:
            byte = self._exactly(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise pa.ArrowInvalid("damaged Avro file: a number has too many bytes")

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        if len(data) != size:
            raise pa.ArrowInvalid("truncated Avro file")
        return data
