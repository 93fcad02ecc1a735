"""Which manifests to merge and to cluster by partition (pure)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from icekeeper.metadata.document import Snapshot, TableMetadata, table_digest
from icekeeper.model import ManifestContent, ManifestFile, Nothing
from icekeeper.operations.manifests.layout import (
    MAX_PROBES,
    KindLayout,
    PartitionRange,
    is_badly_clustered,
    most_opened,
    saves,
)
from icekeeper.policy import Policy
from icekeeper.state.slack import Slack

# How many new manifests must come before a rewrite of manifests can be worth it (pure).
#
# Bounds from the rules of :mod:`.kind_layout`, for the worst that new manifests may be.  Each may lie in the earliest
# partition, so that every manifest behind it counts as unsettled again; may hold all partitions, so that planners open
# it for each; and may add no bytes worth mentioning.

# Two manifests of a spec that has none yet become one.
_OF_ANOTHER_SPEC = 2


def missing_manifests(
    layouts: Sequence[KindLayout], least: int, unsettled_in_all: int, *, has_other_specs: bool
) -> int:
    """The fewest new manifests of one content type that may make a group, at most ``least``; 1: any may."""
    is_alone = len(layouts) == 1 and not has_other_specs
    found = [_missing_in_kind(layout, least, is_alone=is_alone) for layout in layouts]
    missing = min([*found, _OF_ANOTHER_SPEC] if has_other_specs else found)
    # Where nothing is partitioned, new manifests are the youngest and unsettle no other.
    if not any(layout.fields for layout in layouts):
        missing = max(missing, least - unsettled_in_all)
    return max(1, min(missing, least))


def _missing_in_kind(layout: KindLayout, least: int, *, is_alone: bool) -> int:
    """As :func:`missing_manifests`; ``is_alone``: no other kind adds to what is unsettled in all."""
    ordered = layout.in_order(layout.manifests)
    if ordered is None or layout.sections(layout.manifests) > 1:
        return 1
    settled = len(ordered) - len(layout.unsettled())
    # What may be unsettled is all from some manifest on; without partitions nothing comes before what is settled.
    begins = range(settled + 1) if layout.fields else [settled]
    outputs = [max(1, layout.outputs(ordered[begin:])) for begin in begins]
    probed = _Probed.of(layout, ordered) if layout.fields else None
    for number in range(1, least):
        for begin, count in zip(begins, outputs, strict=True):
            unsettled = len(ordered) - begin + number
            if is_alone and unsettled < least:
                continue
            if saves(unsettled, count):
                return number
            if probed is not None and probed.may_be_scattered(begin, number):
                return number
    return least


@dataclass(frozen=True, slots=True)
class _Probed:
    """How many manifests planners open for the partitions at whose corners the manifests of a kind lie."""

    manifests: int
    fields: int
    opened: Sequence[int]
    """Over the two corners of each manifest, added up from the last manifest to this one; ends with 0."""
    most: int
    """For any one partition."""

    @classmethod
    def of(cls, layout: KindLayout, ordered: Sequence[ManifestFile]) -> _Probed:
        fields = len(layout.fields)
        if 2 * len(ordered) >= MAX_PROBES:  # then only a sample is probed, of which nothing is known beforehand
            return cls(len(ordered), fields, (), 0)
        ranges = layout.ranges_of(ordered)
        wide = [found for found in ranges if found.is_wide]
        opened = [0]
        for found in reversed(ranges):
            corners = [corner for corner in (found.low, found.high) if corner is not None]
            opened.append(opened[-1] + sum(other.admits(corner) for other in wide for corner in corners))
        return cls(len(ordered), fields, opened[::-1], _most_opened(wide))

    def may_be_scattered(self, begin: int, number: int) -> bool:
        """Whether the manifests from ``begin`` on and ``number`` new ones may count as badly clustered."""
        old = self.manifests - begin
        if not self.opened or 2 * (old + number) >= MAX_PROBES:
            return True
        allowed = most_opened(old + number, self.fields)
        surplus = self.opened[begin] + 2 * old * (number - allowed)
        return surplus + 2 * number * max(0, self.most + number - allowed) > 0


def _most_opened(wide: Sequence[PartitionRange]) -> int:
    """Of how many manifests one partition may be at most: exactly of one field, else not more than there are."""
    if any(found.fields is None or len(found.fields) != 1 for found in wide):
        return len(wide)
    ends = {end for found in wide for field in found.fields or () for end in field.ends}
    return max((sum(found.admits((end,)) for found in wide) for end in ends), default=0)


# Which manifests to merge and to cluster by partition (pure).
#
# As SeaweedFS's worker does, for delete manifests too (rule 56).  Manifests of one spec and content type are one group.
# Of a group all that is not yet *settled* is rewritten together, when that saves more than a fifth of the manifests, or
# when a planner opens too many of them for one partition.
#
# Convergence: outputs are as many as was counted, since bytes are measured as written; and manifests cut from entries
# in partition order overlap so little that they never count as badly clustered (:mod:`.kind_layout`).

ManifestKind: TypeAlias = tuple[int, ManifestContent]
"""One spec and one content type per manifest (rule 34)."""

NO_SNAPSHOT = "no current snapshot"
NO_ENTRIES = "no data entries to rewrite"


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


@dataclass(frozen=True, slots=True)
class NothingToRewrite(Nothing):
    """The manifests are few enough, or as few as they can be."""

    slack: Slack


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
    least = missing = policy.min_manifests_to_rewrite
    for listed in (data, deletes):
        if len(listed) < least:
            lacking: int | None = least - len(listed)
        else:
            found, lacking = _worthwhile(metadata, listed, least, target_bytes, header_bytes)
            groups += found
        missing = min(missing, missing if lacking is None else lacking)
    if groups:
        return ManifestPlan(tuple(groups))
    slack = Slack(snapshot_id=snapshot.snapshot_id, table_digest=table_digest(metadata), manifests=missing)
    if len(data) < least:
        return NothingToRewrite(f"only {len(data)} data manifests, below threshold of {least}", slack)
    if not any(m.may_have_live_files for m in data):
        return NothingToRewrite(NO_ENTRIES, slack)
    return NothingToRewrite(f"{len(data)} data manifests are already as few as their specs and sizes allow", slack)


def _worthwhile(
    metadata: TableMetadata,
    manifests: Sequence[ManifestFile],
    least: int,
    target_bytes: int,
    header_bytes: Mapping[ManifestKind, int],
) -> tuple[list[ManifestGroup], int | None]:
    """The groups to rewrite, or how many manifests must come before there is one."""
    if not any(m.may_have_live_files for m in manifests):
        return [], 1
    by_kind: dict[ManifestKind, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        by_kind[manifest.partition_spec_id, manifest.content].append(manifest)
    chosen, layouts, unsettled_in_all = [], [], 0
    for kind, found in sorted(by_kind.items()):
        layout = KindLayout.of(metadata, kind[0], found, target_bytes, header_bytes[kind])
        unsettled = layout.unsettled()
        layouts.append(layout)
        unsettled_in_all += len(unsettled)
        outputs = layout.outputs(unsettled)
        is_worth_it = saves(len(unsettled), outputs)
        if is_worth_it or is_badly_clustered(layout.ranges_of(unsettled), len(layout.fields)):
            live_bytes = math.ceil(layout.live_bytes(unsettled))
            outputs = max(layout.sections(unsettled), min(outputs, len(unsettled)))
            chosen.append(ManifestGroup(kind, tuple(unsettled), outputs, live_bytes, layout.room))
    # What new commits add to a large table waits until there is enough of it.
    if chosen and unsettled_in_all >= least:
        return chosen, None
    has_other_specs = len(layouts) < len(metadata.specs)
    return [], missing_manifests(layouts, least, unsettled_in_all, has_other_specs=has_other_specs)
