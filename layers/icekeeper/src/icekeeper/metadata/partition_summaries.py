"""Summarises for a manifest list the partitions in a manifest, so that no reader skips one that it needs (rule 37).

Specification, "Manifest Lists", ``field_summary``.  Readers take a summary without bounds for "all null" and skip the
manifest.  So either every field has bounds that hold for every reader, or the manifest has no summaries at all, which
readers understand but Spark's ``manifests`` table does not (platform 19).  :func:`split_by_section` avoids the second
case: partitions of one section (:mod:`.uuid_order`) always have bounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from icekeeper.metadata.single_value import comparable, encode
from icekeeper.metadata.uuid_order import uuid_bounds, uuid_section
from icekeeper.model import PartitionFieldSummary, PartitionValue

__all__ = ["Section", "section_of", "split_by_section", "summarise_partitions"]

Section: TypeAlias = tuple[int, ...]
"""One number per uuid field.  Only partitions of one section may share a manifest; most specs have one section."""

Entry = TypeVar("Entry")


def section_of(types: Sequence[str], partition: Sequence[PartitionValue]) -> Section:
    """The section of a partition; null counts as section 0.  ``types`` are the types of the spec's partition values."""
    return tuple(
        uuid_section(value) if isinstance(value, bytes) else 0
        for kind, value in zip(types, partition, strict=True)
        if kind == "uuid"
    )


def split_by_section(
    types: Sequence[str], entries: Iterable[Entry], partition_of: Callable[[Entry], Sequence[PartitionValue]]
) -> list[list[Entry]]:
    """The entries divided by section, in their order: those of one list may share a manifest."""
    if "uuid" not in types:
        return [list(entries)]
    found: dict[Section, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[section_of(types, partition_of(entry))].append(entry)
    return [found[key] for key in sorted(found)]


def summarise_partitions(
    types: Sequence[str], partitions: Sequence[tuple[PartitionValue, ...]]
) -> tuple[PartitionFieldSummary, ...] | None:
    """One summary per partition field; ``None``: the partitions are of two sections, and a field has no bounds."""
    summaries = [_summary(kind, [partition[i] for partition in partitions]) for i, kind in enumerate(types)]
    known = tuple(summary for summary in summaries if summary is not None)
    return known if len(known) == len(types) else None


def _summary(kind: str, values: Sequence[PartitionValue]) -> PartitionFieldSummary | None:
    present = [value for value in values if value is not None]
    numbers = [value for value in present if value == value]  # NaN differs from itself
    bounds = _bounds(kind, numbers) if numbers else (None, None)
    if bounds is None:
        return None
    return PartitionFieldSummary(
        contains_null=len(present) < len(values),
        contains_nan=len(numbers) < len(present),
        lower_bound=bounds[0],
        upper_bound=bounds[1],
    )


def _bounds(kind: str, values: Sequence[PartitionValue]) -> tuple[bytes, bytes] | None:
    if kind == "uuid":
        return uuid_bounds([encode(kind, value) for value in values])
    low, high = (choose(values, key=lambda v: comparable(kind, v)) for choose in (min, max))
    return encode(kind, low), encode(kind, high)
