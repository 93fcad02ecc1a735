"""One number per row that keeps rows with near values in every column near each other: the z-order curve.

Each column is first turned into the rank of its value among quantiles of a sample, so that every bit halves the rows,
however skewed the values are; then the bits of the ranks take turns (Morton 1966) (rule 54).
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

# 1024 ranks per column: with two columns a million cells, some thousand per file of the largest group.
_MAX_BITS = 10
# A signed 64-bit key without its sign.
_KEY_BITS = 62


@dataclass(frozen=True, slots=True)
class ZOrderCurve:
    """Quantiles per column, of values as :class:`SortKeys` gives them, nulls first; and the bits of a rank."""

    quantiles: tuple[pa.Array, ...]
    bits: int

    @property
    def columns(self) -> tuple[KeyColumn, ...]:
        """The curve's number, as the one column to sort by."""
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
    """A curve through the values of a sample, one array per column, rows of the sample in any order."""
    bits = min(_MAX_BITS, _KEY_BITS // len(sample))
    return ZOrderCurve(tuple(_quantiles(_searchable(array), (1 << bits) - 1) for array in sample), bits)


def _quantiles(values: pa.Array, count: int) -> pa.Array:
    """``count`` values that divide the sample into equal parts; fewer distinct ones where a value is frequent."""
    ordered = values.take(pc.array_sort_indices(values, null_placement="at_start"))
    positions = [len(ordered) * (i + 1) // (count + 1) for i in range(count)]
    return ordered.take(pa.array(positions if len(ordered) else [], pa.int64()))


def _searchable(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Arrow cannot search decimals; the nearest double keeps their order, ties apart."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array


@cache
def _spread(bits: int, count: int, number: int) -> pa.Array:
    """By rank: its bits, ``count`` apart; the first column's are the higher ones."""
    offset = count - 1 - number
    return pa.array(
        [sum((rank >> bit & 1) << (bit * count + offset) for bit in range(bits)) for rank in range(1 << bits)],
        pa.int64(),
    )
