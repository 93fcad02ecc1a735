"""Commits the rewritten file groups that still fit the newest head, as one snapshot per call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.conflict_detection import ClaimedFile, GroupClaim, PlanningState, RebaseResult
from icekeeper.commit.snapshot import FileReplacement
from icekeeper.commit.transaction import Committed
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, FileKey, Nothing
from icekeeper.operations.compaction.depth_metrics import depth_with
from icekeeper.operations.compaction.output_sizes import SIZES_KEY, recorded_sizes
from icekeeper.operations.compaction.plan import CompactionPlan, FileGroup
from icekeeper.operations.compaction.task import RewriteResult
from icekeeper.pass_context.commit_rewrite import Rewrite, commit_rewrite
from icekeeper.pass_context.context import OperationContext
from icekeeper.rows.arrow_schema import leaf_columns

__all__ = ["GroupOutcomes", "commit_results"]


@dataclass(slots=True)
class GroupOutcomes:
    """What became of a plan's groups so far, commit by commit."""

    delete_needs: dict[FileKey, int]
    """Live delete file → how many live data files still need it."""
    outputs: dict[int, tuple[DataFile, ...]] = field(default_factory=dict)
    """Group id → output files, of the groups that were committed."""
    bytes_copied: dict[int, int] = field(default_factory=dict)
    """Group id → bytes of row groups that were copied, of the same groups."""
    bytes_unread: int = 0
    """Of these, bytes that the store copied itself, so that nobody verified the checksums of their pages."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Group id → reason, of the groups that other commits overtook."""
    errors: list[str] = field(default_factory=list)
    """Messages of groups that could not be rewritten, and of commits that failed."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Data and delete files that cannot be read: path → a sentence with it.  Groups are rewritten without them."""
    groups_given_up: int = 0
    """Groups of which nothing is left to merge without what cannot be read."""
    failed_groups: int = 0
    groups_left: int = 0
    """Groups that there was no time for; the next run has them."""
    why_left: str = ""
    snapshot_ids: list[int] = field(default_factory=list)
    table: TableMetadata | None = None
    """The table after the last commit."""
    rows_deleted: int = 0
    deletes_removed: int = 0
    depth: float | None = None
    """How deep the last commit left the table; ``None``: nothing was committed, or rows are not clustered."""
    nothing: str = ""
    """Why nothing was committed, when nothing was."""


def commit_results(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    results: Sequence[RewriteResult],
    outcomes: GroupOutcomes,
) -> None:
    """Commit the files of these results, and note in ``outcomes`` what became of each group.

    ``loaded`` is the table at planning; in a dry run the files are those that are expected.  Output files of groups
    that are not committed are removed, unless a commit of unknown outcome may refer to them.

    Raises:
        CommitStateUnknown: the outcome of the commit could not be found out; the output files stay.
        MaintenanceError: nothing of these results was committed.
    """
    done = {r.group_id: r for r in results if r.error is None}
    outcomes.errors += [r.error for r in results if r.error is not None]
    outcomes.failed_groups += len(results) - len(done)
    groups = [group for group in plan.groups if group.group_id in done]
    if not groups and 0 not in outcomes.delete_needs.values():
        outcomes.nothing = f"every file group failed: {outcomes.errors[0]}"
        return
    planned = PlanningState(
        metadata=loaded.metadata,
        snapshot_id=plan.snapshot_id,
        manifests=plan.planning_manifests,
        delete_needs=outcomes.delete_needs,
        own_snapshots=outcomes.snapshot_ids,
    )
    outputs = {group_id: [file.file_path for file in result.written] for group_id, result in done.items()}
    rewrite = Rewrite(loaded, planned, _claims(loaded.metadata, groups, done), outputs)
    depth: float | None = None

    def replacement_on(head: TableMetadata, rebased: RebaseResult) -> tuple[FileReplacement, Collection[str]] | Nothing:
        if not rebased.kept and not rebased.unneeded_deletes:
            return Nothing(next(iter(rebased.dropped.values()), "no delete file is without use any more"))
        nonlocal depth
        kept = [group for group in groups if group.group_id in rebased.kept]
        depth = depth_with(plan, outcomes.outputs | {g.group_id: done[g.group_id].written for g in kept})
        replacement = FileReplacement(
            removed=rebased.unneeded_deletes.union(c.file.key for group in kept for c in group.files),
            added=tuple(added for group in kept for added in _added(group, done[group.group_id])),
            data_sequence_number=plan.sequence_number,
            recipe=None if plan.recipe is None else plan.recipe.text,
            clustering_depth=depth,
            noted=_noted(plan, kept, done),
        )
        return replacement, rebased.affected

    committed, rebased = commit_rewrite(context, rewrite, replacement_on)
    outcomes.dropped |= rebased.dropped
    if isinstance(committed, Nothing):
        outcomes.nothing = committed.reason
        return
    _note(outcomes, committed, rebased, groups, done)
    outcomes.depth = depth
    if plan.recipe is not None and rebased.kept and not context.dry_run:
        context.memory.remember_clustering(outcomes.snapshot_ids[-1], plan.recipe.text)


def _note(
    outcomes: GroupOutcomes,
    committed: Committed,
    rebased: RebaseResult,
    groups: Sequence[FileGroup],
    done: Mapping[int, RewriteResult],
) -> None:
    outcomes.snapshot_ids.append(committed.prepared.snapshot_id or 0)
    outcomes.table = committed.table.metadata
    outcomes.deletes_removed += len(rebased.unneeded_deletes)
    for key in rebased.unneeded_deletes:
        outcomes.delete_needs.pop(key)
    for group in groups:
        if group.group_id in rebased.kept:
            outcomes.outputs[group.group_id] = done[group.group_id].written
            outcomes.bytes_copied[group.group_id] = done[group.group_id].bytes_copied
            outcomes.bytes_unread += done[group.group_id].bytes_unread
            outcomes.rows_deleted += done[group.group_id].rows_deleted
            for key, count in _needed(group).items():
                if key in outcomes.delete_needs:
                    outcomes.delete_needs[key] -= count


def _noted(plan: CompactionPlan, kept: Sequence[FileGroup], done: Mapping[int, RewriteResult]) -> dict[str, str]:
    """How much smaller files came out that were decoded as writers had left them, all rows kept and in their order."""
    shown = [
        (len(group.files), group.total_bytes, sum(file.file_size_in_bytes for file in done[group.group_id].written))
        for group in kept
        if not (done[group.group_id].bytes_copied or done[group.group_id].rows_deleted)
        and not any(c.identity.is_rewritten for c in group.files)
    ]
    text = None if plan.recipe is not None else recorded_sizes(plan.sizes, shown)
    return {} if text is None else {SIZES_KEY: text}


def _added(group: FileGroup, result: RewriteResult) -> list[tuple[int, DataFile]]:
    spec_id = group.spec_id if result.spec_id is None else result.spec_id
    return [(spec_id, file) for file in result.written]


def _claims(planned: TableMetadata, groups: Sequence[FileGroup], done: Mapping[int, RewriteResult]) -> list[GroupClaim]:
    held = frozenset(leaf.field_id for leaf in leaf_columns(planned.current_schema))
    return [
        GroupClaim(
            group_id=group.group_id,
            output_scopes=frozenset((spec_id, file.partition) for spec_id, file in _added(group, done[group.group_id])),
            input_scopes=group.scopes,
            inputs={c.file.key: ClaimedFile(c.manifest_path, c.identity) for c in group.files},
            output_field_ids=held,
            deletes=_needed(group),
            without_row_ids=not group.has_lineage,
        )
        for group in groups
    ]


def _needed(group: FileGroup) -> Counter[FileKey]:
    return Counter(entry.file.key for candidate in group.files for entry in candidate.deletes)
