"""How manifests divide partitions: their ranges, where to cut entries, and which manifests are settled.  Reads no
files.

A planner opens a manifest for a partition if the bounds of every field admit its value (specification, "Manifest
Lists", ``field_summary``).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.types import Section, comparable, decode, uuid_section
from icekeeper.model import ManifestFile, PartitionFieldSummary, PartitionValue

PartitionOrder: TypeAlias = tuple[tuple[int, Any], ...]
"""Sort key of a partition's values: nulls first, NaN last."""

_NULL, _NAN = (0, 0), (2, 0)
# Readers use two orders of uuids.  Bounds in different sections are useless, because one of the two orders reverses
# them.
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

    def admits(self, value: tuple[int, Any]) -> bool:
        if value == _NULL:
            return self.has_null
        if value == _NAN:
            return self.has_nan is not False
        return self.low is not None and self.high is not None and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The partitions that a manifest may hold; ``None`` if its summaries are missing or cannot be read."""

    fields: tuple[_FieldRange, ...] | None
    low: PartitionOrder | None
    high: PartitionOrder | None
    sections: frozenset[Section]
    """The sections of its partitions; if uuids have both signs, the two sections of nearly all uuids."""

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
    except ValueError:  # bounds of another type: a planner must open the manifest
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
    """The sections of a uuid field's values."""
    found = {uuid_section(end[1]) for end in (field.low, field.high) if end is not None}
    return frozenset(found | {0} if field.has_null else found or {0})


def average_opened(ranges: Sequence[PartitionRange], partitions: Iterable[PartitionOrder]) -> float:
    """The average number of manifests that a planner opens for a partition among these; 0 without partitions."""
    opened = [sum(found.admits(partition) for found in ranges) for partition in partitions]
    return sum(opened) / len(opened) if opened else 0.0


# Cuts: entries in partition order are cut into lanes, one per worker, and then into manifests.

Place: TypeAlias = tuple[Section, PartitionOrder]
"""The place of a partition in the order: by section first, because different sections must not share a manifest."""
OrderKey: TypeAlias = tuple[Place, int, str] | tuple[Place]
"""Partition, data sequence number and path; a partition alone sorts before all its entries."""

# A cut may move by this fraction of a manifest to the end of a partition.
_TOLERANCE = 8


def even_cuts(sizes: Sequence[int], ends_partition: Sequence[bool], room: int, most: int) -> list[int]:
    """The ends of the manifests into which blocks of these sizes are put.

    There are as few manifests as ``room`` bytes each allow, at most ``most``, of about even size.  A cut moves to the
    end of a partition if that is near.
    """
    totals = list(itertools.accumulate(sizes))
    count = min(len(sizes), most, max(1, math.ceil(totals[-1] / room))) if sizes else 0
    if not count:
        return []
    even = totals[-1] / count
    cuts: list[int] = []
    start = 0
    for number in range(1, count):
        first, last = start + 1, len(sizes) - (count - number)
        aim = number * even
        nearest = min(max(bisect_left(totals, aim) + 1, first), last)
        if nearest > first and aim - totals[nearest - 2] < totals[nearest - 1] - aim:
            nearest -= 1
        low = max(first, bisect_left(totals, aim - even / _TOLERANCE) + 1)
        high = min(last, bisect_left(totals, aim + even / _TOLERANCE))
        ends = [end for end in range(low, high + 1) if ends_partition[end - 1]]
        start = min(ends, key=lambda end: abs(totals[end - 1] - aim), default=nearest)
        cuts.append(start)
    return [*cuts, len(sizes)]


def lane_bounds(sample: Sequence[tuple[Place, int, str]], lanes: int) -> list[OrderKey]:
    """Keys that cut the sampled entries into at most ``lanes``; a partition is cut only if it needs its own lanes."""
    keys = sorted(sample)
    bounds: list[OrderKey] = []
    for number in range(1, lanes):
        key = keys[len(keys) * number // lanes]
        begins = bisect_left(keys, (key[0], -1, ""))
        ends = bisect_left(keys, (key[0], math.inf, ""), lo=begins)
        bound: OrderKey = (key[0],) if ends - begins <= len(keys) / lanes else key
        if not bounds or bounds[-1] < bound:
            bounds.append(bound)
    return bounds


_LEAST_SAVING = 1.25
# A manifest of half the target size is large enough to be settled.
_SETTLED_SHARE = 2
# Rewriting a group pays off if planning a scan of a partition opens an eighth of its manifests; afterwards it opens
# about two.
_OPENED_SHARE = 8
_MAX_PROBES = 256


@dataclass(frozen=True, slots=True)
class KindLayout:
    """The manifests of a spec and content type that may have live entries: which are settled, and how many are needed.

    In partition order, the leading manifests that are large and end before the next manifest begins are *settled*:
    their partitions probably get no more files.  Without partitions, the oldest large manifests are settled.
    """

    manifests: Sequence[ManifestFile]
    ranges: Mapping[str, PartitionRange]
    """Path → range."""
    fields: Sequence[int]
    """Positions of the partition fields, without void fields."""
    room: int
    """Bytes of entries that a manifest of the target size holds."""
    header_bytes: int

    @classmethod
    def of(
        cls, metadata: TableMetadata, spec_id: int, manifests: Sequence[ManifestFile], target_bytes: int, header: int
    ) -> KindLayout:
        """Raises TableUnsupported if a partition transform is unknown."""
        types = partition_types(metadata, spec_id)
        fields = [i for i, f in enumerate(metadata.specs[spec_id]["fields"]) if f["transform"] != "void"]
        ranges = {m.manifest_path: range_of(types, m) for m in manifests}
        return cls(manifests, ranges, fields, max(1, target_bytes - header), header)

    def ranges_of(self, manifests: Sequence[ManifestFile]) -> list[PartitionRange]:
        return [self.ranges[m.manifest_path] for m in manifests]

    def sections(self, manifests: Sequence[ManifestFile]) -> int:
        """The number of sections of their entries, which must not share a manifest."""
        return len({section for found in self.ranges_of(manifests) for section in found.sections})

    def unsettled(self) -> list[ManifestFile]:
        """The manifests that are not settled in their section."""
        sections = {section for found in self.ranges.values() for section in found.sections}
        parts = (
            [m for m in self.manifests if section in self.ranges[m.manifest_path].sections] for section in sections
        )
        pending = {m.manifest_path for part in parts for m in self._unsettled(part)}
        return [m for m in self.manifests if m.manifest_path in pending]

    def _unsettled(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        if not self.fields:
            ordered = sorted(manifests, key=lambda m: m.min_sequence_number)
        elif any(found.low is None or found.high is None for found in self.ranges_of(manifests)):
            return list(manifests)  # some bounds are unknown
        else:
            ordered = sorted(manifests, key=lambda m: (self._begin(m), self._end(m)))
        settled = 0
        for position, manifest in enumerate(ordered):
            stands_alone = (
                not self.fields
                or position + 1 == len(ordered)
                or self._end(manifest) < self._begin(ordered[position + 1])
            )
            is_large = _SETTLED_SHARE * self._live_bytes(manifest) >= self.room
            if not (stands_alone and is_large):
                break
            settled += 1
        return ordered[settled:]

    def outputs(self, manifests: Sequence[ManifestFile]) -> int:
        """The most manifests that the live entries need, with separate manifests for each section."""
        if not manifests:
            return 0
        return max(math.ceil(self.live_bytes(manifests) / self.room), 1) + self.sections(manifests) - 1

    def live_bytes(self, manifests: Sequence[ManifestFile]) -> float:
        return sum(self._live_bytes(m) for m in manifests)

    def _live_bytes(self, manifest: ManifestFile) -> float:
        """Bytes of the live entries, by their share of all entries; if counts are unknown, all count as live."""
        live = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        dead = manifest.deleted_files_count or 0
        share = live / (live + dead) if live + dead else 1.0
        return max(0, manifest.manifest_length - self.header_bytes) * share

    def _begin(self, manifest: ManifestFile) -> Any:
        low = self.ranges[manifest.manifest_path].low
        return None if low is None else low[self.fields[0]]

    def _end(self, manifest: ManifestFile) -> Any:
        high = self.ranges[manifest.manifest_path].high
        return None if high is None else high[self.fields[0]]


def saves(inputs: int, outputs: int) -> bool:
    """Whether a rewrite saves more than a fifth of the manifests."""
    return outputs * _LEAST_SAVING < inputs


def is_badly_clustered(ranges: Sequence[PartitionRange], fields: int) -> bool:
    """Whether planners open too many manifests for a partition, probed at the corners of all manifests.

    Manifests with a single partition do not count, because a large partition fills many manifests.  Among the others,
    manifests that are cut from entries in partition order admit a partition at most twice per field: at each end of the
    manifests with the same values in the preceding fields.
    """
    wide = [found for found in ranges if found.is_wide]
    allowed = max(2 * fields, len(ranges) / _OPENED_SHARE)
    if not fields or len(wide) <= allowed:
        return False
    probes = [corner for found in ranges for corner in (found.low, found.high) if corner is not None]
    step = max(1, len(probes) // _MAX_PROBES)
    probes = probes[::step]
    opened = sum(found.admits(probe) for found in wide for probe in probes)
    return not probes or opened > allowed * len(probes)
