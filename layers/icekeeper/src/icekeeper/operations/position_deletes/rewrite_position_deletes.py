"""The ``rewrite_position_deletes`` operation: merge small position delete files; in v3, into deletion vectors."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.conflict_detection import GroupClaim, PlanningState, RebaseResult
from icekeeper.commit.snapshot import FileReplacement
from icekeeper.commit.transaction import Committed
from icekeeper.errors import MaintenanceError, PlanStale, SwitchedOff
from icekeeper.machine.clock import stopwatch
from icekeeper.machine.interrupts import uninterrupted
from icekeeper.metadata.delete_scope import named_file
from icekeeper.metadata.document import TableMetadata, require_writable, schema_digest
from icekeeper.model import ManifestContent, Nothing
from icekeeper.operations.position_deletes.convert_equality import Conversion, convert, planned_conversion
from icekeeper.operations.position_deletes.merge import MergeResult, MergeTask, PositionDeletes, merge_deletes
from icekeeper.operations.position_deletes.plan_merges import (
    DeleteGroup,
    PositionDeletePlan,
    expected_result,
    plan_position_deletes,
)
from icekeeper.pass_context.commit_rewrite import Rewrite, commit_rewrite
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status, skipped, succeeded, with_left_out
from icekeeper.rows.read_task import OPEN_FILE_BYTES
from icekeeper.storage.paths import PlannedFile

_OPERATION = Operation.REWRITE_POSITION_DELETES
_WHAT = "rewrite_position_deletes: file groups"
# A worker reports all unreadable files at once, so further failures mean that files disappear meanwhile.
_ATTEMPTS_WITHOUT = 3
# Bytes of delete files in a portion, with an allowance for each opened file.
_PORTION_BYTES = 1024**3
# Seconds to write manifests and commit, including retries.
_LEAST_S = 60.0


def rewrite_position_deletes(context: OperationContext) -> OperationOutcome:
    """Merge position delete files and drop dangling rows; convert equality deletes first if the policy says so.

    The live rows of the table do not change.

    Raises:
        MaintenanceError: nothing was committed.
    """
    loaded = context.load()
    require_writable(loaded.metadata)
    plan = planned_conversion(context, loaded)
    if plan is None:
        return _merge(context, loaded)
    files = tuple(sorted({path for path, _ in plan.delete_needs}))
    if context.dry_run:
        count = sum(len(group.files) for group in plan.groups)
        summary = f"would convert {len(plan.delete_needs)} equality delete file(s) by looking up {count} data file(s)"
        return _with_conversion(_merge(context, loaded), summary, files, {})
    loaded.allowed.require((loaded.metadata.data_location, *plan.paths))
    context.require_reviewed(loaded, files)
    with context.job(_OPERATION, loaded, plan.snapshot_id) as converting:
        conversion = convert(converting, loaded, plan)
        if conversion.errors or conversion.unreadable:
            converting.leaves_files()
    if conversion.unreadable:
        context.memory.remember_unreadable(conversion.unreadable, schema_digest(loaded.metadata))
    try:
        merged = _merge(context, context.load())
    except SwitchedOff as stop:
        if conversion.snapshot_id is None:
            raise
        merged = succeeded(_OPERATION, f"merging waits for the next run, because {stop}")
    return _converted(merged, files, conversion)


def _converted(merged: OperationOutcome, files: tuple[str, ...], conversion: Conversion) -> OperationOutcome:
    metrics = {
        "rewrite_position_deletes.equality_files_converted": conversion.files_removed,
        "rewrite_position_deletes.equality_files_left": conversion.files_left,
        "rewrite_position_deletes.rows_converted": sum(file.record_count for file in conversion.written),
    }
    outcome = _with_conversion(merged, conversion.summary, files, metrics)
    if conversion.snapshot_id is not None:
        outcome = replace(outcome, snapshot_ids=(conversion.snapshot_id, *outcome.snapshot_ids))
    if conversion.files_left:
        outcome = replace(outcome, leaves_work=True)
    problems = [f"{len(conversion.errors)} conversion(s) failed: {conversion.errors[0]}"] if conversion.errors else []
    if conversion.dropped and conversion.snapshot_id is None and not problems:
        problems.append(f"every conversion was overtaken by other commits: {next(iter(conversion.dropped.values()))}")
    if problems:
        reason = "; ".join(filter(None, (*problems, outcome.reason if outcome.status is Status.FAILED else None)))
        outcome = replace(outcome, status=Status.FAILED, reason=reason)
    return with_left_out(outcome, conversion.unreadable)


def _with_conversion(
    merged: OperationOutcome, summary: str, files: tuple[str, ...], metrics: Mapping[str, int]
) -> OperationOutcome:
    """The outcome of both parts; merging is not mentioned if it had nothing to do."""
    if merged.status is Status.SKIPPED:
        merged = replace(merged, status=Status.SUCCEEDED, reason=None)
    elif merged.summary:
        summary = f"{summary}; {merged.summary}"
    return replace(
        merged, summary=summary, metrics={**merged.metrics, **metrics}, files_planned=(*files, *merged.files_planned)
    )


def _merge(context: OperationContext, loaded: LoadedTable) -> OperationOutcome:
    with stopwatch() as elapsed_ms:
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
            return skipped(_OPERATION, plan.reason, metrics=metrics)
        loaded.allowed.require((loaded.metadata.data_location, *plan.input_files))
        if context.dry_run:
            count = len(plan.groups)
            summary = f"would rewrite {len(plan.input_files)} position delete files into {count} (across {count} bins)"
            expected = [expected_result(loaded.metadata, plan.snapshot_id, group) for group in plan.groups]
            context.would_commit(_OPERATION, partial(_commit, context, loaded, plan, expected, _Outcomes()))
            return succeeded(_OPERATION, summary, files_planned=plan.input_files)
        context.require_reviewed(loaded, plan.input_files)
        with context.job(_OPERATION, loaded, plan.snapshot_id) as merging:
            outcomes = _merge_and_commit(merging, loaded, plan)
            if outcomes.unreadable or outcomes.errors:
                merging.leaves_files()
        outcome = _outcome(plan, outcomes)
        context.memory.forget_read(plan.input_files)
        if outcomes.unreadable:
            context.memory.remember_unreadable(outcomes.unreadable, schema_digest(loaded.metadata))
            outcome = with_left_out(outcome, outcomes.unreadable)
        return replace(outcome, metrics={**outcome.metrics, "rewrite_position_deletes.duration_ms": elapsed_ms()})


@dataclass(slots=True)
class _Outcomes:
    """The results of the groups so far."""

    landed: list[tuple[DeleteGroup, MergeResult]] = field(default_factory=list)
    snapshot_ids: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    """Groups that other commits overtook, each with the reason."""
    errors: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Paths of unreadable delete files, each with the reason."""
    given_up: int = 0
    """Groups without enough readable files."""
    left: int = 0
    """Groups that wait for the next run, because of :attr:`why_left`."""
    why_left: str = ""


def _merge_and_commit(context: OperationContext, loaded: LoadedTable, plan: PositionDeletePlan) -> _Outcomes:
    """Merge and commit portion by portion; begin no portion that would probably not end before this process does.

    Raises:
        MaintenanceError: nothing was committed.
    """
    outcomes, longest_s, waiting = _Outcomes(), 0.0, len(plan.groups)
    for groups in _portions(plan.groups):
        if waiting < len(plan.groups) and (why := _why_leave(context, longest_s)) is not None:
            outcomes.left, outcomes.why_left = waiting, why
            break
        waiting -= len(groups)
        began_s, portion = context.monotonic_s(), replace(plan, groups=groups)
        try:
            portion, results = _without_unreadable(context, loaded, portion, outcomes)
            outcomes.given_up += len(groups) - len(portion.groups)
            with uninterrupted():
                _commit(context, loaded, portion, results, outcomes)
        except MaintenanceError as error:
            if not outcomes.snapshot_ids:
                raise
            if isinstance(error, SwitchedOff):
                outcomes.left, outcomes.why_left = len(groups) + waiting, f"because {error}"
            else:
                outcomes.errors += [f"{type(error).__name__}: {error}"] * (len(groups) + waiting)
            break
        longest_s = max(longest_s, context.monotonic_s() - began_s)
    return outcomes


def _portions(groups: Iterable[DeleteGroup]) -> Iterator[tuple[DeleteGroup, ...]]:
    """Consecutive groups of about a minute's work."""
    portion, size = list[DeleteGroup](), 0
    for group in groups:
        more = sum(entry.file.file_size_in_bytes + OPEN_FILE_BYTES for entry in group.deletes)
        if portion and size + more > _PORTION_BYTES:
            yield tuple(portion)
            portion, size = [], 0
        portion.append(group)
        size += more
    if portion:
        yield tuple(portion)


def _why_leave(context: OperationContext, longest_s: float) -> str | None:
    """Why no further portion begins, if the longest portion and its commit took ``longest_s``; ``None`` if one may
    begin."""
    if (reason := context.limits.why_stop()) is not None:
        return f"because {reason}"
    left_s = context.limits.time_left_s()
    return "because no time was left" if left_s is not None and left_s < _LEAST_S + 2 * longest_s else None


def _without_unreadable(
    context: OperationContext, loaded: LoadedTable, plan: PositionDeletePlan, outcomes: _Outcomes
) -> tuple[PositionDeletePlan, list[MergeResult]]:
    """Merge the plan's groups; merge groups with an unreadable delete file again without it.  Return the plan as
    carried out, and the results.

    In v3 such groups are dropped, because a vector replaces all position deletes of its data file.
    """
    results = _merged(context, loaded, plan)
    for _ in range(_ATTEMPTS_WITHOUT):
        bad = {result.group_id for result in results if result.unreadable}
        if not bad:
            break
        for result in results:
            outcomes.unreadable |= result.unreadable
        smaller: dict[int, DeleteGroup] = {}
        for group in plan.groups if loaded.metadata.format_version < 3 else ():
            left = tuple(entry for entry in group.deletes if entry.file.file_path not in outcomes.unreadable)
            if group.group_id in bad and len(left) > 1:
                smaller[group.group_id] = replace(group, deletes=left)
        again = replace(plan, groups=tuple(smaller.values()))
        kept = (smaller.get(g.group_id, g) for g in plan.groups if g.group_id in smaller or g.group_id not in bad)
        plan = replace(plan, groups=tuple(kept))
        results = [result for result in results if result.group_id not in bad] + _merged(context, loaded, again)
    return plan, results


def _merged(context: OperationContext, loaded: LoadedTable, plan: PositionDeletePlan) -> list[MergeResult]:
    tasks = [_task(loaded, plan, group) for group in plan.groups]
    context.will_write(task.output.record for task in tasks)
    context.progress(_WHAT, 0, len(tasks))
    try:
        return context.engine.map(merge_deletes, tasks, lambda done: context.progress(_WHAT, done, len(tasks)))
    except (MaintenanceError, KeyboardInterrupt):
        context.discard(loaded, [path for task in tasks for path in task.output.paths])
        raise


def _task(loaded: LoadedTable, plan: PositionDeletePlan, group: DeleteGroup) -> MergeTask:
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
    )


def _commit(
    context: OperationContext,
    loaded: LoadedTable,
    plan: PositionDeletePlan,
    results: Sequence[MergeResult],
    outcomes: _Outcomes,
) -> None:
    done = {r.group_id: r for r in results if r.error is None}
    outcomes.errors += [r.error for r in results if r.error is not None]
    groups = [group for group in plan.groups if group.group_id in done]
    if not groups:
        return
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
    outcomes.dropped |= rebased.dropped
    if isinstance(committed, Committed):
        outcomes.snapshot_ids.append(committed.prepared.snapshot_id or 0)
        outcomes.landed += [(group, done[group.group_id]) for group in groups if group.group_id in rebased.kept]


def _claims(loaded: LoadedTable, groups: Sequence[DeleteGroup], done: Mapping[int, MergeResult]) -> list[GroupClaim]:
    """The delete files must still be live; data files that get a vector must be live, too, and must have no other
    vector."""
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


def _outcome(plan: PositionDeletePlan, outcomes: _Outcomes) -> OperationOutcome:
    results = [result for _, result in outcomes.landed]
    groups, dropped, errors = [group for group, _ in outcomes.landed], outcomes.dropped, outcomes.errors
    merged = sum(len(group.deletes) for group in groups)
    written = [file for result in results for file in result.written]
    files = len({file.file_path for file in written})
    metrics = {
        "rewrite_position_deletes.files_considered": plan.files_considered,
        "rewrite_position_deletes.files_merged": merged,
        "rewrite_position_deletes.files_written": files,
        "rewrite_position_deletes.vectors_written": sum(file.content_offset is not None for file in written),
        "rewrite_position_deletes.bins": len(groups),
        "rewrite_position_deletes.files_moved": sum(group.moved for group in groups),
        "rewrite_position_deletes.rows_rewritten": sum(result.rows_written for result in results),
        "rewrite_position_deletes.rows_dropped": sum(r.rows_read - r.rows_written for r in results),
        "rewrite_position_deletes.bins_dropped": len(dropped),
        "rewrite_position_deletes.bins_failed": len(errors),
        "rewrite_position_deletes.bins_waiting": outcomes.left,
    }
    problems = [f"{len(errors)} bin(s) failed: {errors[0]}"] if errors else []
    if dropped and not outcomes.snapshot_ids and not errors and not outcomes.left:
        problems.append(f"every bin was overtaken by other commits: {next(iter(dropped.values()))}")
    summary = f"rewrote {merged} position delete files into {files} (across {len(groups)} bins)"
    if moved := sum(group.moved for group in groups):
        summary += f"; {moved} were under another spec or partition than their data file"
    if outcomes.left:
        summary += f"; {outcomes.left} bin(s) wait for the next run, {outcomes.why_left}"
    was_given_up = outcomes.given_up == len(plan.groups)
    return OperationOutcome(
        operation=_OPERATION,
        status=Status.FAILED if problems else Status.SKIPPED if was_given_up else Status.SUCCEEDED,
        reason="; ".join(problems) or None,
        summary="; ".join(problems) if problems and not outcomes.snapshot_ids else summary,
        snapshot_ids=tuple(outcomes.snapshot_ids),
        metrics=metrics,
        files_planned=plan.input_files,
    )
