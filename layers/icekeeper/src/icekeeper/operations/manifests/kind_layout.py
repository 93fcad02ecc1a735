"""How the manifests of one spec and content type lie: which are settled, how many they need to be (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.model import ManifestFile
from icekeeper.operations.manifests.partition_ranges import PartitionRange, range_of

__all__ = ["MAX_PROBES", "KindLayout", "is_badly_clustered", "most_opened", "saves"]

_LEAST_SAVING = 1.25
# A manifest of half the target is large enough to be left alone where it stands by itself.
_SETTLED_SHARE = 2
# Rewriting a whole group pays off when one partition takes an eighth of its manifests: it then takes two or so.
_OPENED_SHARE = 8
MAX_PROBES = 256


@dataclass(frozen=True, slots=True)
class KindLayout:
    """The manifests of one kind."""

    manifests: Sequence[ManifestFile]
    ranges: Mapping[str, PartitionRange]
    """By path."""
    fields: Sequence[int]
    """Positions of the partition fields that divide the table."""
    room: int
    """Bytes of entries that one manifest of the target size holds."""
    header_bytes: int

    @classmethod
    def of(
        cls, metadata: TableMetadata, spec_id: int, manifests: Sequence[ManifestFile], target_bytes: int, header: int
    ) -> KindLayout:
        """The layout of manifests of one spec and content type.

        Raises:
            TableUnsupported: a partition transform is unknown.
        """
        types = partition_types(metadata, spec_id)
        fields = [i for i, f in enumerate(metadata.specs[spec_id]["fields"]) if f["transform"] != "void"]
        ranges = {m.manifest_path: range_of(types, m) for m in manifests}
        return cls(manifests, ranges, fields, max(1, target_bytes - header), header)

    def ranges_of(self, manifests: Sequence[ManifestFile]) -> list[PartitionRange]:
        return [self.ranges[m.manifest_path] for m in manifests]

    def sections(self, manifests: Sequence[ManifestFile]) -> int:
        """How many sections they lie in, which share no manifest."""
        return len({section for found in self.ranges_of(manifests) for section in found.sections})

    def unsettled(self) -> list[ManifestFile]:
        """The manifests that are not settled, each section by itself."""
        sections = {section for found in self.ranges.values() for section in found.sections}
        parts = (
            [m for m in self.manifests if section in self.ranges[m.manifest_path].sections] for section in sections
        )
        pending = {m.manifest_path for part in parts for m in self._unsettled(part)}
        return [m for m in self.manifests if m.manifest_path in pending]

    def _unsettled(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """The manifests of one section that are not settled.

        Settled are, in partition order, the leading ones that are large and end before the next one begins: days that
        are over.  Without partitions, the oldest large ones are settled.
        """
        ordered = self.in_order(manifests)
        if ordered is None:
            return list(manifests)
        settled = 0
        for position, manifest in enumerate(ordered):
            stands_alone = (
                not self.fields
                or position + 1 == len(ordered)
                or self._end(manifest) < self._begin(ordered[position + 1])
            )
            if not (stands_alone and self._is_large(manifest)):
                break
            settled += 1
        return ordered[settled:]

    def in_order(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile] | None:
        """By age, or by the first partition field where there is one; ``None``: some do not tell."""
        if not self.fields:
            return sorted(manifests, key=lambda m: m.min_sequence_number)
        if any(found.low is None or found.high is None for found in self.ranges_of(manifests)):
            return None
        return sorted(manifests, key=lambda m: (self._begin(m), self._end(m)))

    def outputs(self, manifests: Sequence[ManifestFile]) -> int:
        """Manifests that the live entries need at most; those of each section have some of their own."""
        if not any(m.may_have_live_files for m in manifests):
            return 0
        return max(math.ceil(self.live_bytes(manifests) / self.room), 1) + self.sections(manifests) - 1

    def live_bytes(self, manifests: Sequence[ManifestFile]) -> float:
        return sum(self._live_bytes(m) for m in manifests)

    def _live_bytes(self, manifest: ManifestFile) -> float:
        """Bytes of the live entries, by their share of all entries; of unknown counts all are taken for live."""
        live = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        dead = manifest.deleted_files_count or 0
        share = live / (live + dead) if live + dead else float(manifest.may_have_live_files)
        return max(0, manifest.manifest_length - self.header_bytes) * share

    def _is_large(self, manifest: ManifestFile) -> bool:
        return _SETTLED_SHARE * self._live_bytes(manifest) >= self.room

    def _begin(self, manifest: ManifestFile) -> Any:
        low = self.ranges[manifest.manifest_path].low
        return None if low is None else low[self.fields[0]]

    def _end(self, manifest: ManifestFile) -> Any:
        high = self.ranges[manifest.manifest_path].high
        return None if high is None else high[self.fields[0]]


def saves(inputs: int, outputs: int) -> bool:
    """Whether so many manifests less are worth a rewrite: more than a fifth of them."""
    return outputs * _LEAST_SAVING < inputs


def most_opened(manifests: int, fields: int) -> float:
    """How many of so many manifests planners may open for one partition before they count as badly clustered."""
    return max(2 * fields, manifests / _OPENED_SHARE)


def is_badly_clustered(ranges: Sequence[PartitionRange], fields: int) -> bool:
    """Whether planners open more manifests for a partition than they need to.

    Probed are the corners of the manifests.  Manifests of nothing but that partition do not count: it may fill many.
    Segments of entries in partition order admit a partition at most twice per field beside those: at each end of the
    manifests that hold the values of the fields before.
    """
    wide = [found for found in ranges if found.is_wide]
    allowed = most_opened(len(ranges), fields)
    if not fields or len(wide) <= allowed:
        return False
    probes = [corner for found in ranges for corner in (found.low, found.high) if corner is not None]
    step = max(1, len(probes) // MAX_PROBES)
    probes = probes[::step]
    opened = sum(found.admits(probe) for found in wide for probe in probes)
    return not probes or opened > allowed * len(probes)
