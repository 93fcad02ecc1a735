"""Whether a file has the Parquet schema that an output would be given: columns, field ids, types, nullability (pure).

Levels and values lie in pages as the schema says, so every difference that changes their meaning counts.  What two
writers may say differently of the same type does not: older writers annotate with ``converted_type`` alone, some
annotate plain integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.footer_structs import FileMetaData
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_structs import LogicalType, SchemaElement, TimeType
from icekeeper.row_group_copy.thrift_bytes import read_struct
from icekeeper.rows.arrow_schema import LeafColumn, arrow_schema, leaf_columns

__all__ = ["ParquetColumn", "ParquetSchema", "check_schema", "parquet_schema"]

_FIXED_LENGTH = 7
"""``Type.FIXED_LEN_BYTE_ARRAY``"""
_PLAIN_INTEGERS = (("integer", 32, True), ("integer", 64, True))
# ConvertedType → what it says as a logical type; MAP_KEY_VALUE (2) says nothing that its place does not.
_CONVERTED: Mapping[int, tuple[Any, ...]] = {
    0: ("string",),
    1: ("map",),
    3: ("list",),
    6: ("date",),
    7: ("time", True, "millis"),
    8: ("time", True, "micros"),
    9: ("timestamp", True, "millis"),
    10: ("timestamp", True, "micros"),
    **{11 + i: ("integer", 8 << i, False) for i in range(4)},
    **{15 + i: ("integer", 8 << i, True) for i in range(4)},
}
_DECIMAL = 5


class ParquetColumn(NamedTuple):
    """A leaf column: the Iceberg column with its Parquet type and path."""

    leaf: LeafColumn
    type: int
    path: list[bytes]


@dataclass(frozen=True, slots=True)
class ParquetSchema:
    """The Parquet schema of outputs, and its leaf columns in order."""

    elements: tuple[SchemaElement, ...]
    columns: tuple[ParquetColumn, ...]


def parquet_schema(schema: Mapping[str, Any]) -> ParquetSchema:
    """The Parquet schema that rewritten files of an Iceberg schema have.

    Raises:
        TableUnsupported: a column type is not rewritten by this version.
    """
    sink = pa.BufferOutputStream()
    arrow = arrow_schema(schema)
    pq.ParquetWriter(sink, arrow, store_schema=False, store_decimal_as_integer=True).close()
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-8:-4], "little")
    elements = read_struct(FileMetaData, data[-8 - length : -8])[0].schema
    leaves = [element for element in elements if element.num_children is None]
    columns = zip(leaf_columns(schema), leaves, _paths(iter(elements)), strict=True)
    return ParquetSchema(
        tuple(elements), tuple(ParquetColumn(leaf, element.type or 0, path[1:]) for leaf, element, path in columns)
    )


def _paths(elements: Iterator[SchemaElement], above: Sequence[bytes] = ()) -> Iterator[list[bytes]]:
    """The path of every leaf below the next element, as lists: a name may hold a dot."""
    element = next(elements)
    path = [*above, element.name]
    if element.num_children is None:
        yield path
    for _ in range(element.num_children or 0):
        yield from _paths(elements, path)


def check_schema(found: Sequence[SchemaElement], wanted: ParquetSchema) -> None:
    """Check a file's schema.

    Raises:
        CannotCopy: it is another one; the message names the first column that differs.
    """
    if not found or found[0].num_children != wanted.elements[0].num_children:
        raise CannotCopy("does not have the table's current columns")
    for theirs, ours in zip_longest(found[1:], wanted.elements[1:]):
        if theirs is None or ours is None or _meaning(theirs) != _meaning(ours):
            name = (theirs or ours).name.decode(errors="replace")
            raise CannotCopy(f"has column '{name}' otherwise than the table's current schema: {_first(theirs, ours)}")


_FACETS = ("name", "field id", "nullability", "children", "type", "length", "annotation")


def _first(theirs: SchemaElement | None, ours: SchemaElement | None) -> str:
    if theirs is None or ours is None:
        return "there are more columns in one of them"
    pairs = zip(_FACETS, _meaning(theirs), _meaning(ours), strict=True)
    return next(f"another {facet}" for facet, a, b in pairs if a != b)


def _meaning(element: SchemaElement) -> tuple[Any, ...]:
    """What of an element says how its pages are read and which column they are; in the order of the facets."""
    length = element.type_length if element.type == _FIXED_LENGTH else None
    children = element.num_children or 0
    return (
        *(element.name, element.field_id, element.repetition_type, children, element.type, length),
        _annotation(element),
    )


def _annotation(element: SchemaElement) -> tuple[Any, ...] | None:
    logical = element.logical_type
    found: tuple[Any, ...] | None = None
    if logical is not None:
        found = _logical(logical)
    elif element.converted_type == _DECIMAL:
        found = ("decimal", element.precision, element.scale or 0)
    elif element.converted_type is not None:
        found = _CONVERTED.get(element.converted_type)
    return None if found in _PLAIN_INTEGERS else found


def _logical(logical: LogicalType) -> tuple[Any, ...]:
    if logical.decimal is not None:
        return "decimal", logical.decimal.precision, logical.decimal.scale
    if logical.integer is not None:
        return "integer", logical.integer.bit_width, logical.integer.is_signed
    if logical.time is not None:
        return "time", *_time(logical.time)
    if logical.timestamp is not None:
        return "timestamp", *_time(logical.timestamp)
    return tuple(name for name in ("string", "map", "list", "date", "uuid") if getattr(logical, name) is not None)


def _time(kind: TimeType) -> tuple[bool, str]:
    unit = kind.unit
    return kind.is_adjusted_to_utc, next((n for n in ("millis", "micros", "nanos") if getattr(unit, n)), "")
