"""Gives each row its position on a z-order curve, which keeps rows near each other whose values are near.

Each value is first replaced by its rank among the quantiles of a sample, so that every bit halves the rows, however
skewed the values are; then the bits of the ranks are interleaved (Morton 1966) (rule 54).
Iceberg-Java interleaves the leading bytes of the values themselves instead, which a skewed column or a common string
prefix spoils.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.operations.compaction.recipe import KeyColumn

__all__ = ["ZOrderCurve", "fit_curve"]

# 1024 ranks per column: two columns make a million cells, some thousand for each file of the largest group.
_MAX_BITS = 10
# A signed 64-bit key without its sign.
_KEY_BITS = 62


@dataclass(frozen=True, slots=True)
class ZOrderCurve:
    """A curve through columns of sort keys."""

    quantiles: tuple[pa.Array, ...]
    """Per column: ascending values (of :class:`.SortKeys`), nulls first."""
    bits: int
    """Bits of a rank."""

    @property
    def columns(self) -> tuple[KeyColumn, ...]:
        """The position on the curve, as the one column to sort by."""
        return (KeyColumn(0),)

    def keys(self, arrays: Sequence[pa.Array]) -> pa.Array:
        """The position of each row on the curve, never null."""
        total: pa.Array | None = None
        for number, (array, quantiles) in enumerate(zip(arrays, self.quantiles, strict=True)):
            ranks = pc.fill_null(pc.search_sorted(quantiles, _searchable(array), side="right"), 0)
            part = _spread(self.bits, len(self.quantiles), number).take(ranks)
            total = part if total is None else pc.bit_wise_or(total, part)
        return total


def fit_curve(sample: Sequence[pa.Array]) -> ZOrderCurve:
    """A curve fitted to a sample: one array per column, the rows in any order."""
    bits = min(_MAX_BITS, _KEY_BITS // len(sample))
    return ZOrderCurve(tuple(_quantiles(_searchable(array), (1 << bits) - 1) for array in sample), bits)


def _quantiles(values: pa.Array, count: int) -> pa.Array:
    """``count`` values that divide the sample into equal parts, ascending; a frequent value is repeated."""
    ordered = values.take(pc.array_sort_indices(values, null_placement="at_start"))
    positions = [len(ordered) * (i + 1) // (count + 1) for i in range(count)]
    return ordered.take(pa.array(positions if len(ordered) else [], pa.int64()))


def _searchable(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Arrow cannot search decimals: the nearest doubles have the same order, though some become equal."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array


@cache
def _spread(bits: int, count: int, number: int) -> pa.Array:
    """For every rank of column ``number`` its bits, spread ``count`` apart; the first column has the higher bits."""
    offset = count - 1 - number
    return pa.array(
        [sum((rank >> bit & 1) << (bit * count + offset) for bit in range(bits)) for rank in range(1 << bits)],
        pa.int64(),
    )
