"""Commit the files of rewritten groups that are still valid on the newest head, and record the outcome of every
group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.conflict_detection import GroupClaim, PlanningState, RebaseResult
from icekeeper.commit.snapshot import FileReplacement
from icekeeper.metadata.document import TableMetadata, branch_head
from icekeeper.metadata.entry_columns import METRIC_FIELDS
from icekeeper.model import DataFile, FileKey, ManifestContent, Nothing
from icekeeper.operations.compaction.land.group_entries import OVERTAKEN
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.output_sizes import SIZES_KEY, recorded_sizes
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, depth_with
from icekeeper.operations.compaction.terms.rewrite_task import NONE_FORWARDED, Forwarded, RewriteResult, row_map_path
from icekeeper.pass_context.commit_rewrite import GroupsRefused, Rewrite, commit_rewrite
from icekeeper.pass_context.context import OperationContext
from icekeeper.rows.arrow_schema import leaf_columns


@dataclass(slots=True)
class GroupOutcomes:
    """The results of a plan's groups so far, updated with every commit."""

    delete_needs: dict[FileKey, int]
    """Live delete file → how many live data files still need it."""
    committed: dict[int, RewriteResult] = field(default_factory=dict)
    """Id of a committed group → its result."""
    committed_by: dict[int, int] = field(default_factory=dict)
    """Id of a committed group → the snapshot."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Id of a group that conflicts with other commits → reason."""
    errors: list[str] = field(default_factory=list)
    """Messages of failed groups and commits."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Data and delete files that cannot be read: path → a sentence that names it.  Groups are rewritten without
    them."""
    groups_given_up: int = 0
    """Groups with nothing left to merge without their unreadable files."""
    failed_groups: int = 0
    groups_left: int = 0
    """Groups that are left to the next run, because of :attr:`why_left`."""
    why_left: str = ""
    snapshot_ids: list[int] = field(default_factory=list)
    deletes_removed: int = 0
    rows_forwarded: int = 0
    """Rows that other commits deleted meanwhile and that our commits therefore deleted in the outputs."""
    depth: float | None = None
    """The clustering depth after the last commit; ``None``: nothing was committed, or rows are not clustered."""
    nothing: str = ""
    """Why nothing was committed; empty if something was."""


def commit_results(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    results: Sequence[RewriteResult],
    outcomes: GroupOutcomes,
) -> None:
    """Commit the files of all ``results`` that are still valid in a single snapshot, and update ``outcomes``.

    ``loaded`` is the table at planning.  In a dry run these are the expected files.  Output files of groups that are
    not committed are removed, unless a commit of unknown outcome may refer to them.

    Raises:
        CommitStateUnknown: the outcome of the commit is unknown; the output files stay.
        MaintenanceError: none of the results was committed.
    """
    done = _without_failed(results, outcomes)
    groups = [group.unpacked for group in plan.groups if group.group_id in done]
    if not groups and 0 not in outcomes.delete_needs.values():
        outcomes.nothing = f"every file group failed: {outcomes.errors[0]}" if outcomes.errors else OVERTAKEN
        return
    attempts = _Attempts(context, loaded, plan, groups, done, outcomes)
    landed, rebased = commit_rewrite(context, _rewrite(loaded, plan, groups, done, outcomes), attempts.replacement_on)
    outcomes.dropped |= rebased.dropped
    if isinstance(landed, Nothing):
        outcomes.nothing = landed.reason
        return
    attempts.note(landed.prepared.snapshot_id or 0, rebased)


class _Attempts:
    """The attempts at a commit of rewritten groups."""

    def __init__(
        self,
        context: OperationContext,
        loaded: LoadedTable,
        plan: CompactionPlan,
        groups: Sequence[FileGroup],
        done: Mapping[int, RewriteResult],
        outcomes: GroupOutcomes,
    ) -> None:
        self._context, self._loaded, self._plan = context, loaded, plan
        self._groups, self._done, self._outcomes = groups, done, outcomes
        self._forward: Callable[[TableMetadata, RebaseResult], Forwarded] | None = None
        # The results of the last attempt.
        self._forwarded = NONE_FORWARDED
        self._depth: float | None = None

    def replacement_on(
        self, head: TableMetadata, rebased: RebaseResult
    ) -> tuple[FileReplacement, Collection[str]] | Nothing | GroupsRefused:
        """See :data:`.ReplacementOn`."""
        if not rebased.kept and not rebased.unneeded_deletes:
            return Nothing(next(iter(rebased.dropped.values()), "every delete file is needed again"))
        forwarded = self._forwarded = self._forwarded_on(head, rebased)
        if forwarded.refused:
            return GroupsRefused(forwarded.refused)
        plan, done = self._plan, self._done
        kept = [group for group in self._groups if group.group_id in rebased.kept]
        committed = self._outcomes.committed | {group.group_id: done[group.group_id] for group in kept}
        self._depth = depth_with(plan, {group_id: result.written for group_id, result in committed.items()})
        return FileReplacement(
            removed=rebased.unneeded_deletes.union(forwarded.dangling, (c.key for group in kept for c in group.files)),
            added=(*(added for group in kept for added in _added(group, done[group.group_id])), *forwarded.added),
            data_sequence_number=plan.sequence_number,
            # Java validates only deletes that are newer than its own starting snapshot: an older number would hide
            # them.
            own_sequence_numbers={file.key: None for _, file in forwarded.added},
            staged=forwarded.paths,
            recipe=None if plan.recipe is None else plan.recipe.text,
            clustering_depth=self._depth,
            noted=_noted(plan, kept, done),
        ), rebased.affected.union(forwarded.dangling.values())

    def _forwarded_on(self, head: TableMetadata, rebased: RebaseResult) -> Forwarded:
        if not rebased.newer and not rebased.moved_on:
            return NONE_FORWARDED
        if self._forward is None:
            # Imported here, because few commits need it.
            from icekeeper.operations.compaction.land.forward_deletes import DeleteForwarder

            replaced = _replaced(self._plan, self._outcomes)
            found = DeleteForwarder(self._context, self._loaded, self._plan, self._groups, self._done, replaced)
            self._forward = found.forward
        return self._forward(head, rebased)

    def note(self, snapshot_id: int, rebased: RebaseResult) -> None:
        """Add the commit that landed to the outcomes and delete its row maps."""
        outcomes, done, recipe = self._outcomes, self._done, self._plan.recipe
        outcomes.depth = self._depth
        outcomes.snapshot_ids.append(snapshot_id)
        outcomes.deletes_removed += len(rebased.unneeded_deletes) + len(self._forwarded.dangling)
        outcomes.rows_forwarded += self._forwarded.rows
        for key in rebased.unneeded_deletes:
            outcomes.delete_needs.pop(key)
        kept = [group for group in self._groups if group.group_id in rebased.kept]
        # The clustering depth after later commits needs the bounds; of a large plan without recipe, results are many.
        slim = _without_metrics if recipe is None else lambda result: result
        outcomes.committed |= {group.group_id: slim(done[group.group_id]) for group in kept}
        outcomes.committed_by |= {group.group_id: snapshot_id for group in kept}
        for key, count in _needed(*kept).items():
            if key in outcomes.delete_needs:
                outcomes.delete_needs[key] -= count
        self._context.discard(self._loaded, (path for group in kept for path in _row_maps(done[group.group_id])))
        if recipe is not None and rebased.kept and not self._context.dry_run:
            self._context.memory.remember_clustering(snapshot_id, recipe.text)


_NO_METRICS: dict[str, Any] = dict.fromkeys(METRIC_FIELDS.values())


def _without_metrics(result: RewriteResult) -> RewriteResult:
    """The result without the column metrics of its files, which make up most of it."""
    return replace(result, written=tuple(replace(file, **_NO_METRICS) for file in result.written))


def _without_failed(results: Iterable[RewriteResult], outcomes: GroupOutcomes) -> dict[int, RewriteResult]:
    """The results that may be committed, by group; the other results are recorded in ``outcomes``."""
    done: dict[int, RewriteResult] = {}
    for result in results:
        if result.overtaken is not None:
            outcomes.dropped[result.group_id] = result.overtaken
        elif result.error is not None:
            outcomes.errors.append(result.error)
            outcomes.failed_groups += 1
        else:
            done[result.group_id] = result
    return done


def _noted(plan: CompactionPlan, kept: Sequence[FileGroup], done: Mapping[int, RewriteResult]) -> dict[str, str]:
    """The record of output sizes for the snapshot summary, from decoded groups of writers' files.

    Clustering and deletes also change the size, so such groups do not count.
    """
    shown = [
        (len(group.files), group.total_bytes, sum(file.file_size_in_bytes for file in done[group.group_id].written))
        for group in kept
        if not (done[group.group_id].bytes_copied or done[group.group_id].rows_deleted)
        and not any(c.is_rewritten for c in group.files)
    ]
    text = None if plan.recipe is not None else recorded_sizes(plan.sizes, shown)
    return {} if text is None else {SIZES_KEY: text}


def _added(group: FileGroup, result: RewriteResult) -> list[tuple[int, DataFile]]:
    spec_id = group.spec_id if result.spec_id is None else result.spec_id
    return [(spec_id, file) for file in result.written]


def _rewrite(
    loaded: LoadedTable,
    plan: CompactionPlan,
    groups: Sequence[FileGroup],
    done: Mapping[int, RewriteResult],
    outcomes: GroupOutcomes,
) -> Rewrite:
    planned = PlanningState(
        metadata=loaded.metadata,
        snapshot_id=plan.snapshot_id,
        manifests=plan.planning_manifests,
        delete_needs=outcomes.delete_needs,
        own_snapshots=outcomes.snapshot_ids,
    )
    held = frozenset(leaf.field_id for leaf in leaf_columns(loaded.metadata.current_schema))
    claims = [
        GroupClaim(
            group_id=group.group_id,
            output_scopes=frozenset((spec_id, file.partition) for spec_id, file in _added(group, done[group.group_id])),
            input_scopes=group.scopes,
            inputs={c.key: (c.manifest_path, c.identity) for c in group.files},
            output_field_ids=held,
            deletes=_needed(group),
            position_deletes=frozenset(entry.file.key for c in group.files for entry in c.position_deletes),
            homes={c.file_path: (c.spec_id, c.partition) for c in group.files} if _is_traced(plan, group, done) else {},
            without_row_ids=not group.has_lineage,
        )
        for group in groups
    ]
    outputs = {
        group_id: [*(file.file_path for file in result.written), *_row_maps(result)]
        for group_id, result in done.items()
    }
    return Rewrite(loaded, planned, claims, outputs)


def _is_traced(plan: CompactionPlan, group: FileGroup, done: Mapping[int, RewriteResult]) -> bool:
    """Whether the position of each row in the outputs is known, so that deletes of the inputs can be forwarded."""
    keeps_order = plan.recipe is None and group.route_to is None
    return keeps_order or done[group.group_id].has_row_maps


def _row_maps(result: RewriteResult) -> list[str]:
    return [row_map_path(file.file_path) for file in result.written] if result.has_row_maps else []


def _replaced(plan: CompactionPlan, outcomes: GroupOutcomes) -> dict[str, int]:
    """The inputs that earlier commits of the plan have replaced: path → the snapshot."""
    return {
        candidate.file_path: outcomes.committed_by[group.group_id]
        for group in plan.groups
        if group.group_id in outcomes.committed_by
        for candidate in group.unpacked.files
    }


def _needed(*groups: FileGroup) -> Counter[FileKey]:
    return Counter(entry.file.key for group in groups for candidate in group.files for entry in candidate.deletes)


def with_row_ids(context: OperationContext, groups: Sequence[FileGroup], outcomes: GroupOutcomes) -> list[FileGroup]:
    """The groups with the row ids that a commit has given to their rows since planning (rule: rows-keep-their-lineage).

    Groups with a file that another commit has changed are dropped.

    Raises:
        MaintenanceError: the head or its manifests cannot be read.
    """
    waiting = {c.key: c.identity for group in groups for c in group.files}
    loaded = context.load()
    snapshot, reader = branch_head(loaded.metadata, context.policy.branch), context.reader(loaded)
    row_ids: dict[FileKey, int | None] = {}
    manifests = [] if snapshot is None else reader.manifests(snapshot)
    for _, entry in reader.live_entries(manifests, ManifestContent.DATA):
        key = entry.file.key
        if key in waiting and waiting[key].is_same(entry.identity):
            row_ids[key] = entry.file.first_row_id
    kept: list[FileGroup] = []
    for group in groups:
        if any(c.key not in row_ids for c in group.files):
            outcomes.dropped[group.group_id] = "another commit removed or rewrote an input file"
        elif len({row_ids[c.key] is None for c in group.files}) > 1:
            outcomes.dropped[group.group_id] = "another commit gave ids to only some of its rows"
        else:
            files = (replace(c, first_row_id=row_ids[c.key]) for c in group.files)
            kept.append(replace(group, files=tuple(files)))
    return kept
