"""Plans a compaction: which data files are rewritten together, and why others are left alone (pure).

As SeaweedFS's worker does (rule: bounded-merge-rewrites): group small files by spec and partition, and divide each
group into bins of about the target size.  A last bin that is not full and has fewer than ``min_input_files`` files is
left alone.  Bins that pay for themselves and fit the budget become file groups.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from icekeeper.metadata.document import Snapshot
from icekeeper.model import DataFile, FileKey, ManifestContent, Nothing, PartitionValue
from icekeeper.operations.compaction.bins import Bin, Reason, binpacked
from icekeeper.operations.compaction.candidates import (
    AS_THEY_ARE,
    Candidate,
    Candidates,
    FileScope,
    OutputSizes,
    PartitionRest,
    TableState,
    Tally,
    is_large,
    select_candidates,
)
from icekeeper.operations.compaction.clustering.plan_clustering import ClusteringDepth, Layout, clustering_groups
from icekeeper.operations.compaction.output_partition import Destination
from icekeeper.operations.compaction.payback import (
    RewriteHistory,
    WeighedBin,
    Worth,
    in_job_order,
    weigh,
    within_budget,
)
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.policy import Policy
from icekeeper.policy.values import RewriteReason

NO_SNAPSHOT = "no current snapshot"
NOTHING_ELIGIBLE = "no files eligible for compaction"
DELETES_DISABLED = "compaction skipped: delete manifests present and apply_deletes is disabled"


@dataclass(frozen=True, slots=True)
class Clustering:
    """The recipe by which a plan clusters rows, and the ids of the snapshots that added files clustered by it."""

    recipe: ClusterRecipe
    clustered_by: Container[int] = frozenset()


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Data files that are rewritten together.  Either all of them have row lineage or none has."""

    group_id: int
    spec_id: int
    """The spec of the outputs; the inputs may have older ones."""
    partition: tuple[PartitionValue, ...]
    """The partition of the outputs, as raw values."""
    files: tuple[Candidate, ...]
    output_count: int = 1
    """The number of output files; an estimate where rows are sorted."""
    route_to: int | None = None
    """The spec whose partitions the rows may be divided among, if that makes fewer files; ``None``: rows stay here."""
    reason: Reason = Reason.SMALL
    worth: Worth | None = None
    output_bytes: int | None = None
    """Estimated size of all outputs before deletes are applied; ``None``: the size of the inputs."""

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
    def expected_bytes(self) -> int:
        """Estimated size of all outputs."""
        size = self.total_bytes if self.output_bytes is None else self.output_bytes
        return max(0, size - (0 if self.worth is None else int(self.worth.bytes_saved)))

    @property
    def record_count(self) -> int:
        return sum(candidate.file.record_count for candidate in self.files)


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Files that are not rewritten, and the reason."""

    reason: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class NothingToCompact(Nothing):
    """No file group is worth rewriting or allowed to be rewritten."""

    left: tuple[LeftAlone, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to rewrite, as planned at one snapshot, and what the planner saw."""

    snapshot_id: int
    sequence_number: int
    groups: tuple[FileGroup, ...]
    planning_manifests: frozenset[str]
    """Paths of all manifests of the snapshot."""
    files_considered: int
    files_unsupported: int
    first_unsupported: str = ""
    """The path of one of them, and why it cannot be read."""
    delete_needs: Mapping[FileKey, int] = field(default_factory=dict)
    """Live delete file → how many live data files need it; 0: dangling."""
    groups_waiting: int = 0
    """The number of groups that the policy's caps leave to a later pass."""
    left: tuple[LeftAlone, ...] = ()
    recipe: ClusterRecipe | None = None
    """The order of the rows in every group; ``None``: rows keep their order."""
    sizes: OutputSizes = AS_THEY_ARE
    """The output sizes that the plan expects."""
    depth: ClusteringDepth | None = None
    """The files' ranges in the clustering columns; ``None``: the table has none."""

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
    lacking: Mapping[str, frozenset[RewriteReason]] = MappingProxyType({}),
    cuts: bool = False,
) -> CompactionPlan | Nothing:
    """Group the data files to rewrite, and count for each delete file the data files that need it.

    ``now_ms`` is epoch milliseconds.  Without ``clustering`` rows keep their order (binpack).  ``lacking`` maps a path
    to those reasons of ``rewrite_reason`` for which its footer asks for a rewrite.  ``cuts``: large files may be cut,
    because the target size was set explicitly (rule: cut-only-with-explicit-target).
    """
    metadata, snapshot = state.metadata, state.snapshot
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    if not policy.apply_deletes and _has_deletes(state):
        return NothingToCompact(DELETES_DISABLED)
    recipe = None if clustering is None else clustering.recipe
    layout = None if recipe is None else Layout.of(recipe, metadata.current_schema)
    cuts = cuts and recipe is None and policy.rewrite_enabled and policy.min_row_group_copy_bytes is not None
    clustered_by = None if clustering is None else clustering.clustered_by
    sizes = OutputSizes.of(metadata, snapshot) if recipe is None else AS_THEY_ARE
    select = partial(select_candidates, state, policy, now_ms=now_ms, in_scope=in_scope, lacking=lacking, cuts=cuts)
    found = select(clustered_by=clustered_by, order_id=None if recipe is None else recipe.order_id, sizes=sizes)
    rest = PartitionRest.of(metadata, policy, now_ms)
    bins = [
        chosen for files in found.partitions for chosen in _bins(files, policy, clustering, layout, rest, cuts, sizes)
    ]
    weighed = [weigh(chosen, policy, found.spread) for chosen in bins]
    worthy, unpaid = [one for one in weighed if one.worth.pays], [one for one in weighed if not one.worth.pays]
    allowed, waiting = within_budget(worthy, policy, _history(state, snapshot))
    left = left_alone(found, bins, unpaid, waiting, policy)
    route_to = metadata.default_spec_id if clustering is None else None
    ordered = in_job_order(allowed, policy.rewrite_job_order)
    groups = tuple(_group(n, chosen, route_to, found.specs_to_leave) for n, chosen in enumerate(ordered))
    if not groups and 0 not in found.delete_needs.values():
        return NothingToCompact(_nothing_reason(found, worthy, unpaid, policy), left)
    return CompactionPlan(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
        groups=groups,
        planning_manifests=frozenset(m.manifest_path for m in state.manifests),
        files_considered=found.considered,
        files_unsupported=found.passed_over.unsupported.files,
        first_unsupported=found.passed_over.first_unsupported,
        delete_needs=found.delete_needs,
        groups_waiting=len(waiting),
        left=left,
        recipe=recipe,
        sizes=sizes,
        depth=None if layout is None else ClusteringDepth.of(found.partitions, layout),
    )


def _history(state: TableState, head: Snapshot) -> RewriteHistory:
    oldest_delete = min((entry.sequence_number or 0 for entry in state.deletes.entries), default=None)
    if oldest_delete is None:
        return RewriteHistory(0, 0, 0)  # nothing is rewritten for deletes
    return RewriteHistory.of(state.metadata, head, oldest_delete)


def _has_deletes(state: TableState) -> bool:
    return any(m.content is ManifestContent.DELETES and m.may_have_live_files for m in state.manifests)


def _bins(
    files: list[Candidate],
    policy: Policy,
    clustering: Clustering | None,
    layout: Layout | None,
    rest: PartitionRest,
    cuts: bool,
    sizes: OutputSizes,
) -> Sequence[Bin]:
    if clustering is not None and layout is not None:
        groups = clustering_groups(files, policy, layout)
        return [_clustering_bin(group, policy, clustering.recipe) for group in groups]
    # Files that will be cut do not count as small files of the partition.
    at_rest = rest.is_reached([c for c in files if not (cuts and not c.is_due and is_large(c.file, policy))])
    return binpacked(files, policy, at_rest=at_rest, cuts=cuts, sizes=sizes)


def _clustering_bin(files: list[Candidate], policy: Policy, recipe: ClusterRecipe) -> Bin:
    reason = Reason.CLUSTERING
    # A clustered file alone in its group is rewritten only for its deletes or for ``rewrite_reason``.
    if len(files) == 1 and files[0].is_clustered:
        reason = Reason.SETTINGS if files[0].lacks else Reason.DELETES
    size = sum(c.file.file_size_in_bytes for c in files)
    return Bin(tuple(files), Reason.ALL if policy.rewrite_all else reason, recipe.output_count(size))


def _group(number: int, chosen: WeighedBin, route_to: int | None, specs_to_leave: frozenset[int]) -> FileGroup:
    files = chosen.bin.files
    to = files[0].destination or Destination(files[0].spec_id, files[0].file.partition)
    may_move = len(files) > 1 and to.spec_id in specs_to_leave
    return FileGroup(
        number,
        to.spec_id,
        to.partition,
        files,
        chosen.bin.outputs,
        route_to=route_to if may_move else None,
        reason=chosen.bin.reason,
        worth=chosen.worth,
        output_bytes=chosen.bin.output_bytes,
    )


def _nothing_reason(
    found: Candidates, worthy: Sequence[WeighedBin], unpaid: Sequence[WeighedBin], policy: Policy
) -> str:
    waits = [one for one in worthy if one.bin.for_deletes]
    if waits and len(waits) == len(worthy) and policy.max_files_to_rewrite is policy.max_bytes_to_rewrite is None:
        files = sum(len(one.bin.files) for one in waits)
        return f"{NOTHING_ELIGIBLE} ({files} file(s) under deletes wait, as max_write_amplification asks)"
    if worthy:
        return "no file group fits max_files_to_rewrite and max_bytes_to_rewrite"
    passed = found.passed_over
    if passed.unsupported.files:
        return f"{NOTHING_ELIGIBLE} ({passed.unsupported.files} file(s) are left alone: {passed.first_unsupported})"
    if passed.uncut.files and not unpaid:
        return (
            f"{NOTHING_ELIGIBLE} ({passed.uncut.files} file(s) far above the target cannot be cut between row groups)"
        )
    if unpaid:
        files = sum(len(one.bin.files) for one in unpaid)
        return f"{NOTHING_ELIGIBLE} (merging {files} file(s) costs more than it saves)"
    return NOTHING_ELIGIBLE


def left_alone(
    found: Candidates, bins: Sequence[Bin], unpaid: Iterable[WeighedBin], waiting: Iterable[WeighedBin], policy: Policy
) -> tuple[LeftAlone, ...]:
    """List the files that are not rewritten although their size, deletes or order ask for it.

    Of all ``bins``, the ``unpaid`` cost more than they save, and the ``waiting`` exceed the caps or the budget.
    """
    least = policy.min_input_files
    binned = {id(c) for chosen in bins for c in chosen.files}
    few: list[Candidate] = []
    uneven: list[Candidate] = []
    for files in found.partitions:
        (few if len(files) < least else uneven).extend(c for c in files if id(c) not in binned)
    passed = found.passed_over
    parts = (
        _of(f"their partition has fewer than min_input_files {least} candidates", few),
        _of("they wait for more files of about their size, or for enough bytes to fill a file", uneven),
        _of(f"merging them costs more than it saves in expected_scans {policy.expected_scans}", _files(unpaid)),
        _of("the caps of a pass, or the budget for deletes, leave them to a later one", _files(waiting)),
        _counted("they were added less than min_data_age_hours ago", passed.too_young),
        _counted("they are far above the target, and their row groups leave no place to cut them", passed.uncut),
        _counted("another schedule of the table has ordered them", passed.ordered_elsewhere),
        _counted("deletes apply to them, and delete_compaction_enabled is false", passed.under_deletes),
        _counted(f"they cannot be read: {passed.first_unsupported}", passed.unsupported),
    )
    return tuple(part for part in parts if part.files)


def _files(weighed: Iterable[WeighedBin]) -> list[Candidate]:
    return [c for one in weighed for c in one.bin.files]


def _of(reason: str, files: Sequence[Candidate]) -> LeftAlone:
    return LeftAlone(reason, len(files), sum(c.file.file_size_in_bytes for c in files))


def _counted(reason: str, tally: Tally) -> LeftAlone:
    return LeftAlone(reason, tally.files, tally.bytes)


# The depth is the number of files that a lookup by the clustering columns opens.
_BEFORE, _AFTER = "compact.depth_before", "compact.depth_after"


def planned_depth(plan: CompactionPlan) -> dict[str, float]:
    """The depth now and the depth after the plan, as metrics; empty where rows are not clustered."""
    if plan.depth is None or plan.recipe is None or not plan.groups:
        return {}
    recipe = plan.recipe
    groups = [([c.file.file_path for c in g.files], recipe.output_count(g.total_bytes)) for g in plan.groups]
    return {_BEFORE: plan.depth.now(), _AFTER: plan.depth.as_planned(groups)}


def done_depth(plan: CompactionPlan, after: float | None) -> dict[str, float]:
    """The depth before the pass and ``after`` its last commit, as metrics; unchanged without a commit."""
    if plan.depth is None or not plan.groups:
        return {}
    before = plan.depth.now()
    return {_BEFORE: before, _AFTER: before if after is None else after}


def depth_with(plan: CompactionPlan, outputs: Mapping[int, Sequence[DataFile]]) -> float | None:
    """The depth once the groups (by id) are replaced by ``outputs``; ``None`` where rows are not clustered."""
    if plan.depth is None or not plan.groups:
        return None
    groups = [([c.file.file_path for c in g.files], outputs[g.group_id]) for g in plan.groups if g.group_id in outputs]
    return plan.depth.with_outputs(groups)
