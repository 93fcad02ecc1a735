"""The ``compact`` operation: plan → rewrite through an engine → commit what still holds → report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.rebase import GroupClaim, rebase
from icekeeper.commit.snapshot import RECIPE_KEY, FileReplacement, SnapshotWriter
from icekeeper.commit.transaction import Committed, PreparedCommit, commit_with_retries
from icekeeper.errors import CommitStateUnknown, MaintenanceError
from icekeeper.metadata.deletes import DeleteIndex, DeleteIndexBuilder, is_unpartitioned
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, ManifestContent, ManifestFile, Nothing
from icekeeper.operations.compaction.arrow_schema import arrow_schema, leaf_columns
from icekeeper.operations.compaction.candidates import LiveFile
from icekeeper.operations.compaction.dispatch import rewrite_groups
from icekeeper.operations.compaction.plan import CompactionPlan, FileGroup, plan_compaction
from icekeeper.operations.compaction.recipe import ClusterRecipe, choose_recipe
from icekeeper.operations.compaction.task import RewriteResult
from icekeeper.operations.context import OperationContext, require_writable, stopwatch
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status, skipped, succeeded

__all__ = ["compact"]

_OPERATION = Operation.COMPACT


def compact(context: OperationContext) -> OperationOutcome:
    """Merge small data files; summary and metric keys are those of seed 000.

    Raises:
        MaintenanceError: nothing was committed.
    """
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        metadata = loaded.metadata
        require_writable(metadata)
        snapshot = metadata.head(context.policy.branch)
        reader = context.reader(loaded)
        manifests = [] if snapshot is None else reader.manifests(snapshot)
        recipe = choose_recipe(metadata, context.policy)
        plan = plan_compaction(
            metadata,
            snapshot,
            manifests,
            _live_files(reader, manifests),
            context.policy,
            now_ms=context.clock(),
            deletes=_delete_index(reader, manifests) if context.policy.apply_deletes else None,
            recipe=recipe,
            clustered_by=frozenset() if recipe is None else _clustered_by(context, metadata, recipe),
        )
        if isinstance(plan, Nothing):
            return skipped(_OPERATION, plan.reason, metrics={"compact.duration_ms": elapsed_ms()})
        arrow_schema(metadata.current_schema)  # refuses column types that this version cannot rewrite
        if context.dry_run:
            return succeeded(_OPERATION, _preview(plan), metrics=_counters(plan), files_planned=plan.input_files)
        results = rewrite_groups(context, loaded, plan)
        outcome = _commit(context, loaded, plan, results)
        return replace(outcome, metrics={**outcome.metrics, "compact.duration_ms": elapsed_ms()})


def _clustered_by(context: OperationContext, metadata: TableMetadata, recipe: ClusterRecipe) -> frozenset[int]:
    """Snapshots that added files clustered by a recipe: those remembered, and those that say so themselves."""
    said = {i for i, snapshot in metadata.snapshots.items() if snapshot.summary.get(RECIPE_KEY) == recipe.text}
    return context.clustered_by(recipe.text) | said


def _delete_index(reader: TableReader, manifests: Sequence[ManifestFile]) -> DeleteIndex:
    builder = DeleteIndexBuilder()
    deletes = [m for m in manifests if m.content is ManifestContent.DELETES and m.may_have_live_files]
    for manifest, entries in reader.entries(deletes):
        is_global = is_unpartitioned(reader.metadata.specs[manifest.partition_spec_id])
        for entry in entries:
            if entry.is_live:
                builder.add(manifest.partition_spec_id, entry, is_unpartitioned=is_global)
    return builder.build()


def _live_files(reader: TableReader, manifests: Sequence[ManifestFile]) -> Iterator[LiveFile]:
    data = [m for m in manifests if m.content is ManifestContent.DATA and m.may_have_live_files]
    for manifest, entries in reader.entries(data):
        for entry in entries:
            if entry.is_live:
                yield LiveFile(manifest, entry)


def _commit(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan, results: Sequence[RewriteResult]
) -> OperationOutcome:
    done = {r.group_id: r for r in results if r.error is None}
    errors = [r.error for r in results if r.error is not None]
    groups = [group for group in plan.groups if group.group_id in done]
    outputs = {r.group_id: r.written for r in done.values()}
    kept: frozenset[int] = frozenset()
    dropped: dict[int, str] = {}
    unneeded = 0
    committed: Committed | Nothing = Nothing(f"every file group failed: {errors[0]}" if errors else "")

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        nonlocal kept, dropped, unneeded
        require_writable(head.metadata)
        reader = context.reader(head)
        result = rebase(
            loaded.metadata,
            plan.planning_manifests,
            plan.snapshot_id,
            head.metadata,
            reader,
            context.policy.branch,
            _claims(loaded.metadata, groups),
            plan.delete_needs,
        )
        kept, dropped, unneeded = result.kept, dict(result.dropped), len(result.unneeded_deletes)
        if not kept and not unneeded:
            return Nothing(next(iter(dropped.values()), "no delete file is without use any more"))
        writer = SnapshotWriter(
            head.metadata,
            reader,
            context.storage(head).write,
            lambda paths: context.discard(head, paths),
            context.policy.branch,
            context.run_id,
            context.clock(),
        )
        replacement = FileReplacement(
            removed=result.unneeded_deletes.union(c.file.key for g in groups if g.group_id in kept for c in g.files),
            added=tuple((g.spec_id, file) for g in groups if g.group_id in kept for file in outputs[g.group_id]),
            data_sequence_number=plan.sequence_number,
            recipe=None if plan.recipe is None else plan.recipe.text,
        )
        return writer.replace_files(replacement, result.manifests, result.affected)

    if groups or 0 in plan.delete_needs.values():
        try:
            committed = commit_with_retries(
                context.catalog,
                context.load(),
                prepare,
                max_retries=context.policy.max_commit_retries,
                discard=lambda paths: context.discard(loaded, paths),
                sleep=context.sleep,
            )
        except CommitStateUnknown:
            raise  # the outputs may be live: they stay
        except MaintenanceError:
            context.discard(loaded, [file.file_path for files in outputs.values() for file in files])
            raise
    if isinstance(committed, Committed) and committed.prepared.snapshot_id is not None and plan.recipe is not None:
        context.remember_clustering(committed.prepared.snapshot_id, plan.recipe.text)
    context.discard(loaded, [file.file_path for group_id in dropped for file in outputs[group_id]])
    return _outcome(
        plan, committed, kept, dropped, errors, outputs, deleted=_rows_deleted(done, kept), unneeded=unneeded
    )


def _rows_deleted(done: Mapping[int, RewriteResult], kept: frozenset[int]) -> int:
    return sum(result.rows_deleted for group_id, result in done.items() if group_id in kept)


def _claims(planned: TableMetadata, groups: Sequence[FileGroup]) -> list[GroupClaim]:
    held = frozenset(leaf.field_id for leaf in leaf_columns(planned.current_schema))
    return [
        GroupClaim(
            group_id=group.group_id,
            spec_id=group.spec_id,
            partition=group.partition,
            inputs={c.file.key: c.manifest_path for c in group.files},
            output_field_ids=held,
            deletes=Counter(entry.file.key for c in group.files for entry in c.deletes),
        )
        for group in groups
    ]


def _outcome(
    plan: CompactionPlan,
    committed: Committed | Nothing,
    kept: frozenset[int],
    dropped: dict[int, str],
    errors: Sequence[str],
    outputs: Mapping[int, Sequence[DataFile]],
    *,
    deleted: int,
    unneeded: int,
) -> OperationOutcome:
    landed = [group for group in plan.groups if group.group_id in kept]
    written = [file for group in landed for file in outputs[group.group_id]]
    merged = sum(len(group.files) for group in landed)
    metrics = {
        **_counters(plan),
        "compact.files_merged": merged,
        "compact.files_written": len(written),
        "compact.bins": len(landed),
        "compact.bytes_read": sum(group.total_bytes for group in landed),
        "compact.bytes_written": sum(file.file_size_in_bytes for file in written),
        "compact.rows_rewritten": sum(group.record_count for group in landed),
        "compact.rows_deleted": deleted,
        "compact.delete_files_removed": unneeded,
        "compact.bins_dropped": len(dropped),
        "compact.bins_failed": len(errors),
    }
    summary = f"compacted {merged} files into {len(written)} (across {len(landed)} bins)"
    if not plan.groups:
        summary = f"dropped {unneeded} delete file(s) that no data file needs"
    problems = [f"{len(errors)} bin(s) failed: {errors[0]}"] if errors else []
    if isinstance(committed, Nothing) and plan.groups and not errors:
        problems.append(f"every bin was overtaken by other commits: {committed.reason}")
    if isinstance(committed, Nothing) and not problems:
        return skipped(_OPERATION, committed.reason, metrics=metrics)
    return OperationOutcome(
        operation=_OPERATION,
        status=Status.FAILED if problems else Status.SUCCEEDED,
        reason="; ".join(problems) or None,
        summary="; ".join(problems) if isinstance(committed, Nothing) else summary,
        snapshot_ids=() if isinstance(committed, Nothing) else (committed.prepared.snapshot_id or 0,),
        metrics=metrics,
        files_planned=plan.input_files,
    )


def _preview(plan: CompactionPlan) -> str:
    if not plan.groups:
        return f"would drop {sum(count == 0 for count in plan.delete_needs.values())} delete file(s)"
    groups = len(plan.groups)
    return f"would compact {len(plan.input_files)} files into {groups} (across {groups} bins)"


def _counters(plan: CompactionPlan) -> dict[str, int]:
    return {"compact.files_considered": plan.files_considered, "compact.files_unsupported": plan.files_unsupported}
