"""Counts the deleted keys that rows may have of which only the ranges of their columns are known (rule 151) (pure).

A row group's statistics tell such ranges.  A bound only says that no value lies beyond it: it need not occur, so it may
have been cut.  Nobody's bounds contain NaN, and the zeros of either sign are one value to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.rows.equality import EqualityLookup

__all__ = ["ColumnRange", "keys_within"]

_EXACT = Context(prec=76)


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """What is known of the values of a column in some rows; by itself: nothing.

    Bounds are raw values: dates and times as integers, decimals unscaled, texts as their bytes.
    """

    least: Any = None
    """No value is less; ``None``: not known."""
    most: Any = None
    """No value is greater; ``None``: not known."""
    may_be_null: bool = True
    may_have_values: bool = True
    """Whether any row may have a value that is not null."""


_ANYTHING = ColumnRange()


def keys_within(lookup: EqualityLookup, ranges: Mapping[int, ColumnRange], sequence_number: int) -> int:
    """How many deleted keys rows of a data file with that sequence number may have; ``ranges`` are by field id."""
    mask = pc.greater(lookup.newest, sequence_number)
    for field_id, values, places in zip(lookup.field_ids, lookup.values, lookup.places(), strict=True):
        if not pc.any(mask).as_py():
            return 0
        mask = pc.and_(mask, _may_be_among(values, ranges.get(field_id, _ANYTHING)).take(places))
    return int(pc.sum(mask).as_py() or 0)


def _may_be_among(values: pa.Array, known: ColumnRange) -> pa.Array:
    """Per value whether it may be one of the range's."""
    among = pa.repeat(pa.scalar(known.may_have_values), len(values))
    if known.may_have_values:
        for bound, inside in ((known.least, pc.greater_equal), (known.most, pc.less_equal)):
            limit = None if bound is None else _scalar(bound, values.type)
            if limit is not None:
                among = pc.and_(among, inside(values, limit))
        if pa.types.is_floating(values.type):
            among = pc.or_(among, pc.is_nan(values))
    return pc.if_else(pc.is_null(values), known.may_be_null, among)


def _scalar(bound: Any, kind: pa.DataType) -> pa.Scalar | None:
    """A bound as a scalar of the lookup's type; ``None``: it is no value of that type, and bounds nothing."""
    if pa.types.is_decimal(kind):
        bound = Decimal(bound).scaleb(-kind.scale, _EXACT)
    elif pa.types.is_floating(kind) and bound != bound:
        return None
    try:
        return pa.scalar(bound, kind)
    except (pa.ArrowException, OverflowError):
        return None
