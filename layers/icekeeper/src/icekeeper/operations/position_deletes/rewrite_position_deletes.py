"""The ``rewrite_position_deletes`` operation: merge small position delete files, in v3 into deletion vectors."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.conflict_detection import GroupClaim, PlanningState, RebaseResult
from icekeeper.commit.snapshot import FileReplacement
from icekeeper.commit.transaction import Committed
from icekeeper.errors import MaintenanceError, PlanStale
from icekeeper.machine.clock import stopwatch
from icekeeper.metadata.delete_scope import named_file
from icekeeper.metadata.document import TableMetadata, require_writable, schema_digest
from icekeeper.model import DataFile, ManifestContent, Nothing
from icekeeper.operations.position_deletes.merge import MergeResult, MergeTask, PositionDeletes, merge_deletes
from icekeeper.operations.position_deletes.plan_merges import (
    DeleteGroup,
    PositionDeletePlan,
    expected_result,
    plan_position_deletes,
)
from icekeeper.pass_context.context import OperationContext, Rewrite, commit_rewrite
from icekeeper.policy import Operation, Policy
from icekeeper.report.outcome import OperationOutcome, Status, skipped, succeeded, with_left_out
from icekeeper.storage.paths import PlannedFile

_OPERATION = Operation.REWRITE_POSITION_DELETES
_WHAT = "rewrite_position_deletes: file groups"
# A worker reports all unreadable files at once, so further attempts mean that files are vanishing.
_ATTEMPTS_WITHOUT = 3


def rewrite_position_deletes(context: OperationContext) -> OperationOutcome:
    """Merge position delete files and drop dangling rows; the live rows of the table do not change.

    Raises:
        MaintenanceError: nothing was committed.
    """
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        require_writable(loaded.metadata)
        snapshot = loaded.metadata.head(context.policy.branch)
        reader = context.reader(loaded)
        manifests = [] if snapshot is None else reader.manifests(snapshot)
        plan = plan_position_deletes(
            loaded.metadata,
            snapshot,
            manifests,
            reader.live_entries(manifests, ManifestContent.DELETES),
            lambda: reader.live_entries(manifests, ManifestContent.DATA),
            context.policy,
            context.memory.waiting_unreadable(schema_digest(loaded.metadata)),
        )
        if isinstance(plan, Nothing):
            metrics = {"rewrite_position_deletes.duration_ms": elapsed_ms()}
            nothing = skipped(_OPERATION, plan.reason, metrics=metrics)
            return replace(nothing, idle_since=context.idle_since(loaded.metadata))
        loaded.allowed.require((loaded.metadata.data_location, *plan.input_files))
        if context.dry_run:
            count = len(plan.groups)
            summary = f"would rewrite {len(plan.input_files)} position delete files into {count} (across {count} bins)"
            expected = [expected_result(loaded.metadata, plan.snapshot_id, group) for group in plan.groups]
            context.would_commit(_OPERATION, partial(_commit, context, loaded, plan, expected))
            return succeeded(_OPERATION, summary, files_planned=plan.input_files)
        with context.job(_OPERATION, loaded, plan.snapshot_id) as merging:
            plan, results, unreadable = _without_unreadable(merging, loaded, plan, _merged(merging, loaded, plan))
            if unreadable or any(result.error is not None for result in results):
                merging.leaves_files()
            outcome = _commit(merging, loaded, plan, results)
        context.memory.forget_read(plan.input_files)
        if unreadable:
            context.memory.remember_unreadable(unreadable, schema_digest(loaded.metadata))
            outcome = with_left_out(outcome, unreadable)
        return replace(outcome, metrics={**outcome.metrics, "rewrite_position_deletes.duration_ms": elapsed_ms()})


def _without_unreadable(
    context: OperationContext, loaded: LoadedTable, plan: PositionDeletePlan, results: list[MergeResult]
) -> tuple[PositionDeletePlan, list[MergeResult], dict[str, str]]:
    """Merge groups with an unreadable delete file without that file; return the plan as carried out.

    In v3 such groups are dropped, because a vector replaces all position deletes of its data file.
    """
    unreadable: dict[str, str] = {}
    for _ in range(_ATTEMPTS_WITHOUT):
        bad = {result.group_id for result in results if result.unreadable}
        if not bad:
            break
        for result in results:
            unreadable |= result.unreadable
        smaller: dict[int, DeleteGroup] = {}
        for group in plan.groups if loaded.metadata.format_version < 3 else ():
            left = tuple(entry for entry in group.deletes if entry.file.file_path not in unreadable)
            if group.group_id in bad and len(left) > 1:
                smaller[group.group_id] = replace(group, deletes=left)
        again = replace(plan, groups=tuple(smaller.values()))
        kept = (smaller.get(g.group_id, g) for g in plan.groups if g.group_id in smaller or g.group_id not in bad)
        plan = replace(plan, groups=tuple(kept))
        results = [result for result in results if result.group_id not in bad] + _merged(context, loaded, again)
    return plan, results, unreadable


def _merged(context: OperationContext, loaded: LoadedTable, plan: PositionDeletePlan) -> list[MergeResult]:
    tasks = [_task(loaded, plan, group, context.policy) for group in plan.groups]
    context.will_write(task.output.record for task in tasks)
    context.progress(_WHAT, 0, len(tasks))
    try:
        return context.engine.map(merge_deletes, tasks, lambda done: context.progress(_WHAT, done, len(tasks)))
    except MaintenanceError:
        context.discard(loaded, [path for task in tasks for path in task.output.paths])
        raise


def _task(loaded: LoadedTable, plan: PositionDeletePlan, group: DeleteGroup, policy: Policy) -> MergeTask:
    into_vectors = loaded.metadata.format_version >= 3
    stem = f"deletes-{plan.snapshot_id}-{group.group_id:05d}-{uuid.uuid4()}"
    deletes = []
    for entry in group.deletes:
        file, number = entry.file, entry.sequence_number or 0
        offset, size = file.content_offset, file.content_size_in_bytes
        blob = None if offset is None or size is None else (offset, size)
        deletes.append(
            PositionDeletes(file.file_path, file.file_format, number, file.record_count, named_file(file), blob)
        )
    return MergeTask(
        group_id=group.group_id,
        deletes=tuple(deletes),
        targets={target.path: target.sequence_number for target in group.targets},
        into_vectors=into_vectors,
        partition=group.partition,
        output=PlannedFile(f"{loaded.metadata.data_location}/{stem}", "puffin" if into_vectors else "parquet"),
        io_properties=properties_for_workers(loaded.io_properties),
        verify_checksums=policy.verify_page_checksums,
    )


def _commit(
    context: OperationContext, loaded: LoadedTable, plan: PositionDeletePlan, results: Sequence[MergeResult]
) -> OperationOutcome:
    done = {r.group_id: r for r in results if r.error is None}
    errors = [r.error for r in results if r.error is not None]
    groups = [group for group in plan.groups if group.group_id in done]
    if not groups:
        failed = f"every file group failed: {errors[0]}" if errors else ""
        return _outcome(plan, Nothing(failed), (), {}, errors, done)
    planned = PlanningState(metadata=loaded.metadata, snapshot_id=plan.snapshot_id, manifests=plan.planning_manifests)
    outputs = {group_id: [file.file_path for file in result.written] for group_id, result in done.items()}

    def replacement_on(head: TableMetadata, rebased: RebaseResult) -> tuple[FileReplacement, Collection[str]] | Nothing:
        if head.format_version != loaded.metadata.format_version:
            raise PlanStale("the table was upgraded to another format version; plan again")
        kept = [group for group in groups if group.group_id in rebased.kept]
        if not kept:
            return Nothing(next(iter(rebased.dropped.values()), ""))
        added = [(group, file) for group in kept for file in done[group.group_id].written]
        replacement = FileReplacement(
            removed=frozenset(entry.file.key for group in kept for entry in group.deletes),
            added=tuple((group.spec_id, file) for group, file in added),
            data_sequence_number=None,
            own_sequence_numbers={file.key: group.sequence_number for group, file in added},
        )
        return replacement, {rebased.delete_manifests[key] for key in replacement.removed}

    rewrite = Rewrite(loaded, planned, _claims(loaded, groups, done), outputs)
    committed, rebased = commit_rewrite(context, rewrite, replacement_on)
    landed = [group for group in groups if group.group_id in rebased.kept]
    return _outcome(plan, committed, landed, rebased.dropped, errors, done)


def _claims(loaded: LoadedTable, groups: Sequence[DeleteGroup], done: Mapping[int, MergeResult]) -> list[GroupClaim]:
    """The delete files must still be live; so must the data files that get a vector, and have no other vector."""
    columns = frozenset(range(1, int(loaded.metadata.document.get("last-column-id") or 0) + 1))
    claims = []
    for group in groups:
        named = {f.referenced_data_file for f in done[group.group_id].written if f.content_offset is not None}
        claims.append(
            GroupClaim(
                group_id=group.group_id,
                output_scopes=frozenset({(group.spec_id, group.partition)}),
                input_scopes=frozenset({(group.spec_id, group.partition)}),
                inputs={(t.path, None): (t.manifest_path, t.identity) for t in group.targets if t.path in named},
                # Equality deletes concern rows of data files, which do not change.
                output_field_ids=columns,
                deletes={entry.file.key: 1 for entry in group.deletes},
            )
        )
    return claims


def _outcome(
    plan: PositionDeletePlan,
    committed: Committed | Nothing,
    landed: Sequence[DeleteGroup],
    dropped: Mapping[int, str],
    errors: Sequence[str],
    done: Mapping[int, MergeResult],
) -> OperationOutcome:
    results = [done[group.group_id] for group in landed]
    merged = sum(len(group.deletes) for group in landed)
    written: list[DataFile] = [file for result in results for file in result.written]
    files = len({file.file_path for file in written})
    metrics = {
        "rewrite_position_deletes.files_considered": plan.files_considered,
        "rewrite_position_deletes.files_merged": merged,
        "rewrite_position_deletes.files_written": files,
        "rewrite_position_deletes.vectors_written": sum(file.content_offset is not None for file in written),
        "rewrite_position_deletes.bins": len(landed),
        "rewrite_position_deletes.files_moved": sum(group.moved for group in landed),
        "rewrite_position_deletes.rows_rewritten": sum(result.rows_written for result in results),
        "rewrite_position_deletes.rows_dropped": sum(r.rows_read - r.rows_written for r in results),
        "rewrite_position_deletes.bins_dropped": len(dropped),
        "rewrite_position_deletes.bins_failed": len(errors),
    }
    problems = [f"{len(errors)} bin(s) failed: {errors[0]}"] if errors else []
    if isinstance(committed, Nothing) and not errors and plan.groups:
        problems.append(f"every bin was overtaken by other commits: {committed.reason}")
    summary = f"rewrote {merged} position delete files into {files} (across {len(landed)} bins)"
    if moved := sum(group.moved for group in landed):
        summary += f"; {moved} stood under another spec or partition than their data file"
    return OperationOutcome(
        operation=_OPERATION,
        status=Status.FAILED if problems else Status.SUCCEEDED if plan.groups else Status.SKIPPED,
        reason="; ".join(problems) or None,
        summary="; ".join(problems) if isinstance(committed, Nothing) else summary,
        snapshot_ids=() if isinstance(committed, Nothing) else (committed.prepared.snapshot_id or 0,),
        metrics=metrics,
        files_planned=plan.input_files,
    )
