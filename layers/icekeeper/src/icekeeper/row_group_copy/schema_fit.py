"""Whether a file has the Parquet schema that an output would be given: columns, field ids, types, nullability (pure).

Levels and values lie in pages as the schema says, so every difference that changes their meaning counts.  What two
writers may say differently of the same type does not: older writers annotate with ``converted_type`` alone, some
annotate plain integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.footer_structs import FileMetaData
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_structs import LogicalType, SchemaElement, TimeType
from icekeeper.row_group_copy.thrift_bytes import read_struct
from icekeeper.rows.arrow_schema import LeafColumn, arrow_schema, leaf_columns
from icekeeper.rows.lineage import LAST_UPDATED_ID, LINEAGE_NAMES, ROW_ID_ID

__all__ = ["LINEAGE_COLUMNS", "ParquetColumn", "ParquetSchema", "fitted_schema", "parquet_schema"]

_FIXED_LENGTH = 7
"""``Type.FIXED_LEN_BYTE_ARRAY``"""
# FieldRepetitionType
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
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
LINEAGE_COLUMNS = len(LINEAGE_NAMES)
"""They are the last ones of a schema that has them."""


class ParquetColumn(NamedTuple):
    """A leaf column: the Iceberg column with its Parquet element and path, and its highest levels."""

    leaf: LeafColumn
    element: SchemaElement
    path: list[bytes]
    definition: int
    repetition: int


@dataclass(frozen=True, slots=True)
class ParquetSchema:
    """The Parquet schema of outputs, and its leaf columns in order."""

    elements: tuple[SchemaElement, ...]
    columns: tuple[ParquetColumn, ...]

    @property
    def nullability(self) -> bytes:
        """Which elements are required, optional or repeated; the levels in pages depend on it."""
        return bytes([0, *(element.repetition_type or 0 for element in self.elements[1:])])

    @property
    def has_lineage(self) -> bool:
        """Whether the last two columns are those of row lineage (rule 17)."""
        return _has_lineage(self.elements)

    @property
    def data_leaves(self) -> list[LeafColumn]:
        """The leaf columns without those of row lineage."""
        leaves = [column.leaf for column in self.columns]
        return leaves[:-LINEAGE_COLUMNS] if self.has_lineage else leaves

    def without_lineage(self) -> ParquetSchema:
        """The schema of files that lack these two columns."""
        root = replace(self.elements[0], num_children=(self.elements[0].num_children or 0) - LINEAGE_COLUMNS)
        return ParquetSchema((root, *self.elements[1:-LINEAGE_COLUMNS]), self.columns[:-LINEAGE_COLUMNS])

    def with_nullability(self, wanted: bytes) -> ParquetSchema:
        """The same schema with another nullability."""
        if wanted == self.nullability:
            return self
        pairs = zip(self.elements[1:], wanted[1:], strict=True)
        elements = [self.elements[0], *(replace(element, repetition_type=kind) for element, kind in pairs)]
        return _with_columns(elements, [column.leaf for column in self.columns])


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
    return _with_columns(elements, leaf_columns(schema))


def _with_columns(elements: Sequence[SchemaElement], leaves: Sequence[LeafColumn]) -> ParquetSchema:
    found = zip(leaves, _leaf_paths(iter(elements), ()), strict=True)
    return ParquetSchema(tuple(elements), tuple(_column(leaf, path) for leaf, path in found))


def _column(leaf: LeafColumn, path: Sequence[SchemaElement]) -> ParquetColumn:
    kinds = [element.repetition_type for element in path]
    levels = sum(kind != _REQUIRED for kind in kinds), kinds.count(_REPEATED)
    return ParquetColumn(leaf, path[-1], [element.name for element in path], *levels)


def _leaf_paths(
    elements: Iterator[SchemaElement], above: tuple[SchemaElement, ...]
) -> Iterator[tuple[SchemaElement, ...]]:
    """What leads to every leaf below the next element, which is the root at first and then in no path."""
    element = next(elements)
    path = (*above, element)
    if element.num_children is None:
        yield path[1:]
    for _ in range(element.num_children or 0):
        yield from _leaf_paths(elements, path)


def fitted_schema(found: Sequence[SchemaElement], wanted: ParquetSchema) -> ParquetSchema:
    """The wanted schema with the nullability that a file has; only columns of row lineage may be missing in the file.

    A column that the table lets be null may be required in a file: Spark writes so what cannot be null in a query.

    Raises:
        CannotCopy: the file has another schema; the message names the first column that differs.
    """
    expected = wanted
    if wanted.has_lineage and not _has_lineage(found):
        expected = wanted.without_lineage()
    if not found or found[0].num_children != expected.elements[0].num_children:
        raise CannotCopy("does not have the table's current columns")
    for theirs, ours in zip_longest(found[1:], expected.elements[1:]):
        if theirs is None or ours is None or not _fits(theirs, ours):
            name = (theirs or ours).name.decode(errors="replace")
            raise CannotCopy(f"has column '{name}' otherwise than the table's current schema: {_first(theirs, ours)}")
    nullability = bytes([0, *(element.repetition_type or 0 for element in found[1:])])
    return wanted.with_nullability(nullability + wanted.nullability[len(nullability) :])


def _has_lineage(elements: Sequence[SchemaElement]) -> bool:
    last = [element.field_id for element in elements[-LINEAGE_COLUMNS:]]
    return last == [ROW_ID_ID, LAST_UPDATED_ID]


def _fits(theirs: SchemaElement, ours: SchemaElement) -> bool:
    if (theirs.repetition_type, ours.repetition_type) == (_REQUIRED, _OPTIONAL):
        theirs = replace(theirs, repetition_type=_OPTIONAL)
    return _meaning(theirs) == _meaning(ours)


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
