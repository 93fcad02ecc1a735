"""Which data files to merge with which: the rules of compaction, and nothing else (rule 48).

As SeaweedFS's worker does (rule 50): group small files by spec and partition, split a group that is larger than the
target into bins, leave bins of fewer than ``min_input_files`` alone.

Convergence (rule 49): a bin is closed as soon as it divides into outputs between the middle of small-file limit and
target, and a quarter above the target, by its own files alone, never by what would come next.  So its outputs are no
candidates any more, and taking whole bins out of the sequence leaves every other bin as it was: ``plan(apply(plan))``
is empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from icekeeper.metadata.deletes import DeleteIndex, DeleteIndexBuilder
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import DataFile, FileKey, LiveEntry, ManifestContent, ManifestFile, Nothing, PartitionValue
from icekeeper.operations.compaction.budget import Bin, bytes_since_rewrite, in_job_order, within_budget
from icekeeper.operations.compaction.candidates import Candidate, Candidates, select_candidates
from icekeeper.operations.compaction.clustering.plan import clustering_groups
from icekeeper.operations.compaction.output_partition import Destination
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.policy import Policy

__all__ = ["CompactionPlan", "FileGroup", "plan_compaction"]

# Of the target: how much larger an output may be.
_LARGEST_OUTPUT = Fraction(5, 4)
NO_SNAPSHOT = "no current snapshot"
NOTHING_ELIGIBLE = "no files eligible for compaction"
DELETES_DISABLED = "compaction skipped: delete manifests present and apply_deletes is disabled"


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that become one file, or several sorted ones, of this spec and partition; their own may be older ones.

    All of them have row lineage, or none has.
    """

    group_id: int
    spec_id: int
    partition: tuple[PartitionValue, ...]
    files: tuple[Candidate, ...]
    output_count: int = 1
    """Files that the rows are divided into, where they keep their order."""
    route_to: int | None = None
    """The spec whose partitions its rows may be dealt out to, if that makes fewer files."""

    @property
    def scopes(self) -> frozenset[tuple[int, tuple[PartitionValue, ...]]]:
        """Spec and partition of the inputs."""
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
    """What to merge, decided at one snapshot; immutable, carries its counts."""

    snapshot_id: int
    sequence_number: int
    groups: tuple[FileGroup, ...]
    planning_manifests: frozenset[str]
    files_considered: int
    files_unsupported: int
    first_unsupported: str = ""
    """One of them by name, and why it is left alone."""
    delete_needs: Mapping[FileKey, int] = field(default_factory=dict)
    """Live delete file → how many live data files need it; 0: dangling."""
    groups_waiting: int = 0
    """Groups that the policy's caps leave to a later pass."""
    recipe: ClusterRecipe | None = None
    """How the rows of every group are to be ordered; ``None``: as they come."""

    @property
    def input_files(self) -> tuple[str, ...]:
        return tuple(c.file.file_path for group in self.groups for c in group.files)

    @property
    def delete_files(self) -> frozenset[str]:
        """Those that reach an input file."""
        return frozenset(e.file.file_path for group in self.groups for c in group.files for e in c.deletes)


def plan_compaction(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    manifests: Sequence[ManifestFile],
    live_files: Iterable[LiveEntry],
    policy: Policy,
    *,
    now_ms: int,
    deletes: DeleteIndex | None = None,
    in_scope: Callable[[DataFile, int], bool] = lambda file, spec_id: True,
    recipe: ClusterRecipe | None = None,
    clustered_by: Container[int] = frozenset(),
) -> CompactionPlan | Nothing:
    """Group the live data files of ``snapshot`` for merging, and tell which delete files that leaves without use.

    ``manifests`` are all of the snapshot's, ``deletes`` its live delete files; ``live_files`` is consumed once and only
    candidates are kept; ``in_scope`` tells of a data file and its spec id whether it may be rewritten at all.
    ``clustered_by`` are the snapshots that added files clustered by ``recipe``.
    """
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    has_deletes = any(m.content is ManifestContent.DELETES and m.may_have_live_files for m in manifests)
    if has_deletes and not policy.apply_deletes:
        return Nothing(DELETES_DISABLED)
    index = deletes or DeleteIndexBuilder().build()
    found = select_candidates(
        metadata,
        live_files,
        index,
        policy,
        now_ms=now_ms,
        in_scope=in_scope,
        clustered_by=None if recipe is None else clustered_by,
    )
    group = _bins if recipe is None else _clustering_bins
    bins = [chosen for files in found.partitions for chosen in group(files, policy)]
    allowed, waiting = within_budget(bins, policy, found.delete_needs, bytes_since_rewrite(metadata, snapshot))
    groups = tuple(
        _group(number, chosen, None if recipe is not None else metadata.default_spec_id, found.specs_to_leave)
        for number, chosen in enumerate(in_job_order(allowed, policy.rewrite_job_order))
    )
    if not groups and 0 not in found.delete_needs.values():
        return Nothing(_nothing_reason(found, bool(bins)))
    return CompactionPlan(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
        groups=groups,
        planning_manifests=frozenset(m.manifest_path for m in manifests),
        files_considered=found.considered,
        files_unsupported=found.unsupported,
        first_unsupported=found.first_unsupported,
        delete_needs=found.delete_needs,
        groups_waiting=waiting,
        recipe=recipe,
    )


def _clustering_bins(files: list[Candidate], policy: Policy) -> list[Bin]:
    """A file that is clustered already and stands alone is there for its deletes."""
    return [
        Bin(tuple(group), for_deletes=not policy.rewrite_all and len(group) == 1 and group[0].is_clustered)
        for group in clustering_groups(files, policy)
    ]


def _group(number: int, chosen: Bin, current_spec: int | None, specs_to_leave: frozenset[int]) -> FileGroup:
    first = chosen.files[0]
    to = first.destination or Destination(first.spec_id, first.file.partition)
    may_move = len(chosen.files) > 1 and to.spec_id in specs_to_leave
    route_to = current_spec if may_move else None
    return FileGroup(number, to.spec_id, to.partition, chosen.files, chosen.outputs, route_to)


def _nothing_reason(found: Candidates, over_budget: bool) -> str:
    if over_budget:
        return "no file group fits max_files_to_rewrite and max_bytes_to_rewrite"
    if found.unsupported:
        return f"{NOTHING_ELIGIBLE} ({found.unsupported} file(s) are left alone: {found.first_unsupported})"
    return NOTHING_ELIGIBLE


def _bins(files: list[Candidate], policy: Policy) -> list[Bin]:
    """Split one partition's candidates, in order of age, into bins worth merging."""
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
        outputs = _outputs(size, len(current), policy)
        if outputs is not None:
            chosen.append((current, outputs))
            current, size = [], 0
    if current:
        chosen.append((current, _divided(size, len(current), policy)))
    bins = (Bin(tuple(files), for_deletes=len(files) < least, outputs=outputs) for files, outputs in chosen)
    return [b for b in bins if not b.for_deletes or any(c.has_debt for c in b.files)]


def _outputs(size: int, inputs: int, policy: Policy) -> int | None:
    """Into how many files of the right size these bytes go, fewer than there are inputs; ``None``: a bin needs more."""
    full = (policy.min_file_size_bytes + policy.target_file_size_bytes) // 2
    outputs = _divided(size, inputs, policy)
    is_whole = outputs * full <= size and size <= outputs * _LARGEST_OUTPUT * policy.target_file_size_bytes
    return outputs if is_whole or size >= policy.max_file_group_size_bytes else None


def _divided(size: int, inputs: int, policy: Policy) -> int:
    """The fewest files of which none is too large, but none small either, and fewer than there are inputs."""
    wanted = math.ceil(size / (_LARGEST_OUTPUT * policy.target_file_size_bytes))
    return max(1, min(wanted, size // policy.min_file_size_bytes, inputs - 1))
