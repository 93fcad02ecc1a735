"""Which manifests to merge and to cluster by partition (pure).

As SeaweedFS's worker does, for delete manifests too (rule 56).  Manifests of one spec and content type are one group.
Of a group all that is not yet *settled* is rewritten together, when that saves more than a fifth of the manifests, or
when a planner opens too many of them for one partition.

Convergence: outputs are as many as was counted, since bytes are measured as written; and manifests cut from entries in
partition order overlap so little that they never count as badly clustered (:mod:`.kind_layout`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from icekeeper.metadata.document import Snapshot, TableMetadata, table_digest
from icekeeper.model import ManifestContent, ManifestFile, Nothing
from icekeeper.operations.manifests.kind_layout import KindLayout, is_badly_clustered, saves
from icekeeper.operations.manifests.missing import missing_manifests
from icekeeper.policy import Policy
from icekeeper.state.slack import Slack

__all__ = ["NO_ENTRIES", "ManifestGroup", "ManifestKind", "ManifestPlan", "NothingToRewrite", "plan_manifests"]

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
