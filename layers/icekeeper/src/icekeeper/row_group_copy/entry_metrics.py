"""The metrics of a copy's manifest entry, from the entries of its inputs and their footers (rule 25) (pure).

Sizes and the number of values are in the footers, nulls in most.  NaN and bounds come from the entries, whose bounds
may be cut and are right still: the least lower bound lies below every value.  A column that holds nothing with bounds
in one input has those of the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from icekeeper.metadata.single_value import comparable, decode, encode, truncated_lower, truncated_upper
from icekeeper.model import DataFile
from icekeeper.row_group_copy.evidence import RowGroupFacts
from icekeeper.row_group_copy.lineage_facts import LineageFacts
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.rows.arrow_schema import LeafColumn
from icekeeper.rows.lineage import LAST_UPDATED_ID, ROW_ID_ID

__all__ = ["check_metrics", "lacks_bounds", "merged_metrics", "with_lineage_bounds"]


def check_metrics(entry: DataFile, leaves: Sequence[LeafColumn], modes: Mapping[int, str]) -> None:
    """Check that a copy's entry will tell as much as that of a rewritten file.

    Raises:
        CannotCopy: the file's entry lacks something that only decoding would find out.
    """
    for leaf in leaves:
        if leaf.repeated or modes[leaf.field_id] == "none":
            continue
        if leaf.field_id not in (entry.null_value_counts or {}):
            raise CannotCopy(f"has a manifest entry that does not count the nulls of column {leaf.name}")
        if leaf.is_float and leaf.field_id not in (entry.nan_value_counts or {}):
            raise CannotCopy(f"has a manifest entry that does not count the NaN of column {leaf.name}")
        if lacks_bounds(entry, leaf, modes[leaf.field_id]):
            raise CannotCopy(f"has a manifest entry without bounds of column {leaf.name}")


def lacks_bounds(entry: DataFile, leaf: LeafColumn, mode: str) -> bool:
    """Whether an output's entry has bounds of a column, and this one does not although there are values."""
    if leaf.repeated or mode in ("none", "counts") or not leaf.has_bounds:
        return False
    return _bound(entry.lower_bounds, leaf) is None and not _has_nothing_to_bound(entry, leaf)


def merged_metrics(
    entries: Sequence[DataFile],
    row_groups: Sequence[RowGroupFacts],
    leaves: Sequence[LeafColumn],
    modes: Mapping[int, str],
) -> dict[str, Any]:
    """The metric fields of a :class:`.DataFile` with the rows of all ``entries``, which ``row_groups`` hold.

    ``modes`` say how much is told of each column: ``none``, ``counts``, ``truncate(n)`` or ``full``.
    """
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls = _sums(entries, leaves, lambda entry: entry.null_value_counts)
    nans = _sums(entries, [leaf for leaf in leaves if leaf.is_float], lambda entry: entry.nan_value_counts)
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for number, leaf in enumerate(leaves):
        i, mode = leaf.field_id, modes[leaf.field_id]
        if mode == "none":
            nulls.pop(i, None), nans.pop(i, None)
            continue
        sizes[i] = sum(group.pieces[number].size for group in row_groups)
        if leaf.repeated:
            nulls.pop(i, None), nans.pop(i, None)
            continue
        values[i] = sum(group.values[number] for group in row_groups)
        counted = [count for group in row_groups if (count := group.nulls[number]) is not None]
        if len(counted) == len(row_groups):
            nulls[i] = sum(counted)
        bounds = None if mode == "counts" or not leaf.has_bounds else _bounds(entries, leaf)
        if bounds is not None:
            lower[i], most = _cut(leaf.iceberg_type, bounds, mode)
            if most is not None:
                upper[i] = most
    return {
        "column_sizes": sizes,
        "value_counts": values,
        "null_value_counts": nulls,
        "nan_value_counts": nans,
        "lower_bounds": lower,
        "upper_bounds": upper,
    }


def with_lineage_bounds(
    metrics: Mapping[str, Any], row_groups: Sequence[LineageFacts], modes: Mapping[int, str]
) -> dict[str, Any]:
    """These metrics with the bounds of the lineage columns, which the entries of inputs need not have."""
    lower, upper = dict(metrics["lower_bounds"]), dict(metrics["upper_bounds"])
    for number, i in enumerate((ROW_ID_ID, LAST_UPDATED_ID)):
        if modes[i] not in ("none", "counts"):
            lower[i] = encode("long", min(group.bounds[number][0] for group in row_groups))
            upper[i] = encode("long", max(group.bounds[number][1] for group in row_groups))
    return {**metrics, "lower_bounds": lower, "upper_bounds": upper}


def _sums(
    entries: Sequence[DataFile],
    leaves: Sequence[LeafColumn],
    counts_of: Callable[[DataFile], Mapping[int, int] | None],
) -> dict[int, int]:
    """The sum of a count for every column of which each entry has one."""
    counts = [counts_of(entry) or {} for entry in entries]
    ids = [leaf.field_id for leaf in leaves]
    return {i: sum(one[i] for one in counts) for i in ids if all(i in one for one in counts)}


def _bounds(entries: Sequence[DataFile], leaf: LeafColumn) -> tuple[bytes, bytes | None] | None:
    """The bounds of a column over all entries; no upper one where an entry has a lower one only."""
    lows: list[bytes] = []
    highs: list[bytes | None] = []
    for entry in entries:
        low = _bound(entry.lower_bounds, leaf)
        if low is not None:
            lows.append(low)
            highs.append(_bound(entry.upper_bounds, leaf))
        elif not _has_nothing_to_bound(entry, leaf):
            return None
    kind = leaf.iceberg_type
    try:
        values = [decode(kind, low) for low in lows]
        most = [decode(kind, high) for high in highs if high is not None]
    except ValueError:  # of another type, or no text
        return None
    if not values:
        return None

    def order(value: Any) -> Any:
        return comparable(kind, value)

    # Encoded anew: the bounds of a promoted type may have their old width (rule 22).
    highest = encode(kind, max(most, key=order)) if len(most) == len(highs) else None
    return encode(kind, min(values, key=order)), highest


def _bound(bounds: Mapping[int, bytes] | None, leaf: LeafColumn) -> bytes | None:
    """A bound of a column, if it bounds anything: NaN says that the writer knew none, and no order is right for it.

    Source: Iceberg-Java, ``InclusiveMetricsEvaluator`` ("NaN indicates unreliable bounds").
    """
    found = (bounds or {}).get(leaf.field_id)
    if found is None or not leaf.is_float:
        return found
    try:
        return None if math.isnan(decode(leaf.iceberg_type, found)) else found
    except ValueError:
        return None


def _has_nothing_to_bound(entry: DataFile, leaf: LeafColumn) -> bool:
    values = (entry.value_counts or {}).get(leaf.field_id)
    nulls = (entry.null_value_counts or {}).get(leaf.field_id)
    nans = (entry.nan_value_counts or {}).get(leaf.field_id, 0) if leaf.is_float else 0
    return values is not None and nulls is not None and values == nulls + nans


def _cut(kind: str, bounds: tuple[bytes, bytes | None], mode: str) -> tuple[bytes, bytes | None]:
    least, most = bounds
    if mode == "full":
        return bounds
    length = int(re.sub(r"\D", "", mode))
    return truncated_lower(kind, least, length), None if most is None else truncated_upper(kind, most, length)
