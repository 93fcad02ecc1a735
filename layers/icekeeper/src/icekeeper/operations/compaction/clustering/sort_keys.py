"""Computes the key columns that rows are sorted by, in types whose Arrow order is Iceberg's order (rule 30).

Source: specification, "Sorting" and "Partition Transforms"; Java's ``Comparators``.  Floats become integers of the same
order: -0.0 below 0.0, NaN above all numbers.  Where only the order of a transform's results matters (truncated numbers,
years of dates), any number that rises with the result is used instead of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    LongType,
    TimestampNanoType,
    TimestampType,
    TimeType,
    UUIDType,
)

from icekeeper.errors import TableUnsupported
from icekeeper.operations.compaction.clustering.integer_order import integer_order
from icekeeper.operations.compaction.recipe import KeyColumn

__all__ = ["SortKeys", "column_values", "sorted_indices"]

_KeyFunction: TypeAlias = Callable[[pa.Array], pa.Array]
_HOUR_S, _DAY_S = 3600, 86_400
_MICROS, _NANOS = 10**6, 10**9
# The type as which a bucket transform hashes raw values: int and date hash as long (specification, appendix B).
_HASHED: Mapping[str, IcebergType] = {
    "int": LongType(),
    "long": LongType(),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestampType(),
    "timestamp_ns": TimestampNanoType(),
    "timestamptz_ns": TimestampNanoType(),
    "string": BinaryType(),  # both hash their bytes, and text need not be UTF-8
    "binary": BinaryType(),
    "uuid": UUIDType(),
}


class SortKeys:
    """Computes the key columns of batches of one Iceberg schema."""

    def __init__(self, columns: Sequence[KeyColumn], table_schema: Mapping[str, Any]) -> None:
        """Raises TableUnsupported when a column is not in the schema or its transform is not known."""
        self._sources = [_source(column, table_schema) for column in columns]

    def of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The key columns of a batch, its rows in the same order."""
        return [to_key(_child(batch.column(path[0]), path[1:])) for path, to_key in self._sources]


def sorted_indices(keys: Sequence[pa.Array | pa.ChunkedArray], columns: Sequence[KeyColumn]) -> pa.Array:
    """The indexes of the rows in the order of the key columns; rows of equal keys keep their order.

    Raises:
        ValueError: there are no keys.
    """
    if not keys:
        raise ValueError("a sort order without columns orders nothing")
    order = integer_order(keys, columns)
    if order is not None:
        return order
    names = [str(number) for number in range(len(keys))]
    directions = [
        (
            name,
            "descending" if column.descending else "ascending",
            "at_start" if column.nulls_first else "at_end",
        )
        for name, column in zip(names, columns, strict=True)
    ]
    return pc.sort_indices(pa.table(list(keys), names=names), sort_keys=directions)


def column_values(field_id: int, schema: Mapping[str, Any], batch: pa.RecordBatch) -> pa.Array:
    """The values of a column of the batch, which may lie in structs.

    Raises:
        TableUnsupported: the column is not in the schema.
    """
    path, _ = _find(field_id, schema["fields"])
    return _child(batch.column(path[0]), path[1:])


def _source(column: KeyColumn, schema: Mapping[str, Any]) -> tuple[list[int], _KeyFunction]:
    path, kind = _find(column.field_id, schema["fields"])
    return path, _key_function(column.transform, kind)


def _find(field_id: int, fields: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
    """The path to a column, as positions from the top through structs, and its Iceberg type."""
    stack: list[tuple[list[int], Sequence[Mapping[str, Any]]]] = [([], fields)]
    while stack:
        path, level = stack.pop()
        for index, field in enumerate(level):
            if int(field["id"]) == field_id and isinstance(field["type"], str):
                return [*path, index], field["type"]
            if isinstance(field["type"], Mapping) and field["type"]["type"] == "struct":
                stack.append(([*path, index], field["type"]["fields"]))
    raise TableUnsupported(f"column {field_id}, which rows are to be ordered by, is not in the schema")


def _child(array: pa.Array, path: Sequence[int]) -> pa.Array:
    for index in path:
        array = pc.struct_field(array, [index])  # nulls of the parent are nulls here
    return array


def _key_function(transform: str, kind: str) -> _KeyFunction:
    name, _, number = transform.rstrip("]").partition("[")
    if name == "identity":
        return lambda array: _ordered(array)
    if name == "bucket":
        return _by_value(BucketTransform(int(number)).transform(_hashed_type(kind)), pa.int32())
    if name == "truncate":
        return _truncation(int(number), kind)
    if name in ("year", "month"):
        return lambda array: _months(_utc(array), whole_years=name == "year")
    if name in ("day", "hour"):
        seconds = _DAY_S if name == "day" else _HOUR_S
        if kind == "date":
            return lambda array: _ordered(array)
        return lambda array: _floor_divided(_ordered(array), seconds * (_NANOS if "_ns" in kind else _MICROS))
    raise TableUnsupported(f"sort transform {transform} is not known to this version of Icekeeper")


def _ordered(array: pa.Array) -> pa.Array:
    """The values in a type that Arrow sorts as Iceberg does."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_float32(kind):
        return _float_order(array, pa.int32(), 2**31 - 1)
    if pa.types.is_float64(kind):
        return _float_order(array, pa.int64(), 2**63 - 1)
    if pa.types.is_date32(kind):
        return array.view(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return array.view(pa.int64())
    if pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    # As bytes, which have the same order, because some writers write text that is no UTF-8 (rule 217).
    return array.view(pa.binary()) if pa.types.is_string(kind) else array


def _float_order(array: pa.Array, bits_type: pa.DataType, mask: int) -> pa.Array:
    """Floats as integers of the same order.

    The bits of negative floats fall as the numbers rise, so all of them but the sign are inverted.
    """
    one_nan = pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)
    bits = one_nan.view(bits_type)
    return pc.if_else(pc.less(bits, pa.scalar(0, bits_type)), pc.bit_wise_xor(bits, pa.scalar(mask, bits_type)), bits)


def _utc(array: pa.Array) -> pa.Array:
    """Timestamps without their zone: transforms take them in UTC."""
    return array.cast(pa.timestamp(array.type.unit)) if pa.types.is_timestamp(array.type) else array


def _months(array: pa.Array, *, whole_years: bool) -> pa.Array:
    years = pc.year(array)
    return years if whole_years else pc.add(pc.multiply(years, 12), pc.month(array))


def _floor_divided(array: pa.Array, divisor: int) -> pa.Array:
    """The quotients rounded down, as transforms do it; Arrow rounds towards zero."""
    wide = array.cast(pa.int64())
    quotient = pc.divide(wide, divisor)
    is_below = pc.and_(pc.less(wide, 0), pc.not_equal(pc.multiply(quotient, divisor), wide))
    return pc.subtract(quotient, is_below.cast(pa.int64()))


def _truncation(width: int, kind: str) -> _KeyFunction:
    if kind in ("int", "long"):
        return lambda array: _floor_divided(array, width)
    if kind == "string":
        return lambda array: _first_characters(array, width)
    if kind == "binary":
        return lambda array: pc.binary_slice(array, 0, width)
    decimal = _decimal_type(kind)
    # Truncating downwards may need a digit more than the type has.
    target = pa.decimal256(decimal.precision + 1, decimal.scale)
    return _by_value(TruncateTransform(width).transform(decimal), target)


def _first_characters(array: pa.Array, width: int) -> pa.Array:
    """So many characters of texts, as bytes; a byte that is of no character counts as one."""
    try:
        return pc.utf8_slice_codeunits(array, 0, width).view(pa.binary())
    except pa.ArrowInvalid:
        ways = ("utf-8", "surrogateescape")
        return _by_value(lambda value: value and value.decode(*ways)[:width].encode(*ways), pa.binary())(array)


def _by_value(function: Callable[[Any], Any], result: pa.DataType) -> _KeyFunction:
    """A key function that applies a Python function once per distinct value."""

    def to_key(array: pa.Array) -> pa.Array:
        is_decimal = pa.types.is_decimal(array.type)
        plain = (array if is_decimal else _ordered(array)).dictionary_encode()
        values = pa.array([function(value) for value in plain.dictionary.to_pylist()], result)
        return values.take(plain.indices)

    return to_key


def _hashed_type(kind: str) -> IcebergType:
    if match := re.fullmatch(r"fixed\[(\d+)\]", kind):
        return FixedType(int(match[1]))
    return _decimal_type(kind) if kind.startswith("decimal") else _HASHED[kind]


def _decimal_type(kind: str) -> DecimalType:
    precision, scale = (int(number) for number in re.findall(r"\d+", kind))
    return DecimalType(precision, scale)
