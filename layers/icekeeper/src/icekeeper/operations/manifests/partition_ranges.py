"""Which partitions a manifest may hold, by its summaries in the manifest list (pure).

Specification, "Manifest Lists", ``field_summary``: a manifest is opened for a partition when every field's bounds admit
its value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from icekeeper.metadata.single_value import Section, comparable, decode, uuid_section
from icekeeper.model import ManifestFile, PartitionFieldSummary, PartitionValue

__all__ = ["PartitionOrder", "PartitionRange", "average_opened", "partition_order", "range_of"]

PartitionOrder: TypeAlias = tuple[tuple[int, Any], ...]
"""Partition values in a form that sorts as they do: nulls first, NaN last."""

_NULL, _NAN = (0, 0), (2, 0)
# Bounds of two sections tell nothing: in one of the two orders of uuids that readers use they are the wrong way round.
_ALL_UUIDS = (1, bytes(16)), (1, b"\xff" * 16)
_BOTH = frozenset(uuid_section(end) for _, end in _ALL_UUIDS)


def partition_order(types: Sequence[str], partition: Sequence[PartitionValue]) -> PartitionOrder:
    """The sort key of a partition; ``types`` are the result types of the spec's fields."""
    return tuple(
        _NULL if value is None else _NAN if value != value else (1, comparable(kind, value))
        for kind, value in zip(types, partition, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _FieldRange:
    has_null: bool
    has_nan: bool | None
    low: tuple[int, Any] | None
    high: tuple[int, Any] | None

    @property
    def ends(self) -> tuple[tuple[int, Any], ...]:
        """Null, NaN and the bounds, as far as it holds them: where most ranges admit a value, one of them begins."""
        special = ((_NULL,) if self.has_null else ()) + ((_NAN,) if self.has_nan is not False else ())
        return (*special, *(end for end in (self.low, self.high) if end is not None))

    def admits(self, value: tuple[int, Any]) -> bool:
        if value == _NULL:
            return self.has_null
        if value == _NAN:
            return self.has_nan is not False
        return self.low is not None and self.high is not None and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The corners of what a manifest may hold; none where its summaries are missing or cannot be read."""

    fields: tuple[_FieldRange, ...] | None
    low: PartitionOrder | None
    high: PartitionOrder | None
    sections: frozenset[Section]
    """Where its partitions belong; where uuids have both signs, the two that nearly all uuids are in."""

    @property
    def is_wide(self) -> bool:
        """Whether it may hold more than one partition."""
        return self.low is None or self.low != self.high

    def admits(self, partition: PartitionOrder) -> bool:
        """Whether a planner that looks for a partition opens the manifest."""
        return self.fields is None or all(f.admits(value) for f, value in zip(self.fields, partition, strict=True))


def range_of(types: Sequence[str], manifest: ManifestFile) -> PartitionRange:
    """The range of a manifest; ``types`` are the result types of its spec's fields."""
    summaries = manifest.partitions
    try:
        if summaries is None or len(summaries) != len(types):
            raise ValueError
        fields = tuple(_field_range(kind, summary) for kind, summary in zip(types, summaries, strict=True))
    except ValueError:  # bounds of another type: whoever wrote them, a planner must open the manifest
        fields = None
    uuids = [i for i, kind in enumerate(types) if kind == "uuid"]
    sections = frozenset(itertools.product(*(_BOTH if fields is None else _sections(fields[i]) for i in uuids)))
    if fields is None:
        return PartitionRange(None, None, None, sections)
    low = tuple(_NULL if f.has_null else f.low or _NAN for f in fields)
    high = tuple(_NAN if f.has_nan else f.high or _NULL for f in fields)
    return PartitionRange(fields, low, high, sections)


def _field_range(kind: str, summary: PartitionFieldSummary) -> _FieldRange:
    low, high = (
        None if bound is None else (1, comparable(kind, decode(kind, bound)))
        for bound in (summary.lower_bound, summary.upper_bound)
    )
    if kind == "uuid" and low and high and uuid_section(low[1]) != uuid_section(high[1]):
        low, high = _ALL_UUIDS
    return _FieldRange(summary.contains_null, summary.contains_nan, low, high)


def _sections(field: _FieldRange) -> frozenset[int]:
    """The sections in which the values of a uuid field lie."""
    found = {uuid_section(end[1]) for end in (field.low, field.high) if end is not None}
    return frozenset(found | {0} if field.has_null else found or {0})


def average_opened(ranges: Sequence[PartitionRange], partitions: Iterable[PartitionOrder]) -> float:
    """How many manifests a planner opens for one of these partitions, on average; 0 without any partition."""
    opened = [sum(found.admits(partition) for found in ranges) for partition in partitions]
    return sum(opened) / len(opened) if opened else 0.0
