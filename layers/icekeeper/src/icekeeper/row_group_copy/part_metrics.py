"""The manifest entry of some row groups of a file, and what that of the whole lacks, by its footer (rule 25) (pure).

Bounds are those that the footer tells of these row groups.  Those of the whole would contain every value too, but
Iceberg-Java answers ``MIN`` and ``MAX`` by them (platform 46): a value that lies in another row group must not be one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from icekeeper.metadata.single_value import comparable, encode
from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.entry_metrics import lacks_bounds
from icekeeper.rows.arrow_schema import LeafColumn

__all__ = ["completed_entry", "part_entry"]

_Counts = dict[int, int]


def completed_entry(
    entry: DataFile, file: CopyableFile, leaves: Sequence[LeafColumn], modes: Mapping[int, str]
) -> DataFile:
    """The entry of a whole file with what it lacks of null counts and bounds, as far as the footer tells it.

    PyIceberg's entries, for one, have no bounds of columns in structs.

    Raises:
        CannotCopy: Arrow cannot read the footer.
    """
    nulls = entry.null_value_counts or {}
    wanted = [leaf for leaf in leaves if not leaf.repeated and modes[leaf.field_id] != "none"]
    unknown = {leaf.field_id for leaf in wanted if leaf.field_id not in nulls}
    unbound = {leaf.field_id for leaf in wanted if lacks_bounds(entry, leaf, modes[leaf.field_id])}
    if not unknown and not unbound:
        return entry
    told = part_entry(entry, file, leaves, modes)

    def completed(mine: Mapping[int, Any] | None, theirs: Mapping[int, Any] | None, ids: set[int]) -> dict[int, Any]:
        kept = {i: value for i, value in (mine or {}).items() if i not in ids}
        return kept | {i: value for i, value in (theirs or {}).items() if i in ids}

    return replace(
        entry,
        value_counts=completed(entry.value_counts, told.value_counts, unknown | unbound),
        null_value_counts=completed(nulls, told.null_value_counts, unknown),
        lower_bounds=completed(entry.lower_bounds, told.lower_bounds, unbound),
        upper_bounds=completed(entry.upper_bounds, told.upper_bounds, unbound),
    )


def part_entry(entry: DataFile, part: CopyableFile, leaves: Sequence[LeafColumn], modes: Mapping[int, str]) -> DataFile:
    """The entry as that of a file with the row groups of ``part`` only, with what is sure of counts and bounds.

    Footers count no NaN, and not always nulls; the count of the whole tells those of a part only where no value, or
    every value, is such a one.

    Raises:
        CannotCopy: Arrow cannot read the footer.
    """
    footer = part.footer.seen_by_arrow()
    groups = [footer.row_group(group.number) for group in part.groups]
    cut = _cut_bounds(part, len(leaves))
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    nans: dict[int, int] = {}
    bounds: dict[int, tuple[bytes, bytes]] = {}
    for number, leaf in enumerate(leaves):
        if leaf.repeated:
            continue
        i, chunks = leaf.field_id, [group.column(number) for group in groups]
        statistics = [chunk.statistics for chunk in chunks]
        values[i] = sum(chunk.num_values for chunk in chunks)
        _count(entry, leaf, statistics, values[i], (nulls, nans))
        if leaf.has_bounds and not (modes[i] == "full" and number in cut):
            found = _bounds(leaf.iceberg_type, statistics)
            if found is not None:
                bounds[i] = found
    return replace(
        entry,
        record_count=part.row_count,
        value_counts=values,
        null_value_counts=nulls,
        nan_value_counts=nans,
        lower_bounds={i: least for i, (least, _) in bounds.items()},
        upper_bounds={i: most for i, (_, most) in bounds.items()},
    )


def _count(
    entry: DataFile,
    leaf: LeafColumn,
    statistics: Sequence[Any],
    values: int,
    into: tuple[dict[int, int], dict[int, int]],
) -> None:
    """Put the nulls and NaN of a column's ``values`` into both dictionaries, as far as they are sure."""
    i, (nulls, nans) = leaf.field_id, into
    all_values, all_nulls = ((counts or {}).get(i) for counts in (entry.value_counts, entry.null_value_counts))
    if all(told is not None and told.has_null_count for told in statistics):
        nulls[i] = sum(told.null_count for told in statistics)
    elif (share := _share(all_nulls, all_values, values)) is not None:
        nulls[i] = share
    if leaf.is_float and i in nulls and all_values is not None and all_nulls is not None:
        share = _share((entry.nan_value_counts or {}).get(i), all_values - all_nulls, values - nulls[i])
        if share is not None:
            nans[i] = share


def _share(found: int | None, of_whole: int | None, of_part: int) -> int | None:
    """How many of a part's values are such as ``found`` of the whole are, if that is none or all of them."""
    if found == 0:
        return 0
    return of_part if found is not None and found == of_whole else None


def _bounds(kind: str, statistics: Sequence[Any]) -> tuple[bytes, bytes] | None:
    """The least and greatest value by the statistics of row groups; ``None``: one does not tell, or there is none."""
    lows, highs = [], []
    for told in statistics:
        if told is not None and told.has_min_max:
            lows.append(told.min_raw)
            highs.append(told.max_raw)
        elif told is None or not told.has_null_count or told.num_values:
            return None
    if not lows or any(isinstance(value, float) and math.isnan(value) for value in (*lows, *highs)):
        return None
    low, high = min(lows, key=lambda v: comparable(kind, v)), max(highs, key=lambda v: comparable(kind, v))
    pairs = zip(lows, highs, strict=True)
    if any(comparable(kind, least) > comparable(kind, most) for least, most in pairs if least != most):
        return None  # their writer compared in another order
    if kind in ("float", "double"):  # a zero has either sign in statistics
        low, high = low or -0.0, high or 0.0
    return encode(kind, low), encode(kind, high)


def _cut_bounds(part: CopyableFile, count: int) -> frozenset[int]:
    """The numbers of the columns of which some row group says that its bounds are no values."""
    found = set()
    for group in part.carried():
        for number, chunk in enumerate(group.columns[:count]):
            told = chunk.meta_data.statistics
            if told is not None and False in (told.is_min_value_exact, told.is_max_value_exact):
                found.add(number)
    return frozenset(found)
