"""Sorts rows by integer keys, by counting digits (pure).

Arrow compares rows key by key, unless a single key has few different values: then it counts them, several times as
fast.  So the keys of a row are packed into one number, each with as many bits as its values need, and that number is
sorted digit by digit, the lowest first (radix sort; every pass keeps the order of the one before).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.operations.compaction.recipe import KeyColumn

__all__ = ["integer_order"]

# Arrow counts up to 4,096 different values, and compares where there may be more.
_DIGIT_BITS = 12
# A signed 64-bit number without its sign.
_MAX_BITS = 63
# From so many digits on, Arrow sorts a single key as fast.
_MAX_BITS_OF_ONE = 48


class _Field(NamedTuple):
    """Where a key stands in the packed number."""

    low: int
    high: int
    bits: int


def integer_order(keys: Sequence[pa.Array | pa.ChunkedArray], columns: Sequence[KeyColumn]) -> pa.Array | None:
    """The indexes of the rows in the order of the keys; rows of equal keys keep their order.

    ``None`` where a key is no integer, or all keys together need too many bits.
    """
    if not all(isinstance(key, pa.Array) and pa.types.is_signed_integer(key.type) for key in keys):
        return None
    fields = [_field(key) for key in keys]
    bits = sum(field.bits for field in fields)
    if bits > (_MAX_BITS if len(keys) > 1 else _MAX_BITS_OF_ONE):
        return None
    packed: pa.Array | None = None
    for key, column, field in zip(keys, columns, fields, strict=True):
        number = _number(key, column, field)
        packed = number if packed is None else pc.bit_wise_or(pc.shift_left(packed, field.bits), number)
    return _sorted(packed, bits)


def _field(key: pa.Array) -> _Field:
    bounds = pc.min_max(key).as_py()
    if bounds["min"] is None:
        return _Field(0, 0, 0)
    # One value more, for null.
    return _Field(bounds["min"], bounds["max"], (bounds["max"] - bounds["min"] + bool(key.null_count)).bit_length())


def _number(key: pa.Array, column: KeyColumn, field: _Field) -> pa.Array:
    """The key as a number from 0 that rises in the order of the column."""
    wide = key.cast(pa.int64())
    number = pc.subtract(field.high, wide) if column.descending else pc.subtract(wide, field.low)
    if not key.null_count:
        return number
    if column.nulls_first:
        return pc.fill_null(pc.add(number, 1), 0)
    return pc.fill_null(number, field.high - field.low + 1 if field.bits else 0)


def _sorted(packed: pa.Array, bits: int) -> pa.Array:
    order: pa.Array | None = None
    for shift in range(0, max(1, bits), _DIGIT_BITS):
        digit = pc.bit_wise_and(pc.shift_right(packed, shift), (1 << _DIGIT_BITS) - 1).cast(pa.uint16())
        order = pc.array_sort_indices(digit) if order is None else order.take(pc.array_sort_indices(digit.take(order)))
    return order
