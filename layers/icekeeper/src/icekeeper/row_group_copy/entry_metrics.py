"""The metrics of a copy's manifest entry, from its inputs' entries and footers (rule: metrics-contain-every-value)
(pure).

Sizes and value counts come from footers; null counts, NaN counts and bounds come from the entries.  Truncated bounds
remain correct, because the smallest lower bound is below every value.  An input whose values in a column have no bounds
(nulls, NaN) does not change the bounds of the other inputs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icekeeper.metadata.types import comparable, decode, encode, truncated_lower, truncated_upper
from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.row_group_copy.footer_decisions import RowGroupFacts, has_right_statistics
from icekeeper.row_group_copy.footer_structs import CannotCopy
from icekeeper.row_group_copy.lineage import LineageFacts
from icekeeper.rows.arrow_schema import LeafColumn
from icekeeper.rows.read_task import LAST_UPDATED_ID, ROW_ID_ID


def check_metrics(entry: DataFile, leaves: Sequence[LeafColumn], modes: Mapping[int, str]) -> None:
    """Raise CannotCopy unless a copy's entry has the same metrics as the entry of a rewritten file, which can get
    metrics by decoding."""
    for leaf in leaves:
        if leaf.repeated or leaf.is_shape or modes[leaf.field_id] == "none":
            continue
        if leaf.field_id not in (entry.null_value_counts or {}):
            raise CannotCopy(f"has a manifest entry that does not count the nulls of column {leaf.name}")
        if leaf.is_float and leaf.field_id not in (entry.nan_value_counts or {}):
            raise CannotCopy(f"has a manifest entry that does not count the NaN of column {leaf.name}")
        if lacks_bounds(entry, leaf, modes[leaf.field_id]):
            raise CannotCopy(f"has a manifest entry without bounds of column {leaf.name}")


def lacks_bounds(entry: DataFile, leaf: LeafColumn, mode: str) -> bool:
    """Whether this entry lacks bounds of a column that has values and needs bounds in an output's entry."""
    if leaf.repeated or mode in ("none", "counts") or not leaf.has_bounds:
        return False
    return _bound(entry.lower_bounds, leaf) is None and not _has_nothing_to_bound(entry, leaf)


def merged_metrics(
    entries: Sequence[DataFile],
    row_groups: Sequence[RowGroupFacts],
    leaves: Sequence[LeafColumn],
    modes: Mapping[int, str],
) -> dict[str, Any]:
    """The metric fields of a :class:`.DataFile` with the rows of all ``entries``; ``row_groups`` are all row groups.

    ``modes`` are ``none``, ``counts``, ``truncate(n)`` or ``full``, by field id.
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
        # A variant has several leaf columns.
        sizes[i] = sizes.get(i, 0) + sum(group.pieces[number].size for group in row_groups)
        if leaf.repeated:
            nulls.pop(i, None), nans.pop(i, None)
            continue
        values[i] = sum(group.values[number] for group in row_groups)
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
    """These metrics with those of the lineage columns, which the inputs' entries may lack; they hold no null."""
    lower, upper, nulls = (dict(metrics[key]) for key in ("lower_bounds", "upper_bounds", "null_value_counts"))
    for number, i in enumerate((ROW_ID_ID, LAST_UPDATED_ID)):
        if modes[i] != "none":
            nulls[i] = 0
        if modes[i] not in ("none", "counts"):
            lower[i] = encode("long", min(group.bounds[number][0] for group in row_groups))
            upper[i] = encode("long", max(group.bounds[number][1] for group in row_groups))
    return {**metrics, "null_value_counts": nulls, "lower_bounds": lower, "upper_bounds": upper}


def _sums(
    entries: Sequence[DataFile], leaves: Sequence[LeafColumn], counts_of: Callable[[DataFile], Mapping[int, int] | None]
) -> dict[int, int]:
    """The sum of a count for every column with a count in each entry."""
    counts = [counts_of(entry) or {} for entry in entries]
    ids = [leaf.field_id for leaf in leaves]
    return {i: sum(count[i] for count in counts) for i in ids if all(i in count for count in counts)}


def _bounds(entries: Sequence[DataFile], leaf: LeafColumn) -> tuple[bytes, bytes | None] | None:
    """The bounds of a column over all entries; no upper bound if an entry has only a lower bound."""
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
    except ValueError:  # of another type, or not text
        return None
    if not values:
        return None

    def order(value: Any) -> Any:
        return comparable(kind, value)

    # Encode again: the bounds of a promoted type may have their old width (rule: promoted-values-keep-old-width).
    highest = encode(kind, max(most, key=order)) if len(most) == len(highs) else None
    return encode(kind, min(values, key=order)), highest


def _bound(bounds: Mapping[int, bytes] | None, leaf: LeafColumn) -> bytes | None:
    """A bound of a column; ``None`` for NaN, which means that the bound is unreliable.

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


# Entries for some row groups of a file.  Their bounds come from the footer.  The bounds of the whole file would also
# enclose every value, but Iceberg-Java answers ``MIN`` and ``MAX`` from bounds (platform: java-min-max-from-bounds), so
# bounds must not be values of other row groups.


def completed_entry(
    entry: DataFile, file: CopyableFile, leaves: Sequence[LeafColumn], modes: Mapping[int, str]
) -> DataFile:
    """The entry of a whole file, with missing null counts and bounds taken from the footer if its writer is known to
    write correct statistics (rule: footer-bounds-by-known-writers).

    For example, PyIceberg's entries have no bounds of columns in structs.

    Raises:
        CannotCopy: Arrow cannot read the footer.
    """
    nulls = entry.null_value_counts or {}
    wanted = [leaf for leaf in leaves if not leaf.repeated and modes[leaf.field_id] != "none"]
    unknown = {leaf.field_id for leaf in wanted if leaf.field_id not in nulls}
    unbound = {leaf.field_id for leaf in wanted if lacks_bounds(entry, leaf, modes[leaf.field_id])}
    if not unknown and not unbound:
        return entry
    by_footer = part_entry(entry, file, leaves, modes)

    def completed(mine: Mapping[int, Any] | None, theirs: Mapping[int, Any] | None, ids: set[int]) -> dict[int, Any]:
        kept = {i: value for i, value in (mine or {}).items() if i not in ids}
        return kept | {i: value for i, value in (theirs or {}).items() if i in ids}

    return replace(
        entry,
        value_counts=completed(entry.value_counts, by_footer.value_counts, unknown | unbound),
        null_value_counts=completed(nulls, by_footer.null_value_counts, unknown),
        lower_bounds=completed(entry.lower_bounds, by_footer.lower_bounds, unbound),
        upper_bounds=completed(entry.upper_bounds, by_footer.upper_bounds, unbound),
    )


def part_entry(entry: DataFile, part: CopyableFile, leaves: Sequence[LeafColumn], modes: Mapping[int, str]) -> DataFile:
    """The entry of a file with only the row groups of ``part``; it has only metrics that are certain.

    Footers often lack NaN counts, and sometimes null counts.  The count of a part follows from that of the whole file
    only if the latter is zero, or includes every value.

    Raises:
        CannotCopy: Arrow cannot read the footer.
    """
    footer = part.footer.seen_by_arrow()
    groups = [footer.row_group(group.number) for group in part.groups]
    is_right = has_right_statistics(part.created_by)
    cut = _cut_bounds(part, len(leaves))
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    nans: dict[int, int] = {}
    bounds: dict[int, tuple[bytes, bytes]] = {}
    for number, leaf in enumerate(leaves):
        if leaf.repeated:
            continue
        i, chunks = leaf.field_id, [group.column(number) for group in groups]
        statistics: list[Any] = [chunk.statistics if is_right else None for chunk in chunks]
        values[i] = sum(chunk.num_values for chunk in chunks)
        all_values, all_nulls = ((counts or {}).get(i) for counts in (entry.value_counts, entry.null_value_counts))
        if all(stats is not None and stats.has_null_count for stats in statistics):
            nulls[i] = sum(stats.null_count for stats in statistics)
        elif (share := _share(all_nulls, all_values, values[i])) is not None:
            nulls[i] = share
        if leaf.is_float and i in nulls and all_values is not None and all_nulls is not None:
            share = _share((entry.nan_value_counts or {}).get(i), all_values - all_nulls, values[i] - nulls[i])
            if share is not None:
                nans[i] = share
        if leaf.has_bounds and not (modes[i] == "full" and number in cut):
            found = _bounds_of_part(leaf.iceberg_type, statistics)
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


def _share(found: int | None, of_whole: int | None, of_part: int) -> int | None:
    """The count of a part, if the count ``found`` of the whole is zero or all values."""
    if found == 0:
        return 0
    return of_part if found is not None and found == of_whole else None


def _bounds_of_part(kind: str, statistics: Sequence[Any]) -> tuple[bytes, bytes] | None:
    """The smallest and largest value by the statistics of row groups; ``None``: not known, or there are no values."""
    lows, highs = [], []
    for stats in statistics:
        if stats is not None and stats.has_min_max:
            lows.append(stats.min_raw)
            highs.append(stats.max_raw)
        elif stats is None or not stats.has_null_count or stats.num_values:
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
    """The numbers of the columns with truncated bounds in some row group."""
    found = set()
    for group in part.carried():
        for number, chunk in enumerate(group.columns[:count]):
            stats = chunk.meta_data.statistics
            if stats is not None and False in (stats.is_min_value_exact, stats.is_max_value_exact):
                found.add(number)
    return frozenset(found)
