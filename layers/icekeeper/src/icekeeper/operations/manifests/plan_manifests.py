"""Which manifests to merge and to cluster by partition.  Reads no files.

The model is SeaweedFS's worker; delete manifests are merged, too.  Manifests of the same spec and content type form a
group.  All manifests of a group that are not yet *settled* (:class:`.KindLayout`) are rewritten together, if that saves
more than a fifth of them, or if a planner opens too many of them for a partition.

The plan converges.  The number of outputs is known, because the size of entries is measured as written.  Manifests that
are cut from entries in partition order overlap so little that they never count as badly clustered.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import ManifestContent, ManifestFile, Nothing
from icekeeper.operations.manifests.layout import KindLayout, is_badly_clustered, saves
from icekeeper.policy import Policy

ManifestKind: TypeAlias = tuple[int, ManifestContent]
"""The spec and content type of a manifest, which has only one of each."""

NO_SNAPSHOT = "no current snapshot"
NO_ENTRIES = "no data entries to rewrite"


@dataclass(frozen=True, slots=True)
class ManifestGroup:
    """Manifests of the same kind, to be replaced by manifests with the same live entries."""

    kind: ManifestKind
    manifests: tuple[ManifestFile, ...]
    outputs: int
    """The estimated number of new manifests; larger than before only if entries must not share a manifest."""
    live_bytes: int
    """Bytes of the live entries, without headers."""
    room: int
    """Bytes of entries that a manifest of the target size holds."""


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """What to rewrite of the manifests that a snapshot lists, one group per kind."""

    snapshot_id: int
    listed: tuple[ManifestFile, ...]
    target_bytes: int
    """The target size of a manifest."""
    groups: tuple[ManifestGroup, ...]

    @property
    def manifests(self) -> tuple[ManifestFile, ...]:
        return tuple(manifest for group in self.groups for manifest in group.manifests)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(manifest.manifest_path for manifest in self.manifests)

    def count(self, content: ManifestContent) -> tuple[int, int]:
        """The number of manifests of a content type, before and (about) after."""
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

    ``target_bytes``: the target size of a manifest; ``header_bytes``: the size of a manifest of each kind without
    entries.  Data and delete manifests are counted separately.  The reason of ``Nothing`` concerns the data manifests.

    Raises:
        TableUnsupported: a partition transform is unknown.
    """
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    deletes = [m for m in manifests if m.content is ManifestContent.DELETES]
    groups: list[ManifestGroup] = []
    least = policy.min_manifests_to_rewrite
    for listed in (data, deletes):
        if len(listed) >= least:
            groups += _worthwhile(metadata, listed, least, target_bytes, header_bytes)
    if groups:
        return ManifestPlan(snapshot.snapshot_id, tuple(manifests), target_bytes, tuple(groups))
    if len(data) < least:
        return Nothing(f"only {len(data)} data manifests, below threshold of {least}")
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
        # The commit drops manifests without live entries, whether their group is chosen or not.
        live = [m for m in found if m.may_have_live_files]
        layout = KindLayout.of(metadata, kind[0], live, target_bytes, header_bytes[kind])
        unsettled = layout.unsettled()
        kept = {m.manifest_path for m in live} - {m.manifest_path for m in unsettled}
        replaced = [m for m in found if m.manifest_path not in kept]
        unsettled_in_all += len(replaced)
        outputs = layout.outputs(unsettled)
        is_worth_it = saves(len(replaced), outputs)
        if is_worth_it or is_badly_clustered(layout.ranges_of(unsettled), len(layout.fields)):
            live_bytes = math.ceil(layout.live_bytes(unsettled))
            outputs = max(layout.sections(unsettled), min(outputs, len(unsettled)))
            chosen.append(ManifestGroup(kind, tuple(replaced), outputs, live_bytes, layout.room))
    # New manifests of a large table wait until there are enough of them.
    return chosen if unsettled_in_all >= least else []
