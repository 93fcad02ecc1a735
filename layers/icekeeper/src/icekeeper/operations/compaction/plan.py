"""Which data files to merge with which: the rules of compaction, and nothing else (rule 48).

As SeaweedFS's worker does (rule 50): group small files by spec and partition, split a group that is larger than the
target into bins, leave bins of fewer than ``min_input_files`` alone.

Convergence (rule 49): a bin is closed as soon as its files divide into outputs of the right size, which is between the
middle of small-file limit and target, and a quarter above the target.  Only the files in the bin decide, never the one
that comes next.  So its outputs are no candidates any more, and taking whole bins out of the sequence leaves every
other bin as it was: ``plan(apply(plan))`` is empty.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from icekeeper.model import FileKey, ManifestContent, Nothing, PartitionValue
from icekeeper.operations.compaction.budget import Bin, bytes_since_rewrite, in_job_order, within_budget
from icekeeper.operations.compaction.candidates import Candidate, Candidates, FileScope, TableState, select_candidates
from icekeeper.operations.compaction.clustering.depth import ClusteringDepth
from icekeeper.operations.compaction.clustering.plan import clustering_groups
from icekeeper.operations.compaction.clustering.runs import Layout
from icekeeper.operations.compaction.output_partition import Destination
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.policy import Policy

__all__ = ["Clustering", "CompactionPlan", "FileGroup", "plan_compaction"]

# The largest output, as a multiple of the target file size.
_LARGEST_OUTPUT = Fraction(5, 4)
NO_SNAPSHOT = "no current snapshot"
NOTHING_ELIGIBLE = "no files eligible for compaction"
DELETES_DISABLED = "compaction skipped: delete manifests present and apply_deletes is disabled"


@dataclass(frozen=True, slots=True)
class Clustering:
    """By which recipe a plan clusters rows, and the snapshots that added files clustered by it."""

    recipe: ClusterRecipe
    clustered_by: Container[int] = frozenset()
    """Snapshot ids."""


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Data files that are rewritten together.  All of them have row lineage, or none has."""

    group_id: int
    spec_id: int
    """The spec of the outputs; the inputs may have older ones."""
    partition: tuple[PartitionValue, ...]
    """The partition of the outputs, as raw values."""
    files: tuple[Candidate, ...]
    output_count: int = 1
    """How many files the rows are divided into when they are not sorted."""
    route_to: int | None = None
    """The id of the spec whose partitions the rows may be dealt out to, if that makes fewer files; ``None``: none."""

    @property
    def scopes(self) -> frozenset[tuple[int, tuple[PartitionValue, ...]]]:
        """Spec id and partition of every input."""
        return frozenset((candidate.spec_id, candidate.file.partition) for candidate in self.files)

    @property
    def has_lineage(self) -> bool:
        return self.files[0].has_lineage

    @property
    def total_bytes(self) -> int:
        return sum(candidate.file.file_size_in_bytes for candidate in self.files)

    @property
    def record_count(self) -> int:
        return sum(candidate.file.record_count for candidate in self.files)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to rewrite, decided at one snapshot, and what was seen meanwhile."""

    snapshot_id: int
    sequence_number: int
    groups: tuple[FileGroup, ...]
    planning_manifests: frozenset[str]
    """Paths of all manifests of the snapshot."""
    files_considered: int
    files_unsupported: int
    first_unsupported: str = ""
    """The path of one of them, and why it is left alone."""
    delete_needs: Mapping[FileKey, int] = field(default_factory=dict)
    """Live delete file → how many live data files need it; 0: dangling."""
    groups_waiting: int = 0
    """How many groups the policy's caps leave to a later pass."""
    recipe: ClusterRecipe | None = None
    """How the rows of every group are to be ordered; ``None``: they keep their order."""
    depth: ClusteringDepth | None = None
    """Where the files lie in the clustering columns; ``None``: there are none."""

    @property
    def input_files(self) -> tuple[str, ...]:
        return tuple(c.file.file_path for group in self.groups for c in group.files)

    @property
    def delete_files(self) -> frozenset[str]:
        """Paths of the delete files that apply to an input file."""
        return frozenset(e.file.file_path for group in self.groups for c in group.files for e in c.deletes)


def plan_compaction(
    state: TableState,
    policy: Policy,
    *,
    now_ms: int,
    in_scope: FileScope = lambda file, spec_id: True,
    clustering: Clustering | None = None,
) -> CompactionPlan | Nothing:
    """Group the data files that are to be rewritten, and count for each delete file the data files that need it.

    ``now_ms`` is epoch milliseconds.  Without ``clustering`` rows keep their order (binpack).
    """
    metadata, snapshot = state.metadata, state.snapshot
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    has_deletes = any(m.content is ManifestContent.DELETES and m.may_have_live_files for m in state.manifests)
    if has_deletes and not policy.apply_deletes:
        return Nothing(DELETES_DISABLED)
    found = select_candidates(
        state,
        policy,
        now_ms=now_ms,
        in_scope=in_scope,
        clustered_by=None if clustering is None else clustering.clustered_by,
        order_id=None if clustering is None else clustering.recipe.order_id,
    )
    layout = None if clustering is None else Layout.of(clustering.recipe, metadata.current_schema)
    bins = [
        chosen
        for files in found.partitions
        for chosen in (_bins(files, policy) if layout is None else _clustering_bins(files, policy, layout))
    ]
    allowed, waiting = within_budget(bins, policy, found.delete_needs, bytes_since_rewrite(metadata, snapshot))
    route_to = metadata.default_spec_id if clustering is None else None
    groups = tuple(
        _group(number, chosen, route_to, found.specs_to_leave)
        for number, chosen in enumerate(in_job_order(allowed, policy.rewrite_job_order))
    )
    if not groups and 0 not in found.delete_needs.values():
        return Nothing(_nothing_reason(found, bool(bins)))
    return CompactionPlan(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
        groups=groups,
        planning_manifests=frozenset(m.manifest_path for m in state.manifests),
        files_considered=found.considered,
        files_unsupported=found.unsupported,
        first_unsupported=found.first_unsupported,
        delete_needs=found.delete_needs,
        groups_waiting=waiting,
        recipe=None if clustering is None else clustering.recipe,
        depth=None if layout is None else ClusteringDepth.of(found.partitions, layout),
    )


def _clustering_bins(files: list[Candidate], policy: Policy, layout: Layout) -> list[Bin]:
    """One bin per clustering group; a clustered file alone in its group is rewritten only for its deletes."""
    return [
        Bin(tuple(group), for_deletes=not policy.rewrite_all and len(group) == 1 and group[0].is_clustered)
        for group in clustering_groups(files, policy, layout)
    ]


def _group(number: int, chosen: Bin, route_to: int | None, specs_to_leave: frozenset[int]) -> FileGroup:
    first = chosen.files[0]
    to = first.destination or Destination(first.spec_id, first.file.partition)
    may_move = len(chosen.files) > 1 and to.spec_id in specs_to_leave
    return FileGroup(
        number, to.spec_id, to.partition, chosen.files, chosen.outputs, route_to=route_to if may_move else None
    )


def _nothing_reason(found: Candidates, over_budget: bool) -> str:
    if over_budget:
        return "no file group fits max_files_to_rewrite and max_bytes_to_rewrite"
    if found.unsupported:
        return f"{NOTHING_ELIGIBLE} ({found.unsupported} file(s) are left alone: {found.first_unsupported})"
    return NOTHING_ELIGIBLE


def _bins(files: list[Candidate], policy: Policy) -> list[Bin]:
    """Split one partition's candidates, the oldest first, into bins that are worth rewriting."""
    files.sort(key=lambda c: (c.age, c.file.file_path))
    least = 1 if policy.rewrite_all else policy.min_input_files
    chosen: list[tuple[list[Candidate], int]] = []
    current: list[Candidate] = []
    size = 0
    for candidate in files:
        if candidate.has_debt and candidate.file.file_size_in_bytes >= policy.min_file_size_bytes:
            chosen.append(([candidate], 1))  # large enough: only its deletes are applied
            continue
        current.append(candidate)
        size += candidate.file.file_size_in_bytes
        outputs = _outputs_if_full(size, len(current), policy)
        if outputs is not None:
            chosen.append((current, outputs))
            current, size = [], 0
    if current:
        chosen.append((current, _output_count(size, len(current), policy)))
    bins = (Bin(tuple(files), for_deletes=len(files) < least, outputs=outputs) for files, outputs in chosen)
    return [b for b in bins if not b.for_deletes or any(c.has_debt for c in b.files)]


def _outputs_if_full(size: int, inputs: int, policy: Policy) -> int | None:
    """How many files of the right size a bin of these bytes becomes; ``None``: it must take more files first."""
    full = (policy.min_file_size_bytes + policy.target_file_size_bytes) // 2
    outputs = _output_count(size, inputs, policy)
    is_whole = outputs * full <= size and size <= outputs * _LARGEST_OUTPUT * policy.target_file_size_bytes
    return outputs if is_whole or size >= policy.max_file_group_size_bytes else None


def _output_count(size: int, inputs: int, policy: Policy) -> int:
    """The fewest outputs of which none is too large, yet none is small, and that are fewer than the inputs."""
    wanted = math.ceil(size / (_LARGEST_OUTPUT * policy.target_file_size_bytes))
    return max(1, min(wanted, size // policy.min_file_size_bytes, inputs - 1))
