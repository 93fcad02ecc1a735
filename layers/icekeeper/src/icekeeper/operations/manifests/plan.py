"""Which manifests to merge and to cluster by partition (pure).

As SeaweedFS's worker does, for delete manifests too (rule 56).  Manifests of one spec and content type are one group.
Of a group all that is not yet *settled* is rewritten together, when that saves more than a fifth of the manifests, or
when a planner opens too many of them for one partition.

Convergence: outputs are as many as was counted, since bytes are measured as written; and manifests cut from entries in
partition order overlap so little that they never count as badly clustered (:func:`_is_badly_clustered`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.model import ManifestContent, ManifestFile, Nothing
from icekeeper.operations.manifests.partition_ranges import PartitionRange, range_of
from icekeeper.policy import Policy

__all__ = ["NO_ENTRIES", "ManifestGroup", "ManifestKind", "ManifestPlan", "plan_manifests"]

ManifestKind: TypeAlias = tuple[int, ManifestContent]
"""One spec and one content type per manifest (rule 34)."""

NO_SNAPSHOT = "no current snapshot"
NO_ENTRIES = "no data entries to rewrite"
_LEAST_SAVING = 1.25
# A manifest of half the target is large enough to be left alone where it stands by itself.
_SETTLED_SHARE = 2
# Rewriting a whole group pays off when one partition takes an eighth of its manifests: it then takes two or so.
_OPENED_SHARE = 8
_MAX_PROBES = 256


@dataclass(frozen=True, slots=True)
class ManifestGroup:
    """Manifests of one kind to replace by ones with the same live entries."""

    kind: ManifestKind
    manifests: tuple[ManifestFile, ...]
    outputs: int
    """An estimate of how many manifests replace them: merged entries often compress into fewer.  More than before only
    where entries must not share a manifest."""
    live_bytes: int
    """Bytes of its live entries, without headers."""
    room: int
    """Bytes of entries that one manifest of the target size holds."""


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """What to rewrite, one group per kind."""

    groups: tuple[ManifestGroup, ...]

    @property
    def manifests(self) -> tuple[ManifestFile, ...]:
        return tuple(manifest for group in self.groups for manifest in group.manifests)

    def count(self, content: ManifestContent) -> tuple[int, int]:
        """How many manifests of that content type become about how many."""
        groups = [group for group in self.groups if group.kind[1] is content]
        return sum(len(group.manifests) for group in groups), sum(group.outputs for group in groups)


def plan_manifests(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    manifests: Sequence[ManifestFile],
    policy: Policy,
    *,
    target_bytes: int,
    header_bytes: Mapping[ManifestKind, int],
) -> ManifestPlan | Nothing:
    """Choose the groups that are worth rewriting.

    ``target_bytes`` is the size of a manifest to aim at, ``header_bytes`` what one of each kind takes without entries.
    Data and delete manifests are counted apart; the reason for nothing is that of the data manifests.

    Raises:
        TableUnsupported: a partition transform is unknown.
    """
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    deletes = [m for m in manifests if m.content is ManifestContent.DELETES]
    groups: list[ManifestGroup] = []
    for listed in (data, deletes):
        if len(listed) >= policy.min_manifests_to_rewrite:
            groups += _worthwhile(metadata, listed, policy.min_manifests_to_rewrite, target_bytes, header_bytes)
    if groups:
        return ManifestPlan(tuple(groups))
    if len(data) < policy.min_manifests_to_rewrite:
        return Nothing(f"only {len(data)} data manifests, below threshold of {policy.min_manifests_to_rewrite}")
    if not any(m.may_have_live_files for m in data):
        return Nothing(NO_ENTRIES)
    return Nothing(f"{len(data)} data manifests are already as few as their specs and sizes allow")


def _worthwhile(
    metadata: TableMetadata,
    manifests: Sequence[ManifestFile],
    least: int,
    target_bytes: int,
    header_bytes: Mapping[ManifestKind, int],
) -> list[ManifestGroup]:
    if not any(m.may_have_live_files for m in manifests):
        return []
    by_kind: dict[ManifestKind, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        by_kind[manifest.partition_spec_id, manifest.content].append(manifest)
    chosen, unsettled_in_all = [], 0
    for kind, found in sorted(by_kind.items()):
        header, room = header_bytes[kind], max(1, target_bytes - header_bytes[kind])
        types = partition_types(metadata, kind[0])
        fields = [i for i, f in enumerate(metadata.specs[kind[0]]["fields"]) if f["transform"] != "void"]
        ranges = {m.manifest_path: range_of(types, m) for m in found}
        sections = {section for m in found for section in ranges[m.manifest_path].sections}
        parts = ([m for m in found if section in ranges[m.manifest_path].sections] for section in sections)
        pending = {m.manifest_path for part in parts for m in _unsettled(part, ranges, fields, room, header)}
        unsettled = [m for m in found if m.manifest_path in pending]
        unsettled_in_all += len(unsettled)
        apart = len({section for m in unsettled for section in ranges[m.manifest_path].sections})
        outputs = _wanted(unsettled, room, header, apart)
        saves = outputs * _LEAST_SAVING < len(unsettled)
        if saves or _is_badly_clustered([ranges[m.manifest_path] for m in unsettled], len(fields)):
            live_bytes = sum(_live_bytes(m, header) for m in unsettled)
            outputs = max(apart, min(outputs, len(unsettled)))
            chosen.append(ManifestGroup(kind, tuple(unsettled), outputs, math.ceil(live_bytes), room))
    # What new commits add to a large table waits until there is enough of it.
    return chosen if unsettled_in_all >= least else []


def _unsettled(
    manifests: Sequence[ManifestFile],
    ranges: Mapping[str, PartitionRange],
    fields: Sequence[int],
    room: int,
    header_bytes: int,
) -> list[ManifestFile]:
    """The manifests that are not settled.

    Settled are, in partition order, the leading ones that are large and end before the next one begins: days that are
    over.  Without partitions, the oldest large ones are settled.
    """
    if not fields:
        ordered = sorted(manifests, key=lambda m: m.min_sequence_number)
        settled = 0
        while settled < len(ordered) and _is_large(ordered[settled], room, header_bytes):
            settled += 1
        return ordered[settled:]
    corners = [(found.low, found.high) for found in (ranges[m.manifest_path] for m in manifests)]
    known = [(low[fields[0]], high[fields[0]]) for low, high in corners if low is not None and high is not None]
    if len(known) < len(manifests):
        return list(manifests)
    order = sorted(range(len(manifests)), key=lambda i: known[i])
    settled = 0
    for position, index in enumerate(order):
        stands_alone = position + 1 == len(order) or known[index][1] < known[order[position + 1]][0]
        if not (stands_alone and _is_large(manifests[index], room, header_bytes)):
            break
        settled += 1
    return [manifests[i] for i in order[settled:]]


def _is_large(manifest: ManifestFile, room: int, header_bytes: int) -> bool:
    return _SETTLED_SHARE * _live_bytes(manifest, header_bytes) >= room


def _is_badly_clustered(ranges: Sequence[PartitionRange], fields: int) -> bool:
    """Whether planners open more manifests for a partition than they need to.

    Probed are the corners of the manifests.  Manifests of nothing but that partition do not count: it may fill many.
    Segments of entries in partition order admit a partition at most twice per field beside those: at each end of the
    manifests that hold the values of the fields before.
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


def _wanted(manifests: Sequence[ManifestFile], room: int, header_bytes: int, sections: int) -> int:
    """Manifests that the live entries need at most; those of each section have some of their own."""
    if not any(m.may_have_live_files for m in manifests):
        return 0
    live_bytes = sum(_live_bytes(manifest, header_bytes) for manifest in manifests)
    return max(math.ceil(live_bytes / room), 1) + sections - 1


def _live_bytes(manifest: ManifestFile, header_bytes: int) -> float:
    """Bytes of the live entries, by their share of all entries; where counts are unknown all are taken for live."""
    live = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    dead = manifest.deleted_files_count or 0
    share = live / (live + dead) if live + dead else float(manifest.may_have_live_files)
    return max(0, manifest.manifest_length - header_bytes) * share
