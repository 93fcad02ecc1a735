"""Of which columns of floats a footer must not tell least and greatest value (rule 122, platform 38).

A footer leaves NaN out, and says of zeros that they are between -0.0 and 0.0, whatever their sign (Parquet format,
"Statistics").  Readers built on Arrow take equal bounds for "every row has this one value": then ``IN (0.0)`` misses
zeros, because Arrow looks them up by their bits, and ``is_nan`` and ``<>`` miss the NaN.  Such a column has next to
nothing to prune by inside its file; the bounds in the manifest stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from icekeeper.metadata.single_value import decode
from icekeeper.model import DataFile
from icekeeper.rows.arrow_schema import LeafColumn

__all__ = ["is_misread", "misread_columns"]


def is_misread(least: float, greatest: float, nans: int) -> bool:
    """Whether readers would wrongly take these bounds of a float column for "every row has this one value"."""
    return least == greatest and (least == 0 or nans > 0)


def misread_columns(files: Iterable[DataFile], leaves: Sequence[LeafColumn]) -> frozenset[int]:
    """Field ids of the float columns whose bounds would be misread in some file, by its manifest entry.

    Rows of that file may fill a row group of an output, whose bounds would then be misread too.  A file without bounds
    tells nothing.
    """
    floats = [leaf for leaf in leaves if leaf.is_float and not leaf.repeated]
    return frozenset(leaf.field_id for file in files for leaf in floats if _is_misread_in(file, leaf))


def _is_misread_in(file: DataFile, leaf: LeafColumn) -> bool:
    least = (file.lower_bounds or {}).get(leaf.field_id)
    greatest = (file.upper_bounds or {}).get(leaf.field_id)
    if least is None or greatest is None:
        return False
    try:
        low, high = decode(leaf.iceberg_type, least), decode(leaf.iceberg_type, greatest)
    except ValueError:  # of another type: nothing is known
        return False
    return is_misread(low, high, (file.nan_value_counts or {}).get(leaf.field_id, 0))
