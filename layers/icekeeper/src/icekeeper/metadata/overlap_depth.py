"""Measures how many files a lookup on a column must open, from the bounds in manifest entries alone (pure).

A file must be opened for every value between its bounds.  The *overlap depth* at a value is the number of such files:
1 everywhere if the files are sorted by the column, all files if each contains values of the whole range.  Snowflake
reports the same number as the average depth of a clustering key.

A file may contain any value if a bound is missing, NaN or unreadable, or if the lower bound is above the upper bound.
Truncated bounds enclose the values and are used as they are.  A file that contains only nulls is opened for no value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from icekeeper.metadata.entry_columns import metric_of
from icekeeper.metadata.types import comparable, decode
from icekeeper.model import DataFile

Place: TypeAlias = tuple[Any, ...]
"""A value of a column, or a place below or above all values, in Iceberg's order of values."""
BELOW_ALL: Place = (0,)
ABOVE_ALL: Place = (2,)

DEPTH_KEY = "icekeeper.clustering-depth"
"""Snapshot summary: how many files a lookup in the clustering columns opens on average after the rewrite."""

_METRICS = ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
# Infinite floats are clipped to this value.  The range of floats is divided into this many steps.
_LARGEST, _FLOAT_STEPS = 1e300, 2.0**53


@dataclass(frozen=True, slots=True)
class Extent:
    """The values that a file may contain in a column, including both ends, and the file's bytes."""

    low: Place
    high: Place
    size: int


@dataclass(frozen=True, slots=True)
class OverlapDepth:
    """How many files lookups on a column open."""

    files: int
    size: int
    """Bytes of all files."""
    point: float
    """Files opened for a value, on average over the values that the files may contain, weighted by bytes."""


def column_extent(
    file: DataFile, field_id: int, iceberg_type: str, columns: frozenset[int] = frozenset()
) -> Extent | None:
    """The extent of a file on a column; ``None``: the file has no values in the column, or only nulls.

    ``columns``: all columns that are measured, if they are few.
    """
    values, nulls, lower, upper = (metric_of(file, name, columns) for name in _METRICS)
    if file.record_count == 0 or (field_id in values and values[field_id] == nulls.get(field_id)):
        return None
    low = _place(lower.get(field_id), iceberg_type) or BELOW_ALL
    high = _place(upper.get(field_id), iceberg_type) or ABOVE_ALL
    if low > high:
        low, high = BELOW_ALL, ABOVE_ALL
    return Extent(low, high, file.file_size_in_bytes)


def _place(bound: bytes | None, iceberg_type: str) -> Place | None:
    if bound is None:
        return None
    try:
        raw = decode(iceberg_type, bound)
    except ValueError:
        return None
    if isinstance(raw, float) and math.isnan(raw):
        return None
    return 1, comparable(iceberg_type, raw)


def measure_depth(extents: Iterable[Extent]) -> OverlapDepth:
    """The overlap depth of the files with these extents, in n log n steps.

    The values between two neighbouring bounds are a *gap*.  A file's values are assumed to be spread evenly between its
    bounds.  A file with a single value has no gap and counts at that value.
    """
    extents = list(extents)
    points = sorted({end for e in extents for end in (e.low, e.high)} - {BELOW_ALL, ABOVE_ALL})
    size = sum(e.size for e in extents)
    if not points:  # no file has bounds
        return OverlapDepth(len(extents), size, float(len(extents)))
    place = {point: number for number, point in enumerate(points)}
    last = len(points) - 1
    # No value is known beyond the outermost bounds, so open ends extend to them.
    spans = [(place.get(e.low, 0), place.get(e.high, last)) for e in extents]
    starts, ends = [0] * len(points), [0] * len(points)
    for low, high in spans:
        starts[low] += 1
        ends[high] += 1
    begun, ended = list(accumulate(starts)), list(accumulate(ends))
    at_point = [begun[n] - ended[n] + ends[n] for n in range(len(points))]
    in_gap = [begun[n] - ended[n] for n in range(last)]
    at = _coordinates(points)
    by_gap = list(accumulate(in_gap, initial=0))
    by_width = list(accumulate((d * (at[n + 1] - at[n]) for n, d in enumerate(in_gap)), initial=0))

    def mean_at(low: int, high: int) -> float:
        if low == high:
            return float(at_point[low])
        if at[low] == at[high]:  # distinct values with equal coordinates
            return (by_gap[high] - by_gap[low]) / (high - low)
        return float((by_width[high] - by_width[low]) / (at[high] - at[low]))

    return OverlapDepth(len(extents), size, _mean([mean_at(low, high) for low, high in spans], extents))


def total_depth(partitions: Iterable[OverlapDepth]) -> OverlapDepth:
    """The depth over partitions, if a lookup reads a single partition: the average by bytes."""
    parts = [part for part in partitions if part.files]
    size = sum(part.size for part in parts)
    weighted = sum(part.point * part.size for part in parts)
    point = weighted / size if size else max((part.point for part in parts), default=0.0)
    return OverlapDepth(sum(part.files for part in parts), size, point)


def _coordinates(points: Sequence[Place]) -> list[int]:
    """Integers whose distances are those of the values; for bytes, the eight bytes after the common prefix."""
    first, last = points[0][1], points[-1][1]
    if isinstance(first, bytes):
        same = next(
            (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
        )
        return [int.from_bytes(p[1][same : same + 8].ljust(8, b"\0"), "big") for p in points]
    if isinstance(first, tuple):  # floats, see ``comparable``
        lowest, highest = (max(-_LARGEST, min(_LARGEST, end[0])) for end in (first, last))
        step = max((highest - lowest) / _FLOAT_STEPS, 5e-324)
        return [int((max(-_LARGEST, min(_LARGEST, p[1][0])) - lowest) / step) for p in points]
    return [int(p[1]) for p in points]


def _mean(values: Sequence[float], extents: Sequence[Extent]) -> float:
    """The mean weighted by bytes; unweighted if all sizes are 0 (unknown)."""
    size = sum(e.size for e in extents)
    if not size:
        return sum(values) / len(values)
    return sum(value * e.size for value, e in zip(values, extents, strict=True)) / size
