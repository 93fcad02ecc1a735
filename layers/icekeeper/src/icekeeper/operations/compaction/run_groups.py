"""Has the engine rewrite a plan's file groups, and commits those that still fit the newest head."""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeVar

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.conflict_detection import ClaimedFile, GroupClaim, PlanningState, RebaseResult
from icekeeper.commit.snapshot import FileReplacement
from icekeeper.commit.transaction import Committed
from icekeeper.errors import MaintenanceError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, FileKey, Nothing
from icekeeper.operations.compaction.bins import Reason
from icekeeper.operations.compaction.candidates import (
    LARGEST_OUTPUT,
    SIZES_KEY,
    may_be_copied,
    output_bytes,
    pieces,
    recorded_sizes,
)
from icekeeper.operations.compaction.clustering.exchange import cluster_groups, fits_one_worker
from icekeeper.operations.compaction.plan_groups import CompactionPlan, FileGroup, depth_with
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.rewrite_task import Copying, RewriteResult, RewriteTask, Routing, planned_files
from icekeeper.operations.compaction.write_properties import misread_columns, output_names, output_properties
from icekeeper.pass_context.context import OperationContext, Rewrite, commit_rewrite
from icekeeper.policy import Policy
from icekeeper.rows.arrow_schema import LeafColumn, leaf_columns, stored_schema
from icekeeper.rows.read_task import OPEN_FILE_BYTES, make_read_task, with_lineage
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

# Commits the rewritten file groups that still fit the newest head, as one snapshot per call.


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


# Small groups that one worker rewrites together: a table may have thousands of partitions of tiny files.
#
# Each group would be a task of its own for the engine, and on an object store a client with connections of its own,
# whose requests wait for one another.  A batch shares the client, and on a store several of its groups are rewritten at
# once, because nearly all of their time is spent waiting for answers.

Item = TypeVar("Item")

_SMALL_BYTES = 4 * 1024 * 1024
"""Of a group that may share a batch, as :attr:`RewriteTask.input_bytes` counts: up to fifteen tiny files."""
_BATCH_BYTES = 32 * 1024 * 1024
"""Of a batch: a third of a second's work, so that workers end together and progress is told often."""
_AT_ONCE = 8
"""Groups of a batch that are rewritten at once on a store."""
_AT_ONCE_BYTES = 8 * 1024 * 1024
"""Of data files whose rows are in memory at once; rows take several times as much there
(rule: bounded-worker-memory)."""


@dataclass(frozen=True, slots=True)
class RewriteBatch:
    """Some groups of one table, at least one."""

    tasks: tuple[RewriteTask, ...]

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadsBytes`."""
        return sum(task.input_bytes for task in self.tasks)

    def in_attempt(self, attempt: int) -> RewriteBatch:
        """The same groups with the file names of that attempt."""
        return RewriteBatch(tuple(task.in_attempt(attempt) for task in self.tasks))


def in_batches(tasks: Iterable[RewriteTask]) -> list[RewriteBatch]:
    """All tasks in their order; small ones that follow one another share a batch (pure)."""
    return [RewriteBatch(tuple(batch)) for batch in small_together(tasks, lambda task: task.input_bytes)]


def small_together(groups: Iterable[Item], size_of: Callable[[Item], int]) -> list[list[Item]]:
    """All groups in their order; small ones that follow one another are together, up to the size of a batch (pure).

    ``size_of`` gives a group's bytes as :attr:`RewriteTask.input_bytes` counts them.
    """
    batches: list[list[Item]] = []
    room = 0
    for group in groups:
        size = size_of(group)
        if size > min(room, _SMALL_BYTES):
            batches.append([])
            room = _BATCH_BYTES if size <= _SMALL_BYTES else 0
        batches[-1].append(group)
        room -= size
    return batches


def rewrite_batch(batch: RewriteBatch) -> list[RewriteResult]:
    """The result of each group of a batch, in their order; never raises for one of them, as :func:`.rewrite_group`."""
    storage = Storage(batch.tasks[0].io_properties)
    if len(batch.tasks) == 1 or not any(_waits(task) for task in batch.tasks):
        return [rewrite_group(task, storage) for task in batch.tasks]
    with WorkThreads(_at_once(batch), thread_name_prefix="small-groups") as pool:
        running = [pool.submit(rewrite_group, task, storage) for task in batch.tasks]
        return [one.result() for one in running]


def _at_once(batch: RewriteBatch) -> int:
    """How many groups of the batch are in memory at once, whichever they are: at least one."""
    largest = max(sum(source.file_size_in_bytes for source in task.inputs) for task in batch.tasks)
    return max(1, min(_AT_ONCE, _AT_ONCE_BYTES // max(1, largest)))


def _waits(task: RewriteTask) -> bool:
    return not all(is_local(source.path) for source in task.inputs) or not is_local(task.outputs.folder)


# Makes a task of each file group and has the engine run them.

_PROGRESS = "compact: file groups"


def rewrite_groups(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan, groups: Sequence[FileGroup]
) -> list[RewriteResult]:
    """Rewrite some groups of the plan, and return a result for each, in any order.

    Raises:
        TableUnsupported: an equality delete cannot be applied by this version, or a column has a reserved name;
            nothing was written.
        StorageError: the engine broke.
    """
    if not groups:
        return []
    proof, stored = context.policy.proof.value, stored_schema(loaded.metadata.current_schema)
    leaves = leaf_columns(stored)
    tasks = [
        replace(
            _task(loaded, plan, group, stored, leaves, proof, context.policy.verify_page_checksums),
            row_group_memory_bytes=context.policy.row_group_memory_bytes,
            copying=_copying(plan, group, context.policy),
        )
        for group in groups
    ]
    # A group that has to be sorted and is too large for one worker is sorted by all of them together.
    is_small = {task.group_id: task.recipe is None or fits_one_worker(task) for task in tasks}
    small = [task for task in tasks if is_small[task.group_id]]
    large = [task for task in tasks if not is_small[task.group_id]]
    context.will_write(file.record for task in small for file in planned_files(task))
    context.progress(_PROGRESS, 0, len(tasks))
    try:
        results = _mapped(context, small, len(tasks))
        large += [_under_new_names(task) for task, result in zip(small, results, strict=True) if result.too_large]
        results = [result for result in results if not result.too_large]
        return results + cluster_groups(
            context.engine,
            large,
            will_write=context.will_write,
            discard=lambda paths: context.discard(loaded, paths),
            on_done=lambda done: context.progress(_PROGRESS, len(results) + done, len(tasks)),
        )
    except MaintenanceError:
        # Removes what finished groups wrote.  What attempts write that still run is removed later, by the job's record.
        context.discard(loaded, (path for task in small for file in planned_files(task) for path in file.paths))
        raise


def _mapped(context: OperationContext, tasks: Sequence[RewriteTask], of: int) -> list[RewriteResult]:
    """The result of each task, in their order; ``of`` is the number of groups of which progress is told."""
    batches = in_batches(tasks)
    if len(batches) == len(tasks):
        return context.engine.map(rewrite_group, tasks, lambda done: context.progress(_PROGRESS, done, of))
    done_tasks = [0, *accumulate(len(batch.tasks) for batch in batches)]  # about: batches end in any order
    results = context.engine.map(
        rewrite_batch, batches, lambda done: context.progress(_PROGRESS, done_tasks[min(done, len(batches))], of)
    )
    return [result for batch in results for result in batch]


def _under_new_names(task: RewriteTask) -> RewriteTask:
    """The task under other file names, because an attempt of the first try may still run and write."""
    return replace(task, outputs=replace(task.outputs, stem=f"{task.outputs.stem}-sorted"))


def _task(
    loaded: LoadedTable,
    plan: CompactionPlan,
    group: FileGroup,
    stored: Mapping[str, Any],
    leaves: Sequence[LeafColumn],
    proof: str,
    verify_checksums: bool,
) -> RewriteTask:
    """The group's task; ``stored`` is the table's schema as outputs hold it, ``leaves`` are its columns."""
    metadata = loaded.metadata
    schema = with_lineage(stored) if group.has_lineage else stored
    rows = make_read_task(metadata, group.files, schema, loaded.io_properties, verify_checksums=verify_checksums)
    stem = f"compact-{plan.snapshot_id}-{group.group_id:05d}-{uuid.uuid4()}"
    return RewriteTask(
        group_id=group.group_id,
        inputs=rows.inputs,
        schema=rows.schema,
        name_mapping=rows.name_mapping,
        by_position=rows.by_position,
        deletes=rows.deletes,
        key_fields=rows.key_fields,
        io_properties=rows.io_properties,
        verify_checksums=rows.verify_checksums,
        partition=group.partition,
        outputs=output_names(metadata, group.spec_id, group.partition, stem),
        table_properties=output_properties(metadata),
        proof=proof,
        recipe=plan.recipe,
        output_count=group.output_count,
        routing=_routing(metadata, group.route_to),
        most_files=_most_files(plan.recipe, group),
        misread_columns=misread_columns((candidate.file for candidate in group.files), leaves),
    )


def _copying(plan: CompactionPlan, group: FileGroup, policy: Policy) -> Copying | None:
    """What of a group may be copied; ``None``: nothing, or its rows change their order or their partition."""
    if plan.recipe is not None or group.route_to is not None:
        return None
    files = [candidate.file for candidate in group.files]
    cut = pieces(files[0], policy) if group.reason is Reason.LARGE else ()
    likely = {i: files[i] for i, candidate in enumerate(group.files) if cut or may_be_copied(candidate, policy)}
    if not likely:
        return None
    return Copying(
        entries=likely,
        sizes=tuple(output_bytes(candidate, policy, plan.sizes) for candidate in group.files),
        # What is cut has no other row groups than before, however small they are.
        min_row_group_bytes=1 if cut else policy.min_row_group_copy_bytes or 1,
        full_row_group_memory=policy.full_row_group_memory_bytes,
        smallest_output_bytes=policy.min_file_size_bytes,
        largest_output_bytes=int(LARGEST_OUTPUT * policy.target_file_size_bytes),
        pieces=cut,
    )


def _most_files(recipe: ClusterRecipe | None, group: FileGroup) -> int | None:
    """How many outputs sorted files may become at most; ``None``: any number, as some input is not clustered yet.

    Otherwise a group of clustered files could come out as many as before, and be chosen again by every pass.
    """
    if recipe is None or not all(candidate.is_clustered for candidate in group.files):
        return None
    return recipe.output_count(group.total_bytes)


def _routing(metadata: TableMetadata, spec_id: int | None) -> Routing | None:
    if spec_id is None:
        return None
    return Routing(spec_id, metadata.specs[spec_id], metadata.schemas_current_first)


# Whether another file group can be rewritten in the time that this process has left (rule: functions-commit-in-time).

# For writing manifests and for the swap, repeated ones too.
_COMMIT_S = 60.0
# Groups of one table differ: in deletes, in columns that compress, in what can be copied.
_SAFETY = 2.0


class TimeLeft:
    """Measures how fast groups are rewritten, by the time that is left before and after each."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """``seconds`` says how many are left."""
        self._seconds = seconds
        self._before_s = seconds()
        self._done_bytes = 0

    def note(self, size_bytes: int) -> None:
        """A group of so many bytes was rewritten."""
        self._done_bytes += max(1, size_bytes)

    def is_enough_for(self, size_bytes: int) -> bool:
        """Whether a group surely ends, and what is rewritten by then can be committed; the first one always begins."""
        if not self._done_bytes:
            return True
        left_s = self._seconds()
        per_byte_s = max(0.0, self._before_s - left_s) / self._done_bytes
        return _COMMIT_S + _SAFETY * per_byte_s * size_bytes <= left_s


# Rewrites and commits a plan's groups: all at once, some at a time, or as many as there is time for
# (rule: functions-commit-in-time).

# Input of groups that are rewritten before anybody asks whether the pass is to stop: some minutes' work, of which the
# end, where not every worker has a group, is a small part.
_ROUND_BYTES = 4 * 1024**3
# The worker finds all that cannot be read at once, a sort in two steps: more attempts mean that files are vanishing.
_ATTEMPTS_WITHOUT = 3


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """What became of the groups of one commit."""

    results: list[RewriteResult]
    unstarted: int = 0
    """Groups that there was no time for."""
    why_unstarted: str = "for want of time"
    broken: int = 0
    """The groups that were under way when the engine broke, and those behind them."""
    error: MaintenanceError | None = None


def rewrite_and_commit(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan
) -> tuple[CompactionPlan, GroupOutcomes]:
    """Commit all groups at once, or ``partial_progress`` at a time, so that a failing commit loses only its own.

    Returns the plan as it was carried out, groups without inputs that cannot be read, and what became of it.
    Where time is limited, the groups come one after the other, small ones some at a time; what is ready in time is
    committed, and the rest is left to the next run.
    """
    outcomes = GroupOutcomes(dict(plan.delete_needs))
    commits = commits_of(plan.groups, context.policy.partial_progress, loaded.metadata.format_version)
    time_left = None if context.time_left_s is None else TimeLeft(context.time_left_s)
    for number, groups in enumerate(commits):
        behind = sum(len(later) for later in commits[number + 1 :])
        if number and (reason := context.why_stop()) is not None:
            outcomes.groups_left, outcomes.why_left = len(groups) + behind, f"as {reason}"
            break
        try:
            done = _rewritten(context, loaded, plan, groups, time_left)
            plan, done = _without_unreadable(context, loaded, plan, done, time_left, outcomes)
            if done.results or not groups:
                commit_results(context, loaded, plan, done.results, outcomes)
        except MaintenanceError as error:
            if not outcomes.snapshot_ids:
                raise
            left = len(commits) - number - 1
            unstarted = f"; {left} more commit(s) were not attempted" if left else ""
            outcomes.errors.append(f"{type(error).__name__}: {error}{unstarted}")
            outcomes.failed_groups += len(groups) + behind
            break
        if done.error is not None:
            outcomes.errors.append(f"{type(done.error).__name__}: {done.error}")
            outcomes.failed_groups += done.broken + behind
            break
        if done.unstarted:
            outcomes.groups_left = done.unstarted + behind
            outcomes.why_left = done.why_unstarted
            break
    return plan, outcomes


def _without_unreadable(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    done: _Rewritten,
    time_left: TimeLeft | None,
    outcomes: GroupOutcomes,
) -> tuple[CompactionPlan, _Rewritten]:
    """Rewrite groups in which something cannot be read without it, so that it does not stop its partition for good.

    The files stay in the table, and their deletes with them; a group of which nothing is left to merge does, too
    (rule: leave-out-unreadable-files).
    """
    for _ in range(_ATTEMPTS_WITHOUT):
        bad = {result.group_id: result.unreadable for result in done.results if result.unreadable}
        if not bad:
            break
        for unreadable in bad.values():
            outcomes.unreadable |= unreadable
        smaller = [_without(group, bad[group.group_id]) for group in plan.groups if group.group_id in bad]
        left = {g.group_id: g for g in smaller if len(g.files) > 1 or any(c.is_due for c in g.files)}
        outcomes.groups_given_up += len(smaller) - len(left)
        kept = (left.get(g.group_id, g) for g in plan.groups if g.group_id in left or g.group_id not in bad)
        plan = replace(plan, groups=tuple(kept))
        again = _rewritten(context, loaded, plan, list(left.values()), time_left)
        done = replace(
            done,
            results=[*(result for result in done.results if result.group_id not in bad), *again.results],
            unstarted=done.unstarted + again.unstarted,
            why_unstarted=again.why_unstarted if again.unstarted else done.why_unstarted,
            broken=done.broken + again.broken,
            error=done.error or again.error,
        )
    return plan, done


def _without(group: FileGroup, unreadable: Container[str]) -> FileGroup:
    """The group without the files that cannot be read, or carry a delete file that cannot."""
    files = (c for c in group.files if c.file.file_path not in unreadable)
    return replace(group, files=tuple(c for c in files if not any(e.file.file_path in unreadable for e in c.deletes)))


def _rewritten(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    groups: Sequence[FileGroup],
    time_left: TimeLeft | None,
) -> _Rewritten:
    if time_left is None:
        return _in_rounds(context, loaded, plan, groups)
    results: list[RewriteResult] = []
    # By the first one, alone, the time of the others is judged.
    waiting = deque([groups[:1], *small_together(groups[1:], _input_bytes)] if groups else ())
    while waiting:
        together = waiting.popleft()
        size = sum(group.total_bytes for group in together)
        if not time_left.is_enough_for(size):
            if len(together) == 1:
                return _Rewritten(results, unstarted=1 + sum(map(len, waiting)))
            waiting.extendleft([group] for group in reversed(together))
            continue
        try:
            results += rewrite_groups(context, loaded, plan, together)
        except MaintenanceError as error:
            if not results:
                raise
            return _Rewritten(results, broken=len(together) + sum(map(len, waiting)), error=error)
        time_left.note(size)
    return _Rewritten(results)


def _in_rounds(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan, groups: Sequence[FileGroup]
) -> _Rewritten:
    """Rewrite the groups with all workers, so many bytes at a time, until the pass is to begin nothing further."""
    results: list[RewriteResult] = []
    rounds = _rounds(groups)
    for number, together in enumerate(rounds):
        left = sum(map(len, rounds[number:]))
        if number and (reason := context.why_stop()) is not None:
            return _Rewritten(results, unstarted=left, why_unstarted=f"as {reason}")
        try:
            results += rewrite_groups(context, loaded, plan, together)
        except MaintenanceError as error:
            if not results:
                raise
            return _Rewritten(results, broken=left, error=error)
    return _Rewritten(results)


def _rounds(groups: Sequence[FileGroup]) -> list[list[FileGroup]]:
    rounds: list[list[FileGroup]] = []
    room = 0
    for group in groups:
        if room <= 0:
            rounds.append([])
            room = _ROUND_BYTES
        rounds[-1].append(group)
        room -= group.total_bytes
    return rounds


def _input_bytes(group: FileGroup) -> int:
    return group.total_bytes + len(group.files) * OPEN_FILE_BYTES


def commits_of(groups: Sequence[FileGroup], size: int, format_version: int) -> list[Sequence[FileGroup]]:
    """The groups of each commit.

    In v3, groups without row ids go together and first, because the first commit gives ids to all rows that it leaves.
    """
    if not size or not groups:
        return [groups]
    together = [group for group in groups if format_version >= 3 and not group.has_lineage]
    rest = [group for group in groups if format_version < 3 or group.has_lineage]
    return [*([together] if together else []), *(rest[start : start + size] for start in range(0, len(rest), size))]
