"""Which lineage columns of a row group can be copied as they are (pure).

Both must have a value for every row: a null stands for what a row inherits from its file, and in the new file it would
inherit something else (rule 130).  Statistics must tell that, and the least and greatest value for the manifest.
"""

from __future__ import annotations

import struct

from icekeeper.row_group_copy.footer_structs import ColumnMetaData, RowGroup
from icekeeper.row_group_copy.schema_fit import LINEAGE_COLUMNS

__all__ = ["stored_bounds"]


def stored_bounds(group: RowGroup) -> tuple[tuple[int, int], ...] | None:
    """The least and greatest value of both lineage columns of a row group that has them; ``None``: some value is, or
    may be, null."""
    found = [_bounds(chunk.meta_data) for chunk in group.columns[-LINEAGE_COLUMNS:]]
    known = tuple(bounds for bounds in found if bounds is not None)
    return known if len(known) == len(found) else None


def _bounds(meta: ColumnMetaData) -> tuple[int, int] | None:
    told = meta.statistics
    if told is None or told.null_count != 0 or told.min_value is None or told.max_value is None:
        return None
    if told.is_min_value_exact is False or told.is_max_value_exact is False:
        return None
    return struct.unpack("<q", told.min_value)[0], struct.unpack("<q", told.max_value)[0]
