"""The possible values of a column in rows whose partition or column bounds are known (pure).

Source: specification, "Partition Transforms" and "Scan Planning".  Possible values include those of writers with known
errors: Java's ``truncate`` underflows at the end of an integer type (rule: drop-only-fully-matched-partitions), and
releases before Iceberg 0.13 rounded up times before 1970 (Java, ``ProjectionUtil.fixInclusiveTimeProjection``).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from icekeeper.metadata.entry_columns import metric_of
from icekeeper.metadata.transforms import MICROS_PER_DAY, NO_BUCKETS, is_known, span_of
from icekeeper.metadata.types import (
    FLOATS,
    INTEGER_BITS,
    TIMESTAMPS,
    UNITS_PER_DAY,
    decimal_unscaled,
    decode,
    encode,
    truncated_upper,
)
from icekeeper.model import DataFile, PartitionValue

_METRICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a filter names."""

    field_id: int
    name: str
    kind: str
    """Its primitive type, or ``struct``, ``list`` or ``map``."""
    required: bool


@dataclass(frozen=True, slots=True)
class Values:
    """A range of raw values, and whether nulls and NaN are possible too; decimals are unscaled integers."""

    low: Any = None
    """``None``: no lower limit."""
    high: Any = None
    is_open: bool = False
    """Whether ``high`` itself is outside the range."""
    has_values: bool = True
    """Whether a value that is neither null nor NaN is possible."""
    has_nulls: bool = True
    has_nans: bool = False
    parts: tuple[tuple[str, Any], ...] = ()
    """Transforms of the column, such as ``bucket[16]``, with their known value."""

    @property
    def is_one(self) -> bool:
        """Whether the range is a single value."""
        return self.low is not None and not self.is_open and bool(self.low == self.high)

    def narrowed(self, low: Any, high: Any, *, is_open: bool = False) -> Values:
        """The values of this range that are also between ``low`` and ``high``."""
        if self.low is not None and (low is None or self.low > low):
            low = self.low
        if high is None or (self.high is not None and (self.high, not self.is_open) < (high, not is_open)):
            high, is_open = self.high, self.is_open
        is_empty = low is not None and high is not None and (low > high or (is_open and low == high))
        return replace(self, low=low, high=high, is_open=is_open, has_values=self.has_values and not is_empty)


def anything(column: Column) -> Values:
    """The possible values of a column if nothing is known about it."""
    bits = INTEGER_BITS.get(column.kind)
    low, high = (None, None) if bits is None else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return Values(low, high, has_nulls=not column.required, has_nans=column.kind in FLOATS)


def within_partition(column: Column, fields: Iterable[tuple[str, PartitionValue]]) -> Values:
    """The possible values in a partition; ``fields`` are the partition's transforms of the column, each with its
    value."""
    values = anything(column)
    for transform, value in fields:
        if transform == "void" or not is_known(transform):
            continue
        if value is None:
            return Values(has_values=False)
        values = _within_field(replace(values, has_nulls=False), column.kind, transform, value)
    return values


def within_bounds(column: Column, file: DataFile) -> Values:
    """The possible values in a data file, by its counts and bounds."""
    field_id, is_float = column.field_id, column.kind in FLOATS
    count, nulls, nans, lower, upper = (metric_of(file, name, frozenset({field_id})).get(field_id) for name in _METRICS)
    low, high = bound_value(column.kind, lower), bound_value(column.kind, upper)
    if column.kind == "uuid" and low != high:
        low = high = None  # writers order uuids differently (platform: java-orders-uuids-signed)
    return Values(
        -0.0 if is_float and low == 0.0 else low,
        high,
        has_values=not (count and (nulls == count or nans == count)),
        has_nulls=not column.required and nulls != 0,
        has_nans=is_float and nans != 0 and not (count and nulls == count),
    )


def transformed(values: Values, kind: str, transform: str) -> Values:
    """The values of ``bucket[N]`` or ``truncate[W]``, applied to ``values`` of type ``kind``."""
    beside = replace(values, low=None, high=None, is_open=False, parts=())
    known = dict(values.parts)
    if transform in known:
        return beside.narrowed(known[transform], known[transform])
    width = _size(transform)
    if transform.startswith("bucket"):
        if values.is_one:
            bucket = bucket_of(kind, width, values.low)
            return beside.narrowed(bucket, bucket)
        return beside.narrowed(0, width - 1)
    low, high = (None if end is None else _truncated(end, width) for end in (values.low, values.high))
    if kind in INTEGER_BITS and (low is None or low < -(2 ** (INTEGER_BITS[kind] - 1))):
        return beside  # the least values are truncated to numbers outside the type
    return beside.narrowed(low, high)


def bucket_of(kind: str, buckets: int, value: Any) -> int:
    """The bucket of a raw value (specification, "Bucket Transform Details")."""
    if kind.startswith("decimal"):
        scale = int(kind.partition(",")[2].strip(" )"))
        value = decimal.Decimal(value).scaleb(-scale, decimal.Context(prec=76))
    return int(_bucket_function(kind, buckets)(value))


@lru_cache(maxsize=256)
def _bucket_function(kind: str, buckets: int) -> Callable[[Any], Any]:
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import IcebergType

    return BucketTransform(buckets).transform(TypeAdapter(IcebergType).validate_python(kind))


def _size(transform: str) -> int:
    return int(transform[transform.index("[") + 1 : -1])


def _within_field(values: Values, kind: str, transform: str, value: Any) -> Values:
    if isinstance(value, float) and math.isnan(value):
        return replace(values, has_values=False)
    values = replace(values, has_nans=False)
    if transform == "identity":
        value = decimal_unscaled(value) if kind.startswith("decimal") else value
        return values.narrowed(value, value)
    if transform.startswith("bucket"):
        return replace(values, parts=(*values.parts, (transform, value)))
    if transform.startswith("truncate"):
        return _within_truncated(values, kind, transform, value)
    if kind not in UNITS_PER_DAY:
        return values
    units = UNITS_PER_DAY[kind]
    if kind == "date" and transform == "day":
        return values.narrowed(value, value)
    first, _ = span_of(transform, value - 1 if value <= 0 else value)
    _, after = span_of(transform, value)
    return values.narrowed(first * units // MICROS_PER_DAY, after * units // MICROS_PER_DAY - 1)


def _within_truncated(values: Values, kind: str, transform: str, value: Any) -> Values:
    width = _size(transform)
    if kind in ("string", "binary"):
        values = replace(values, parts=(*values.parts, (transform, value)))
        if len(value) < width:
            return values.narrowed(value, value)
        after = truncated_upper(kind, encode(kind, value) + b"\0", len(value))
        return values.narrowed(value, None if after is None else decode(kind, after), is_open=after is not None)
    first = decimal_unscaled(value)
    if kind in INTEGER_BITS and first % width and first > 0:
        first -= 2 ** INTEGER_BITS[kind]  # it underflowed: it is not a multiple of the width
    if first % width:
        return values
    known = () if kind in INTEGER_BITS and first < -(2 ** (INTEGER_BITS[kind] - 1)) else ((transform, first),)
    return replace(values.narrowed(first, first + width - 1), parts=(*values.parts, *known))


def _truncated(value: Any, width: int) -> Any:
    return value - value % width if isinstance(value, int) else value[:width]


def bound_value(kind: str, bound: bytes | None) -> Any:
    """A bound as a raw value; ``None`` if there is no bound or it cannot be decoded
    (rule: promoted-values-keep-old-width)."""
    if bound is None or (kind in TIMESTAMPS and len(bound) == 4):
        return None
    try:
        value = decode(kind, bound)
    except ValueError:
        return None
    if kind.startswith("decimal"):
        return decimal_unscaled(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def has_buckets(kind: str) -> bool:
    """Whether ``bucket[N]`` can be applied to a column of this type."""
    return kind not in NO_BUCKETS | {"struct", "list", "map"}


def may_hold(values: Values, kind: str, literal: Any) -> bool:
    """Whether ``literal`` may be a value of the column, by its range and the partition's buckets."""
    if (values.low is not None and literal < values.low) or (values.high is not None and literal > values.high):
        return False
    buckets = ((_size(part), bucket) for part, bucket in values.parts if part.startswith("bucket"))
    return all(bucket_of(kind, count, literal) == bucket for count, bucket in buckets)
