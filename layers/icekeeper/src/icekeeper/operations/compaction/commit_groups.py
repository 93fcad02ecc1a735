"""Commits rewritten file groups: what still holds on the newest head, one snapshot per call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.rebase import ClaimedFile, GroupClaim, RebaseResult, rebase
from icekeeper.commit.snapshot import FileReplacement
from icekeeper.commit.transaction import Committed
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, FileKey, Nothing
from icekeeper.operations.compaction.arrow_schema import leaf_columns
from icekeeper.operations.compaction.plan import CompactionPlan, FileGroup
from icekeeper.operations.compaction.task import RewriteResult
from icekeeper.pass_context.context import OperationContext, require_writable

__all__ = ["Landed", "commit_groups"]


@dataclass(slots=True)
class Landed:
    """What became of a plan's groups so far, commit by commit."""

    delete_needs: dict[FileKey, int]
    """Live delete file → how many live data files still need it."""
    outputs: dict[int, tuple[DataFile, ...]] = field(default_factory=dict)
    """Of the groups that are in the table."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Groups that other commits overtook, and why."""
    errors: list[str] = field(default_factory=list)
    """Of groups that could not be rewritten, and of commits that failed."""
    failed_groups: int = 0
    snapshot_ids: list[int] = field(default_factory=list)
    rows_deleted: int = 0
    deletes_removed: int = 0
    nothing: str = ""
    """Why nothing was committed, when nothing was."""


def commit_groups(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    results: Sequence[RewriteResult],
    landed: Landed,
) -> None:
    """Commit what these results hold, and note in ``landed`` what became of it.

    ``loaded`` is the table at planning.  Outputs of groups that do not land are removed, unless they may be live.

    Raises:
        CommitStateUnknown: the outcome could not be found out; the outputs stay.
        MaintenanceError: nothing of these results was committed.
    """
    done = {r.group_id: r for r in results if r.error is None}
    landed.errors += [r.error for r in results if r.error is not None]
    landed.failed_groups += len(results) - len(done)
    groups = [group for group in plan.groups if group.group_id in done]
    if not groups and 0 not in landed.delete_needs.values():
        landed.nothing = f"every file group failed: {landed.errors[0]}"
        return
    last: RebaseResult | None = None

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        nonlocal last
        require_writable(head.metadata)
        reader = context.reader(head)
        last = rebase(
            loaded.metadata,
            plan.planning_manifests,
            plan.snapshot_id,
            head.metadata,
            reader,
            context.policy.branch,
            _claims(loaded.metadata, groups, done),
            landed.delete_needs,
            landed.snapshot_ids,
        )
        if not last.kept and not last.unneeded_deletes:
            return Nothing(next(iter(last.dropped.values()), "no delete file is without use any more"))
        kept = [group for group in groups if group.group_id in last.kept]
        writer = context.snapshot_writer(head)
        replacement = FileReplacement(
            removed=last.unneeded_deletes.union(c.file.key for group in kept for c in group.files),
            added=tuple(added for group in kept for added in _added(group, done[group.group_id])),
            data_sequence_number=plan.sequence_number,
            recipe=None if plan.recipe is None else plan.recipe.text,
        )
        return writer.replace_files(replacement, last.manifests, last.affected)

    committed = context.commit_outputs(loaded, prepare, _paths(done.values()))
    if last is None:
        raise AssertionError("a commit ended without having been prepared")
    landed.dropped |= last.dropped
    context.discard(loaded, _paths(result for group_id, result in done.items() if group_id in last.dropped))
    if isinstance(committed, Nothing):
        landed.nothing = committed.reason
        return
    _note(landed, committed, last, groups, done)
    if plan.recipe is not None and last.kept:
        context.memory.remember_clustering(landed.snapshot_ids[-1], plan.recipe.text)


def _note(
    landed: Landed,
    committed: Committed,
    rebased: RebaseResult,
    groups: Sequence[FileGroup],
    done: Mapping[int, RewriteResult],
) -> None:
    landed.snapshot_ids.append(committed.prepared.snapshot_id or 0)
    landed.deletes_removed += len(rebased.unneeded_deletes)
    for key in rebased.unneeded_deletes:
        landed.delete_needs.pop(key)
    for group in groups:
        if group.group_id in rebased.kept:
            landed.outputs[group.group_id] = done[group.group_id].written
            landed.rows_deleted += done[group.group_id].rows_deleted
            for key, count in _needed(group).items():
                if key in landed.delete_needs:
                    landed.delete_needs[key] -= count


def _paths(results: Iterable[RewriteResult]) -> list[str]:
    return [file.file_path for result in results for file in result.written]


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
