"""What a manifest list says of the partitions in a manifest, so that no reader skips one that it needs (rule 37).

Specification, "Manifest Lists", ``field_summary``.  Readers take missing bounds beside values for "all null" and plan
nothing.  So a field has either bounds that hold for every reader, or the manifest has no summaries at all, which
readers understand but Spark's ``manifests`` table does not (platform 19).  :func:`apart` keeps it from coming to that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from icekeeper.metadata.single_value import comparable, encode
from icekeeper.metadata.uuid_order import uuid_bounds, uuid_section
from icekeeper.model import PartitionFieldSummary, PartitionValue

__all__ = ["Section", "apart", "section", "summarise_partitions"]

Section: TypeAlias = tuple[int, ...]
"""Partitions of one section may share a manifest; almost always there is only one."""

Entry = TypeVar("Entry")


def section(types: Sequence[str], partition: Sequence[PartitionValue]) -> Section:
    """Where a partition belongs, nulls with the least uuids; ``types`` are the result types of the spec's fields."""
    return tuple(
        uuid_section(value) if isinstance(value, bytes) else 0
        for kind, value in zip(types, partition, strict=True)
        if kind == "uuid"
    )


def apart(
    types: Sequence[str], entries: Iterable[Entry], partition_of: Callable[[Entry], Sequence[PartitionValue]]
) -> list[list[Entry]]:
    """Entries that may share a manifest, together, in their order."""
    if "uuid" not in types:
        return [list(entries)]
    found: dict[Section, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[section(types, partition_of(entry))].append(entry)
    return [found[key] for key in sorted(found)]


def summarise_partitions(
    types: Sequence[str], partitions: Sequence[tuple[PartitionValue, ...]]
) -> tuple[PartitionFieldSummary, ...] | None:
    """What a manifest list says of the partitions of a manifest's entries; ``None`` where they are of two sections."""
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
