"""Plan a compaction: which data files are rewritten together, and why other files stay unchanged (pure).

The plan follows SeaweedFS's worker (rule: bounded-merge-rewrites): it groups small files by spec and partition and
divides each group into bins of about the target size.  A last bin that is not full and has fewer than
``min_input_files`` files stays unchanged.  Bins that pay for themselves and fit the budget become file groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import DataFile, FileKey, ManifestContent, Nothing
from icekeeper.operations.compaction.plan.bins import FileGroup, Reason, binpacked
from icekeeper.operations.compaction.plan.candidate import Candidate, GroupKey
from icekeeper.operations.compaction.plan.candidates import (
    Candidates,
    FileCounts,
    FileScope,
    PassedOver,
    TableState,
    Tally,
    rest_rule,
    select_candidates,
)
from icekeeper.operations.compaction.plan.large_files import large_from
from icekeeper.operations.compaction.plan.output_sizes import UNCHANGED_SIZES, OutputSizes
from icekeeper.operations.compaction.plan.packed_files import PackedFiles
from icekeeper.operations.compaction.plan.payback import RewriteHistory, in_job_order, weighed, within_budget
from icekeeper.operations.compaction.plan.plan_clustering import ClusteringDepth, Layout, clustering_groups
from icekeeper.operations.compaction.plan.shredding import VariantsOf, divided_by_variants
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe
from icekeeper.policy import Policy
from icekeeper.policy.values import RewriteReason
from icekeeper.rows.arrow_schema import variant_ids
from icekeeper.text import counted

NO_SNAPSHOT = "no current snapshot"
NOTHING_ELIGIBLE = "no files eligible for compaction"
DELETES_DISABLED = "compaction skipped: delete manifests present and apply_deletes is disabled"


@dataclass(frozen=True, slots=True)
class NothingToCompact(Nothing):
    """No file group is both worth rewriting and allowed by the policy."""

    left: Mapping[str, Tally] = field(default_factory=dict)
    """Why files are not rewritten → their number and bytes."""


@dataclass(frozen=True, slots=True)
class Divided:
    """All groups of a table's candidates that could be rewritten, and counts of the candidates outside the groups."""

    counts: FileCounts
    groups: Sequence[FileGroup]
    few: Tally
    """The candidates of partitions with fewer than ``min_input_files`` candidates."""
    uneven: Tally


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to rewrite, as planned at a snapshot, and what the planner saw."""

    snapshot_id: int
    sequence_number: int
    groups: tuple[FileGroup, ...]
    planning_manifests: frozenset[str]
    """Paths of all manifests of the snapshot."""
    files_considered: int
    files_unsupported: int
    first_unsupported: str = ""
    """The path of the first such file, and why it cannot be read."""
    files_kept: int = 0
    """Candidates of older specs that must not move to the current spec."""
    first_kept: str = ""
    """The path of the first such file, and why it must not move."""
    delete_needs: Mapping[FileKey, int] = field(default_factory=dict)
    """Live delete file → how many live data files need it; 0: dangling."""
    groups_waiting: int = 0
    """The number of groups that the policy's caps leave to a later pass."""
    left: Mapping[str, Tally] = field(default_factory=dict)
    """As in :class:`NothingToCompact`."""
    recipe: ClusterRecipe | None = None
    """The order of the rows in every group; ``None``: rows keep their order."""
    sizes: OutputSizes = UNCHANGED_SIZES
    """The output sizes that the plan expects."""
    depth: ClusteringDepth | None = None
    """The files' ranges in the clustering columns; ``None``: the table is not clustered."""

    @property
    def is_packed(self) -> bool:
        """Whether there are too many files to list them all."""
        return any(isinstance(group.files, PackedFiles) for group in self.groups)

    @property
    def input_files(self) -> tuple[str, ...]:
        return tuple(c.file_path for group in self.groups for c in group.files)

    @property
    def paths(self) -> Iterator[str]:
        """Paths of the input files and of the delete files that apply to them; large plans have many."""
        for candidate in (c for group in self.groups for c in group.files):
            yield candidate.file_path
            yield from (entry.file.file_path for entry in candidate.deletes)

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
    recipe: ClusterRecipe | None = None,
    clustered_by: Container[int] = frozenset(),
    lacking: Mapping[str, frozenset[RewriteReason]] = MappingProxyType({}),
    cuts: bool = False,
    variants_of: VariantsOf | None = None,
) -> CompactionPlan | Nothing:
    """Group the data files to rewrite, and count for each delete file the data files that need it.

    ``now_ms`` is epoch milliseconds.  Without ``recipe`` rows keep their order (binpack).  ``clustered_by``: ids of the
    snapshots that added files clustered by it.  ``lacking`` maps a path to the reasons of ``rewrite_reason`` that apply
    to the file by its footer.  ``cuts``: large files may be cut, because the target size was set explicitly.
    ``variants_of``: as :func:`.variants_by_footer` returns it; ``None``: the table has no variants.
    """
    metadata, snapshot = state.metadata, state.snapshot
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    has_deletes = any(m.content is ManifestContent.DELETES and m.may_have_live_files for m in state.manifests)
    if has_deletes and not policy.apply_deletes:
        return NothingToCompact(DELETES_DISABLED)
    layout = None if recipe is None else Layout.of(recipe, metadata.current_schema)
    sizes = OutputSizes.of(metadata, snapshot) if recipe is None else UNCHANGED_SIZES
    cuts = cuts and recipe is None and policy.rewrite_enabled and policy.min_row_group_copy_bytes is not None
    found = select_candidates(
        state,
        policy,
        in_scope=in_scope,
        lacking=lacking,
        cuts=cuts,
        recipe=recipe,
        clustered_by=clustered_by,
        extents_of=None if layout is None else layout.leading_extents,
        sizes=sizes,
    )
    if variants_of is not None:
        found = divided_by_variants(found, variants_of)
    divided = _groups(found, metadata, policy, now_ms, recipe, layout, sizes, cuts=cuts)
    groups = [weighed(group, policy, found.spread) for group in divided]
    few, uneven = ungrouped(found.partitions, groups, policy)
    depth = None if layout is None else ClusteringDepth.of(found.partitions.values(), layout)
    return chosen_plan(state, policy, Divided(found.counts, groups, few, uneven), recipe, sizes, depth)


def chosen_plan(
    state: TableState,
    policy: Policy,
    divided: Divided,
    recipe: ClusterRecipe | None,
    sizes: OutputSizes,
    depth: ClusteringDepth | None,
) -> CompactionPlan | Nothing:
    """The plan of the groups that the policy allows in a pass."""
    snapshot, found, groups = state.snapshot, divided.counts, divided.groups
    assert snapshot is not None
    allowed, waiting = within_budget(groups, policy, _history(state, snapshot))
    left = _left_alone(divided, waiting, policy)
    if not allowed and 0 not in found.delete_needs.values():
        reason = _nothing_reason(found, groups, policy)
        if reason == NOTHING_ELIGIBLE and divided.few.files >= policy.min_input_files and _has_variants(state):
            reason += f" ({divided.few.files} file(s) store variants in too many ways to be merged)"
        return NothingToCompact(reason, left)
    return CompactionPlan(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
        groups=_in_order(allowed, policy, state.metadata.default_spec_id, found.specs_to_leave),
        planning_manifests=frozenset(m.manifest_path for m in state.manifests),
        files_considered=found.considered,
        files_unsupported=found.passed_over[PassedOver.UNSUPPORTED].files,
        first_unsupported=found.passed_over[PassedOver.UNSUPPORTED].first,
        files_kept=found.passed_over[PassedOver.KEPT].files,
        first_kept=found.passed_over[PassedOver.KEPT].first,
        delete_needs=found.delete_needs,
        groups_waiting=len(waiting),
        left=left,
        recipe=recipe,
        sizes=sizes,
        depth=depth,
    )


def _has_variants(state: TableState) -> bool:
    return bool(variant_ids(state.metadata.current_schema))


def _history(state: TableState, head: Snapshot) -> RewriteHistory:
    oldest_delete = min((entry.sequence_number or 0 for entry in state.deletes.entries), default=None)
    if oldest_delete is None:
        return RewriteHistory(0, 0, 0)  # no file is rewritten because of deletes
    return RewriteHistory.of(state.metadata, head, oldest_delete)


def _groups(
    found: Candidates,
    metadata: TableMetadata,
    policy: Policy,
    now_ms: int,
    recipe: ClusterRecipe | None,
    layout: Layout | None,
    sizes: OutputSizes,
    *,
    cuts: bool,
) -> Iterator[FileGroup]:
    if recipe is None or layout is None:
        is_at_rest = rest_rule(metadata, policy, now_ms)
        for files in found.partitions.values():
            yield from partition_groups(files, policy, is_at_rest, sizes, cuts=cuts)
        return
    partitions = found.partitions.values()
    for files in (group for partition in partitions for group in clustering_groups(partition, policy, layout)):
        reason = Reason.CLUSTERING
        if policy.rewrite_all:
            reason = Reason.ALL
        elif len(files) == 1 and files[0].is_clustered:
            # A clustered file alone in its group is rewritten only for its deletes or for ``rewrite_reason``.
            reason = Reason.SETTINGS if files[0].lacks else Reason.DELETES
        size = sum(c.file_size_in_bytes for c in files)
        yield FileGroup(tuple(files), reason, recipe.output_count(size))


def partition_groups(
    files: list[Candidate],
    policy: Policy,
    is_at_rest: Callable[[Sequence[Candidate]], bool],
    sizes: OutputSizes,
    *,
    cuts: bool,
) -> list[FileGroup]:
    """The groups of a partition's candidates; rows keep their order."""
    large = large_from(policy) if cuts else math.inf
    # Files that will be cut do not count as small files of the partition.
    small = [c for c in files if c.is_due or c.file_size_in_bytes < large]
    return binpacked(files, policy, at_rest=is_at_rest(small), cuts=cuts, sizes=sizes)


def _in_order(
    groups: Sequence[FileGroup], policy: Policy, route_to: int, specs_to_leave: frozenset[int]
) -> tuple[FileGroup, ...]:
    """Number the groups in the order of their rewrites; groups of several files in a spec to leave may be divided among
    partitions of ``route_to``."""
    ordered = in_job_order(groups, policy.rewrite_job_order)
    may_move = [len(group.files) > 1 and group.spec_id in specs_to_leave for group in ordered]
    return tuple(
        replace(group, group_id=n, route_to=route_to if may_move[n] else None) for n, group in enumerate(ordered)
    )


def _nothing_reason(found: FileCounts, groups: Sequence[FileGroup], policy: Policy) -> str:
    worthy = [group for group in groups if group.worth.pays]
    unpaid = sum(len(group.files) for group in groups if not group.worth.pays)
    waits = [group for group in worthy if group.reason is Reason.DELETES]
    if waits and len(waits) == len(worthy) and policy.max_files_to_rewrite is policy.max_bytes_to_rewrite is None:
        files = sum(len(group.files) for group in waits)
        return f"{NOTHING_ELIGIBLE} ({files} file(s) under deletes wait until writers have added more data)"
    if worthy:
        return "no file group fits max_files_to_rewrite and max_bytes_to_rewrite"
    unsupported, uncut = (found.passed_over[reason] for reason in (PassedOver.UNSUPPORTED, PassedOver.UNCUT))
    if unsupported.files:
        return f"{NOTHING_ELIGIBLE} ({unsupported.files} file(s) stay unchanged: {unsupported.first})"
    if uncut.files and not unpaid:
        return f"{NOTHING_ELIGIBLE} ({uncut.files} file(s) far above the target cannot be cut between row groups)"
    if unpaid:
        return f"{NOTHING_ELIGIBLE} (merging {unpaid} file(s) costs more than it saves)"
    return NOTHING_ELIGIBLE


def ungrouped(
    partitions: Mapping[GroupKey, Sequence[Candidate]], groups: Iterable[FileGroup], policy: Policy
) -> tuple[Tally, Tally]:
    """The candidates that are in no group: those of partitions with fewer than ``min_input_files``, and the others."""
    few, uneven = Tally(), Tally()
    of = {key: (few if len(files) < policy.min_input_files else uneven) for key, files in partitions.items()}
    for key, files in partitions.items():
        of[key].count(len(files), sum(c.file_size_in_bytes for c in files))
    for group in groups:
        of[group.key].count(-len(group.files), -group.total_bytes)
    return few, uneven


def _left_alone(divided: Divided, waiting: Iterable[FileGroup], policy: Policy) -> dict[str, Tally]:
    """List the files that are not rewritten although their size, deletes or order would be a reason.

    ``waiting``: the groups that exceed the caps or the budget.
    """
    unpaid, later = Tally(), Tally()
    for group in divided.groups:
        if not group.worth.pays:
            unpaid.count(len(group.files), group.total_bytes)
    for group in waiting:
        later.count(len(group.files), group.total_bytes)
    parts = {
        f"in partitions with fewer than min_input_files {policy.min_input_files} candidates": divided.few,
        "they wait for more files of about their size, or for enough bytes to fill a file": divided.uneven,
        f"merging them costs more than it saves in expected_scans {policy.expected_scans}": unpaid,
        "the caps of a pass, or the budget for deletes, leave them to a later pass": later,
    }
    for reason, tally in divided.counts.passed_over.items():
        parts[f"{reason}: {tally.first}" if tally.first else reason.value] = tally
    return {reason: tally for reason, tally in parts.items() if tally.files}


def counters(plan: CompactionPlan) -> dict[str, int]:
    """What the plan considered and what it leaves, as metrics."""
    return {
        "compact.files_considered": plan.files_considered,
        "compact.files_unsupported": plan.files_unsupported,
        "compact.bins_waiting": plan.groups_waiting,
    }


def kept_sentence(plan: CompactionPlan) -> str:
    """A clause for the summary about files that must not move to the current spec; may be empty."""
    return f"; {counted(plan.files_kept, 'file')} stay in an old spec: {plan.first_kept}" if plan.files_kept else ""


# The depth is the number of files that a lookup by the clustering columns opens.
_BEFORE, _AFTER = "compact.depth_before", "compact.depth_after"


def planned_depth(plan: CompactionPlan) -> dict[str, float]:
    """The depth now, as a metric; empty if rows are not clustered."""
    return {} if plan.depth is None or not plan.groups else {_BEFORE: plan.depth.now()}


def done_depth(plan: CompactionPlan, after: float | None) -> dict[str, float]:
    """The depth before the pass and ``after`` its last commit, as metrics; unchanged without a commit."""
    if plan.depth is None or not plan.groups:
        return {}
    before = plan.depth.now()
    return {_BEFORE: before, _AFTER: before if after is None else after}


def depth_with(plan: CompactionPlan, outputs: Mapping[int, Sequence[DataFile]]) -> float | None:
    """The depth once the groups (by id) are replaced by ``outputs``; ``None`` if rows are not clustered."""
    if plan.depth is None or not plan.groups:
        return None
    groups = [([c.file_path for c in g.files], outputs[g.group_id]) for g in plan.groups if g.group_id in outputs]
    return plan.depth.with_outputs(groups)
