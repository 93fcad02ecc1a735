"""Gives each row its cell on a z-order curve, which keeps rows near each other whose values are near.

A z-order curve takes turns with the bits of its columns (Morton 1966).  Here every bit is fitted to a sample: it halves
the rows that have the same bits before it, at their median in the column whose turn it is (a k-d tree, Bentley 1975).
So neither skewed values nor columns that depend on each other leave cells empty, and any power of two of files that
divides the curve evenly gets bounds that do not overlap (rule 54).
Iceberg-Java interleaves the leading bytes of the values themselves instead, which a skewed column or a common string
prefix spoils.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.operations.compaction.recipe import KeyColumn

__all__ = ["CURVE_BITS", "ZOrderCurve", "fit_curve"]

CURVE_BITS = 12
"""Bits of a cell: Arrow sorts that many by counting, and a sample of 100,000 rows has 24 in each of 4,096 cells."""
# Values become their rank among so many quantiles of a sample, which Arrow compares faster than text.
_QUANTILES = 1023
_RANKS = _QUANTILES + 1
# Beyond this share in the larger half, another column is asked.
_EVEN_ENOUGH = 0.55


@dataclass(frozen=True, slots=True)
class _Level:
    """How one bit is found, for each combination of the bits before it."""

    columns: pa.Array
    """The column whose rank is compared."""
    medians: pa.Array
    """Ranks from here on have the bit set."""

    def cells(self, ranks: Sequence[pa.Array], cells: pa.Array) -> pa.Array:
        """The cells of rows with this bit behind the ones before."""
        bits = pc.greater_equal(self._compared(ranks, cells), self.medians.take(cells)).cast(pa.int16())
        return pc.add(pc.add(cells, cells), bits)

    def _compared(self, ranks: Sequence[pa.Array], cells: pa.Array) -> pa.Array:
        """The ranks of each row in the column that tells its bit."""
        of_all = self.columns[0].as_py()
        if pc.all(pc.equal(self.columns, of_all)).as_py():
            return ranks[of_all]  # several times as fast as a choice by row
        return pc.choose(self.columns.take(cells), *ranks)


@dataclass(frozen=True, slots=True)
class ZOrderCurve:
    """A curve through columns of sort keys."""

    quantiles: tuple[pa.Array, ...]
    """Per column: ascending values (of :class:`.SortKeys`), nulls first."""
    levels: tuple[_Level, ...]
    """The highest bit first."""

    @property
    def columns(self) -> tuple[KeyColumn, ...]:
        """The cell, as the one column to sort by."""
        return (KeyColumn(0),)

    def keys(self, arrays: Sequence[pa.Array]) -> pa.Array:
        """The cell of each row, below ``2 ** CURVE_BITS``, never null."""
        ranks = [_ranks(quantiles, array) for quantiles, array in zip(self.quantiles, arrays, strict=True)]
        cells = pa.repeat(pa.scalar(0, pa.int16()), len(ranks[0]))
        for level in self.levels:
            cells = level.cells(ranks, cells)
        # A small sample tells only the first bits.
        return pc.shift_left(cells, pa.scalar(CURVE_BITS - len(self.levels), pa.int16()))


def fit_curve(sample: Sequence[pa.Array]) -> ZOrderCurve:
    """A curve fitted to a sample: one array per column, the rows in any order."""
    quantiles = tuple(_quantiles(_searchable(array)) for array in sample)
    curve = ZOrderCurve(quantiles, ())
    ranks = [_ranks(some, array) for some, array in zip(quantiles, sample, strict=True)]
    cells = pa.repeat(pa.scalar(0, pa.int16()), len(ranks[0]))
    turns = [0]
    while len(curve.levels) < min(CURVE_BITS, len(cells).bit_length() - 1):
        halvings = [_halvings(column, cells, len(turns)) for column in ranks]
        chosen = [_choose(turn, of_columns) for turn, *of_columns in zip(turns, *halvings, strict=True)]
        level = _Level(
            pa.array([column for column, _ in chosen], pa.int64()),
            pa.array([halving.median for _, halving in chosen], pa.int16()),
        )
        curve = ZOrderCurve(quantiles, (*curve.levels, level))
        cells = level.cells(ranks, cells)
        turns = [(column + 1) % len(ranks) for column, _ in chosen for _ in range(2)]
    return curve


class _Halving(NamedTuple):
    """How one column divides the rows that have the same bits so far."""

    median: int
    """The rank that divides them most evenly; ranks from here on are above."""
    share: float
    """Of the larger part."""


# All ranks are below.
_UNDIVIDED = _Halving(_RANKS, 1.0)


def _halvings(ranks: pa.Array, cells: pa.Array, count: int) -> list[_Halving]:
    """How a column divides the rows of each of ``count`` cells."""
    keys = pc.add(pc.multiply(cells.cast(pa.int64()), _RANKS), ranks.cast(pa.int64()))
    keys = keys.take(pc.array_sort_indices(keys))
    starts = pc.search_sorted(keys, pa.array(range(0, (count + 1) * _RANKS, _RANKS), pa.int64())).to_pylist()
    middles = [(start + end) // 2 for start, end in pairwise(starts)]
    found = keys.take(pa.array([min(middle, len(keys) - 1) for middle in middles if len(keys)], pa.int64()))
    below = pc.search_sorted(keys, found).to_pylist()
    up_to = pc.search_sorted(keys, found, side="right").to_pylist()
    halvings = []
    for cell, key, low, high in zip(range(count), found.to_pylist(), below, up_to, strict=False):
        start, rows = starts[cell], starts[cell + 1] - starts[cell]
        is_low = abs(2 * (low - start) - rows) <= abs(2 * (high - start) - rows)
        part = (low if is_low else high) - start
        if not 0 < part < rows:
            halvings.append(_UNDIVIDED)
        else:
            halvings.append(_Halving(key % _RANKS + (not is_low), max(part, rows - part) / rows))
    return halvings or [_UNDIVIDED] * count


def _choose(turn: int, halvings: Sequence[_Halving]) -> tuple[int, _Halving]:
    """The column to halve by: whose turn it is, or the first after it that divides evenly, or the best."""
    in_turn = [(n % len(halvings), halvings[n % len(halvings)]) for n in range(turn, turn + len(halvings))]
    for column, halving in in_turn:
        if halving.share <= _EVEN_ENOUGH:
            return column, halving
    return min(in_turn, key=lambda one: one[1].share)


def _quantiles(values: pa.Array) -> pa.Array:
    """Values that divide the sample into equal parts, ascending; a frequent value is repeated."""
    ordered = values.take(pc.array_sort_indices(values, null_placement="at_start"))
    positions = [len(ordered) * (i + 1) // (_QUANTILES + 1) for i in range(_QUANTILES)]
    return ordered.take(pa.array(positions if len(ordered) else [], pa.int64()))


def _ranks(quantiles: pa.Array, array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """How many of the quantiles are at or below each value; nulls are below all."""
    return pc.fill_null(pc.search_sorted(quantiles, _searchable(array), side="right"), 0).cast(pa.int16())


def _searchable(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Arrow cannot search decimals: the nearest doubles have the same order, though some become equal."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array
