"""The ranges of the columns of a row group by its statistics (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from icekeeper.metadata.single_value import decimal_unscaled
from icekeeper.rows.arrow_schema import LeafColumn
from icekeeper.rows.key_ranges import ColumnRange

__all__ = ["column_ranges"]


def column_ranges(row_group: pq.RowGroupMetaData, leaves: Sequence[LeafColumn]) -> dict[int, ColumnRange]:
    """By field id; ``leaves`` are the first columns of the row group.

    Arrow shows no bounds that their writer is known to have got wrong, or that are of another order than the column's.
    """
    return {leaf.field_id: _range(leaf, row_group.column(number).statistics) for number, leaf in enumerate(leaves)}


def _range(leaf: LeafColumn, told: Any) -> ColumnRange:
    if told is None:
        return ColumnRange()
    may_be_null = not told.has_null_count or told.null_count > 0
    if not told.has_min_max:
        # Bounds are also missing where values are long, or NaN.
        return ColumnRange(may_be_null=may_be_null, may_have_values=not told.has_null_count or told.num_values > 0)
    least, most = _raw(leaf, told.min_raw), _raw(leaf, told.max_raw)
    # NaN, and a least value above the greatest, show that the writer compared in another order.
    if not leaf.has_bounds or not least <= most:
        return ColumnRange(may_be_null=may_be_null)
    return ColumnRange(least, most, may_be_null)


def _raw(leaf: LeafColumn, bound: Any) -> Any:
    return decimal_unscaled(bound) if leaf.iceberg_type.startswith("decimal") else bound
