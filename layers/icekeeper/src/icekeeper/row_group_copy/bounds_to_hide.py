"""Of which column chunks a copied footer must not tell the bounds, although the original did (pure).

Bounds of uuids (rule 26), and equal bounds of floats, which readers take for the only value (rule 122): without a count
of NaN in the footer, every such chunk may hold some.
"""

from __future__ import annotations

import struct

from icekeeper.row_group_copy.footer_structs import ColumnMetaData, Statistics
from icekeeper.rows.arrow_schema import LeafColumn

__all__ = ["hides_bounds", "without_bounds"]


def hides_bounds(meta: ColumnMetaData, leaf: LeafColumn) -> bool:
    """Whether readers would misread the bounds of this column chunk."""
    if leaf.repeated:
        return False
    if not leaf.has_bounds:
        return True
    if not leaf.is_float or meta.statistics is None:
        return False
    found = meta.statistics
    return any(_are_equal(least, most) for least, most in ((found.min_value, found.max_value), (found.min, found.max)))


def without_bounds(statistics: Statistics) -> Statistics:
    """The same statistics, of which counts are left."""
    return Statistics(null_count=statistics.null_count, distinct_count=statistics.distinct_count)


def _are_equal(least: bytes | None, most: bytes | None) -> bool:
    if least is None or most is None:
        return False
    if len(least) != len(most) or len(least) not in (4, 8):
        return True  # no float at all: nobody shall believe it
    kind = "<f" if len(least) == 4 else "<d"
    low, high = struct.unpack(kind, least)[0], struct.unpack(kind, most)[0]
    return not low < high
