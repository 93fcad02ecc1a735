"""Which data files to merge with which: the rules of compaction, and nothing else (pure).

Seed 000, "Compact Data Files": group small files by spec and partition, split a group that is larger than the target
into bins, leave bins of fewer than ``min_input_files`` alone.

Convergence (DESIGN 5): a bin is closed as soon as it holds the middle between the small-file limit and the target,
by its own files alone, never by what would come next.  So its output is no candidate any more, and taking whole bins
out of the sequence leaves every other bin as it was: ``plan(apply(plan))`` is empty.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from icekeeper.metadata.deletes import DeleteIndex, DeleteIndexBuilder
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import ManifestContent, ManifestFile, Nothing, PartitionValue
from icekeeper.operations.compaction.candidates import Candidate, FileKey, LiveFile, select_candidates
from icekeeper.operations.compaction.cluster_plan import clustering_groups
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.policy import Policy

__all__ = ["CompactionPlan", "FileGroup", "plan_compaction"]

NO_SNAPSHOT = "no current snapshot"
NOTHING_ELIGIBLE = "no files eligible for compaction"
DELETES_DISABLED = "compaction skipped: delete manifests present and apply_deletes is disabled"


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files of one spec and partition that become one file, or several sorted ones."""

    group_id: int
    spec_id: int
    partition: tuple[PartitionValue, ...]
    files: tuple[Candidate, ...]

    @property
    def total_bytes(self) -> int:
        return sum(candidate.file.file_size_in_bytes for candidate in self.files)

    @property
    def record_count(self) -> int:
        return sum(candidate.file.record_count for candidate in self.files)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to merge, decided at one snapshot; immutable, carries its counts."""

    snapshot_id: int
    sequence_number: int
    groups: tuple[FileGroup, ...]
    planning_manifests: frozenset[str]
    files_considered: int
    files_unsupported: int
    delete_needs: Mapping[FileKey, int] = field(default_factory=dict)
    """Live delete file → how many live data files need it; 0: dangling."""
    recipe: ClusterRecipe | None = None
    """How the rows of every group are to be ordered; ``None``: as they come."""

    @property
    def input_files(self) -> tuple[str, ...]:
        return tuple(c.file.file_path for group in self.groups for c in group.files)


def plan_compaction(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    manifests: Sequence[ManifestFile],
    live_files: Iterable[LiveFile],
    policy: Policy,
    *,
    now_ms: int,
    deletes: DeleteIndex | None = None,
    recipe: ClusterRecipe | None = None,
    clustered_by: Container[int] = frozenset(),
) -> CompactionPlan | Nothing:
    """Group the live data files of ``snapshot`` for merging, and tell which delete files that leaves without use.

    ``manifests`` are all of the snapshot's, ``deletes`` its live delete files; ``live_files`` is consumed once and only
    candidates are kept.  ``clustered_by`` are the snapshots that added files clustered by ``recipe``.
    """
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    has_deletes = any(m.content is ManifestContent.DELETES and m.may_have_live_files for m in manifests)
    if has_deletes and not policy.apply_deletes:
        return Nothing(DELETES_DISABLED)
    index = deletes or DeleteIndexBuilder().build()
    found = select_candidates(
        metadata, live_files, index, policy, now_ms=now_ms, clustered_by=None if recipe is None else clustered_by
    )
    group = _bins if recipe is None else clustering_groups
    bins = [chosen for files in found.partitions for chosen in group(files, policy)]
    groups = tuple(
        FileGroup(number, files[0].spec_id, files[0].file.partition, tuple(files))
        for number, files in enumerate(_within_budget(bins, policy))
    )
    if not groups and 0 not in found.delete_needs.values():
        return Nothing(_nothing_reason(found.unsupported, bool(bins)))
    return CompactionPlan(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
        groups=groups,
        planning_manifests=frozenset(m.manifest_path for m in manifests),
        files_considered=found.considered,
        files_unsupported=found.unsupported,
        delete_needs=found.delete_needs,
        recipe=recipe,
    )


def _nothing_reason(unsupported: int, over_budget: bool) -> str:
    if over_budget:
        return "no file group fits max_files_to_rewrite and max_bytes_to_rewrite"
    if unsupported:
        return f"{NOTHING_ELIGIBLE} ({unsupported} file(s) are encrypted or of a format that is not read)"
    return NOTHING_ELIGIBLE


def _bins(files: list[Candidate], policy: Policy) -> list[list[Candidate]]:
    """Split one partition's candidates, in order of age, into bins worth merging."""
    files.sort(key=lambda c: (c.age, c.file.file_path))
    full = min((policy.min_file_size_bytes + policy.target_file_size_bytes) // 2, policy.max_file_group_size_bytes)
    least = 1 if policy.rewrite_all else policy.min_input_files
    chosen: list[list[Candidate]] = []
    current: list[Candidate] = []
    size = 0
    for candidate in files:
        if candidate.has_debt and candidate.file.file_size_in_bytes >= policy.min_file_size_bytes:
            chosen.append([candidate])  # large enough: only its deletes are applied
            continue
        current.append(candidate)
        size += candidate.file.file_size_in_bytes
        if size >= full:
            chosen.append(current)
            current, size = [], 0
    if current:
        chosen.append(current)
    return [files for files in chosen if len(files) >= least or any(c.has_debt for c in files)]


def _within_budget(bins: list[list[Candidate]], policy: Policy) -> list[list[Candidate]]:
    """Bins that save most files first, as many as the policy's caps allow."""
    if policy.max_files_to_rewrite is None and policy.max_bytes_to_rewrite is None:
        return bins
    files_left = policy.max_files_to_rewrite
    bytes_left = policy.max_bytes_to_rewrite
    chosen = []
    for files in sorted(bins, key=len, reverse=True):
        size = sum(candidate.file.file_size_in_bytes for candidate in files)
        if (files_left is not None and len(files) > files_left) or (bytes_left is not None and size > bytes_left):
            continue
        files_left = None if files_left is None else files_left - len(files)
        bytes_left = None if bytes_left is None else bytes_left - size
        chosen.append(files)
    return chosen
