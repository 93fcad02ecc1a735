"""Rewrites a plan's file groups through the engine and commits those that are still valid on the newest head.

All groups are rewritten and committed at once, some at a time (``partial_progress``), or as many as there is time for
(rule: functions-commit-in-time).  Small groups share a *batch*, which is one task of the engine.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, TypeVar

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.conflict_detection import GroupClaim, PlanningState, RebaseResult
from icekeeper.commit.snapshot import FileReplacement
from icekeeper.errors import MaintenanceError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, FileKey, Nothing
from icekeeper.operations.compaction.bins import FileGroup, Reason
from icekeeper.operations.compaction.candidates import (
    LARGEST_OUTPUT,
    SIZES_KEY,
    output_bytes,
    recorded_sizes,
)
from icekeeper.operations.compaction.clustering.exchange import cluster_groups, fits_one_worker
from icekeeper.operations.compaction.group_entries import OVERTAKEN, GroupEntries
from icekeeper.operations.compaction.plan_groups import CompactionPlan, depth_with
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.rewrite_task import Copying, RewriteResult, RewriteTask, Routing, planned_files
from icekeeper.operations.compaction.write_properties import misread_columns, output_names, output_properties
from icekeeper.pass_context.context import OperationContext, Rewrite, commit_rewrite
from icekeeper.policy import Policy
from icekeeper.rows.arrow_schema import leaf_columns, stored_schema
from icekeeper.rows.read_task import OPEN_FILE_BYTES, make_read_task, with_lineage
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage


@dataclass(slots=True)
class GroupOutcomes:
    """The results of a plan's groups so far, updated with every commit."""

    delete_needs: dict[FileKey, int]
    """Live delete file → how many live data files still need it."""
    committed: dict[int, RewriteResult] = field(default_factory=dict)
    """Id of a committed group → its result."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Id of a group that conflicts with other commits → reason."""
    errors: list[str] = field(default_factory=list)
    """Messages of failed groups and commits."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Data and delete files that cannot be read: path → a sentence with it.  Groups are rewritten without them."""
    groups_given_up: int = 0
    """Groups with nothing left to merge without their unreadable files."""
    failed_groups: int = 0
    groups_left: int = 0
    """Groups that are left to the next run, because of :attr:`why_left`."""
    why_left: str = ""
    snapshot_ids: list[int] = field(default_factory=list)
    deletes_removed: int = 0
    depth: float | None = None
    """The clustering depth after the last commit; ``None``: nothing was committed, or rows are not clustered."""
    nothing: str = ""
    """Why nothing was committed; empty if something was."""


# Input bytes of a round.  A pass may stop between rounds.  A round takes some minutes, so that workers are idle for a
# small part of it only.
_ROUND_BYTES = 4 * 1024**3
# A worker finds all unreadable files of a group in one attempt, a sort in two.  More attempts mean that files vanish.
_ATTEMPTS_WITHOUT = 3


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """The results of the groups of one commit."""

    results: list[RewriteResult]
    unstarted: int = 0
    why_unstarted: str = "for want of time"
    broken: int = 0
    """The groups that were running when the engine failed, and those after them."""
    error: MaintenanceError | None = None


def rewrite_and_commit(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan
) -> tuple[CompactionPlan, GroupOutcomes]:
    """Rewrite and commit all groups at once, or ``partial_progress`` at a time, so a failed commit loses few groups.

    Where time is limited, groups run one after the other, and small ones together.  Groups that are ready in time are
    committed; the rest is left to the next run.  Returns the plan without unreadable files, and the outcomes.

    Raises:
        MaintenanceError: nothing was committed.
    """
    outcomes = GroupOutcomes(dict(plan.delete_needs))
    entries = GroupEntries(context.reader(loaded), plan)
    commits = commits_of(plan.groups, context.policy.partial_progress, loaded.metadata.format_version)
    time_left = None if context.time_left_s is None else TimeLeft(context.time_left_s)
    for number, groups in enumerate(commits):
        behind = sum(len(later) for later in commits[number + 1 :])
        if number and (reason := context.why_stop()) is not None:
            outcomes.groups_left, outcomes.why_left = len(groups) + behind, f"as {reason}"
            break
        try:
            done = _rewritten(context, loaded, plan, groups, entries, time_left)
            plan, done = _without_unreadable(context, loaded, plan, done, entries, time_left, outcomes)
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
    entries: GroupEntries,
    time_left: TimeLeft | None,
    outcomes: GroupOutcomes,
) -> tuple[CompactionPlan, _Rewritten]:
    """Rewrite groups again without their unreadable files, which would block a partition otherwise.

    These files and their deletes stay in the table; so does a group with nothing left to merge
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
        again = _rewritten(context, loaded, plan, list(left.values()), entries, time_left)
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
    """The group without unreadable data files and data files with an unreadable delete file."""
    files = (c for c in group.files if c.file_path not in unreadable)
    return replace(group, files=tuple(c for c in files if not any(e.file.file_path in unreadable for e in c.deletes)))


def _rewritten(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    groups: Sequence[FileGroup],
    entries: GroupEntries,
    time_left: TimeLeft | None,
) -> _Rewritten:
    """Rewrite the groups with all workers, a round at a time, until the pass must stop.

    Where time is limited, one after the other and small ones together, while there is time for a commit.
    """
    results: list[RewriteResult] = []
    if time_left is None:
        waiting = deque(_rounds(groups))
    else:
        # The first group runs alone, to measure the speed.
        sized = small_together(groups[1:], lambda group: group.total_bytes + len(group.files) * OPEN_FILE_BYTES)
        waiting = deque([list(groups[:1]), *sized] if groups else ())
    while waiting:
        together = waiting.popleft()
        size = sum(group.total_bytes for group in together)
        left = len(together) + sum(map(len, waiting))
        if time_left is None:
            if results and (reason := context.why_stop()) is not None:
                return _Rewritten(results, unstarted=left, why_unstarted=f"as {reason}")
        elif not time_left.is_enough_for(size):
            if len(together) == 1:
                return _Rewritten(results, unstarted=left)
            waiting.extendleft([group] for group in reversed(together))
            continue
        try:
            results += rewrite_groups(context, loaded, plan, together, entries)
        except MaintenanceError as error:
            if not results:
                raise
            return _Rewritten(results, broken=left, error=error)
        if time_left is not None:
            time_left.note(size)
    return _Rewritten(results)


def _rounds(groups: Sequence[FileGroup]) -> list[list[FileGroup]]:
    rounds: list[list[FileGroup]] = []
    room = 0
    for group in groups:
        if room <= 0:
            rounds.append([])
            room = _ROUND_BYTES
        rounds[-1].append(group)
        room -= group.total_bytes + len(group.files) * OPEN_FILE_BYTES
    return rounds


def commits_of(groups: Sequence[FileGroup], size: int, format_version: int) -> list[Sequence[FileGroup]]:
    """Divide groups into commits of ``size`` groups; 0: one commit.

    In v3, the first commit has all groups without row ids, because it gives ids to all remaining rows.
    """
    if not size or not groups:
        return [groups]
    together = [group for group in groups if format_version >= 3 and not group.has_lineage]
    rest = [group for group in groups if format_version < 3 or group.has_lineage]
    return [*([together] if together else []), *(rest[start : start + size] for start in range(0, len(rest), size))]


# Seconds to write manifests and commit, retries included.
_COMMIT_S = 60.0
# Groups of one table differ in deletes, compression and copied row groups.
_SAFETY = 2.0


class TimeLeft:
    """Decides whether the remaining time is enough for another file group (rule: functions-commit-in-time).

    It measures the speed of rewrites by the time left before and after each.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        """``seconds`` returns the remaining time."""
        self._seconds = seconds
        self._before_s = seconds()
        self._done_bytes = 0

    def note(self, size_bytes: int) -> None:
        """Record that a group of ``size_bytes`` was rewritten."""
        self._done_bytes += max(1, size_bytes)

    def is_enough_for(self, size_bytes: int) -> bool:
        """Whether a group is likely to end in time for a commit; true for the first one."""
        if not self._done_bytes:
            return True
        left_s = self._seconds()
        per_byte_s = max(0.0, self._before_s - left_s) / self._done_bytes
        return _COMMIT_S + _SAFETY * per_byte_s * size_bytes <= left_s


_PROGRESS = "compact: file groups"


def rewrite_groups(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    groups: Sequence[FileGroup],
    entries: GroupEntries,
) -> list[RewriteResult]:
    """Rewrite some groups of the plan and return a result for each, in any order.

    Raises:
        MetadataUnreadable: a manifest with their files is missing or damaged; nothing was written.
        TableUnsupported: this version cannot apply an equality delete, or a column has a reserved name; nothing was
            written.
        StorageError: the engine failed.
    """
    groups = [group.unpacked for group in groups]
    tasks, overtaken = _tasks(context, loaded, plan, groups, entries)
    if not tasks:
        return overtaken
    # All workers together sort a group that is too large for one.
    is_small = {task.group_id: task.recipe is None or fits_one_worker(task) for task in tasks}
    small = [task for task in tasks if is_small[task.group_id]]
    large = [task for task in tasks if not is_small[task.group_id]]
    batches = in_batches(small)
    context.will_write(file.record for task in small for file in planned_files(task))
    context.progress(_PROGRESS, 0, len(tasks))
    try:
        if len(batches) == len(small):
            results = context.engine.map(
                rewrite_group, small, lambda done: context.progress(_PROGRESS, done, len(tasks))
            )
        else:
            ended = [0, *accumulate(len(batch.tasks) for batch in batches)]  # an estimate: batches end in any order
            by_batch = context.engine.map(
                rewrite_batch,
                batches,
                lambda done: context.progress(_PROGRESS, ended[min(done, len(batches))], len(tasks)),
            )
            results = [result for batch in by_batch for result in batch]
        # Under other file names, because an attempt of the first try may still run and write.
        large += [
            replace(task, outputs=replace(task.outputs, stem=f"{task.outputs.stem}-sorted"))
            for task, result in zip(small, results, strict=True)
            if result.too_large
        ]
        results = [result for result in results if not result.too_large]
        clustered = cluster_groups(
            context.engine,
            large,
            will_write=context.will_write,
            discard=lambda paths: context.discard(loaded, paths),
            on_done=lambda done: context.progress(_PROGRESS, len(results) + done, len(tasks)),
        )
        return overtaken + results + clustered
    except MaintenanceError:
        # Remove the files of finished groups.  Attempts may still write; their files are removed by the job's record.
        context.discard(loaded, (path for task in small for file in planned_files(task) for path in file.paths))
        raise


def _tasks(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    groups: Sequence[FileGroup],
    entries: GroupEntries,
) -> tuple[list[RewriteTask], list[RewriteResult]]:
    """The groups' tasks, and results for the groups whose files are no longer as planned.

    Column metrics are needed for float columns, and of files that may be copied; other manifests are not read again.
    """
    stored = stored_schema(loaded.metadata.current_schema)
    has_floats = any(leaf.is_float and not leaf.repeated for leaf in leaf_columns(stored))
    described = [g for g in groups if _may_copy(plan, g) or (has_floats and not _is_judged(g))]
    found = entries.of(described)
    gone = {group.group_id for group in described if not found.keys() >= group.paths}
    tasks = [_task(loaded, plan, g, found, stored, context.policy) for g in groups if g.group_id not in gone]
    return tasks, [RewriteResult(group_id=group_id, overtaken=OVERTAKEN) for group_id in gone]


def _task(
    loaded: LoadedTable,
    plan: CompactionPlan,
    group: FileGroup,
    entries: Mapping[str, DataFile],
    stored: Mapping[str, Any],
    policy: Policy,
) -> RewriteTask:
    """The group's task; ``entries`` has its files by path if column metrics matter, ``stored`` is the schema of output
    files."""
    metadata, to = loaded.metadata, group.route_to
    schema = with_lineage(stored) if group.has_lineage else stored
    verify = policy.verify_page_checksums
    rows = make_read_task(metadata, group.files, schema, loaded.io_properties, verify_checksums=verify)
    most_files = None
    if plan.recipe is not None and all(candidate.is_clustered for candidate in group.files):
        # Without a limit, clustered files could be rewritten into as many files as before, and every pass would select
        # them again.
        most_files = plan.recipe.output_count(group.total_bytes)
    stem = f"compact-{plan.snapshot_id}-{group.group_id:05d}-{uuid.uuid4()}"
    return RewriteTask(
        **{each.name: getattr(rows, each.name) for each in fields(rows)},
        group_id=group.group_id,
        partition=group.partition,
        outputs=output_names(metadata, group.spec_id, group.partition, stem),
        table_properties=output_properties(metadata),
        proof=policy.proof.value,
        recipe=plan.recipe,
        output_count=group.output_count,
        copying=_copying(plan, group, entries, policy),
        routing=None if to is None else Routing(to, metadata.specs[to], metadata.schemas_current_first),
        most_files=most_files,
        row_group_memory_bytes=policy.row_group_memory_bytes,
        misread_columns=frozenset[int]().union(*(c.condition.misread_columns or () for c in group.files))
        | misread_columns((entries[c.file_path] for c in group.files if c.file_path in entries), leaf_columns(stored)),
    )


def _is_judged(group: FileGroup) -> bool:
    """Whether the plan found out which float columns of the files would be misread."""
    return all(c.condition.misread_columns is not None for c in group.files)


def _may_copy(plan: CompactionPlan, group: FileGroup) -> bool:
    """Whether row groups may be copied; not, for example, if rows change their order or partition."""
    if plan.recipe is not None or group.route_to is not None:
        return False
    return group.reason is Reason.LARGE or any(c.condition.may_be_copied for c in group.files)


def _copying(plan: CompactionPlan, group: FileGroup, entries: Mapping[str, DataFile], policy: Policy) -> Copying | None:
    """The row groups that may be copied; ``None``: none."""
    if not _may_copy(plan, group):
        return None
    cut = group.files[0].condition.pieces if group.reason is Reason.LARGE else ()
    return Copying(
        entries={
            number: entries[candidate.file_path]
            for number, candidate in enumerate(group.files)
            if cut or candidate.condition.may_be_copied
        },
        sizes=tuple(output_bytes(candidate, plan.sizes) for candidate in group.files),
        # A file that is cut keeps its row groups, even small ones.
        min_row_group_bytes=1 if cut else policy.min_row_group_copy_bytes or 1,
        full_row_group_memory=policy.full_row_group_memory_bytes,
        smallest_output_bytes=policy.min_file_size_bytes,
        largest_output_bytes=int(LARGEST_OUTPUT * policy.target_file_size_bytes),
        pieces=cut,
    )


# A table may have thousands of partitions of tiny files.  If each group were a task of its own, each would open its own
# client of the object store, whose requests wait for one another.  A batch shares the client.  On a store several of
# its groups are rewritten at once, because they spend nearly all of their time waiting for responses.

Item = TypeVar("Item")

# Sizes are those of RewriteTask.input_bytes.  A group of fifteen tiny files is still small.
_SMALL_BYTES = 4 * 1024 * 1024
# A third of a second's work, so that workers end together and progress is reported often.
_BATCH_BYTES = 32 * 1024 * 1024
# Groups of a batch that are rewritten at once on a store.
_AT_ONCE = 8
# Of data files whose rows are in memory at once; in memory they are several times larger (rule: bounded-worker-memory).
_AT_ONCE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RewriteBatch:
    """One or more groups of one table that one worker rewrites."""

    tasks: tuple[RewriteTask, ...]

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadsBytes`."""
        return sum(task.input_bytes for task in self.tasks)

    def in_attempt(self, attempt: int) -> RewriteBatch:
        """The same groups with the file names of that attempt."""
        return RewriteBatch(tuple(task.in_attempt(attempt) for task in self.tasks))


def in_batches(tasks: Iterable[RewriteTask]) -> list[RewriteBatch]:
    """Put all tasks into batches, in their order (pure)."""
    return [RewriteBatch(tuple(batch)) for batch in small_together(tasks, lambda task: task.input_bytes)]


def small_together(groups: Iterable[Item], size_of: Callable[[Item], int]) -> list[list[Item]]:
    """Put consecutive small groups together, up to the size of a batch; large groups stay alone (pure).

    ``size_of`` returns a group's bytes as :attr:`RewriteTask.input_bytes` counts them.
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
    """Rewrite all groups of a batch; an error of a group is in its result, as with :func:`.rewrite_group`."""
    storage = Storage(batch.tasks[0].io_properties)
    paths = (path for task in batch.tasks for path in (task.outputs.folder, *(source.path for source in task.inputs)))
    if len(batch.tasks) == 1 or all(is_local(path) for path in paths):
        return [rewrite_group(task, storage) for task in batch.tasks]
    # As many groups as fit into memory at once, whichever of the batch they are.
    largest = max(task.file_bytes for task in batch.tasks)
    at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // max(1, largest)))
    with WorkThreads(at_once, thread_name_prefix="small-groups") as pool:
        running = [pool.submit(rewrite_group, task, storage) for task in batch.tasks]
        return [one.result() for one in running]


def commit_results(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    results: Sequence[RewriteResult],
    outcomes: GroupOutcomes,
) -> None:
    """Commit the files of all ``results`` that are still valid as one snapshot, and update ``outcomes``.

    ``loaded`` is the table at planning.  In a dry run the files are the expected ones.  Output files of groups that are
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
    rewrite = _rewrite(loaded, plan, groups, done, outcomes)
    depth: float | None = None

    def replacement_on(head: TableMetadata, rebased: RebaseResult) -> tuple[FileReplacement, Collection[str]] | Nothing:
        if not rebased.kept and not rebased.unneeded_deletes:
            return Nothing(next(iter(rebased.dropped.values()), "no delete file is without use any more"))
        nonlocal depth
        kept = [group for group in groups if group.group_id in rebased.kept]
        committed = outcomes.committed | {group.group_id: done[group.group_id] for group in kept}
        depth = depth_with(plan, {group_id: result.written for group_id, result in committed.items()})
        return FileReplacement(
            removed=rebased.unneeded_deletes.union(c.key for group in kept for c in group.files),
            added=tuple(added for group in kept for added in _added(group, done[group.group_id])),
            data_sequence_number=plan.sequence_number,
            recipe=None if plan.recipe is None else plan.recipe.text,
            clustering_depth=depth,
            noted=_noted(plan, kept, done),
        ), rebased.affected

    landed, rebased = commit_rewrite(context, rewrite, replacement_on)
    outcomes.dropped |= rebased.dropped
    if isinstance(landed, Nothing):
        outcomes.nothing = landed.reason
        return
    outcomes.depth = depth
    outcomes.snapshot_ids.append(landed.prepared.snapshot_id or 0)
    outcomes.deletes_removed += len(rebased.unneeded_deletes)
    for key in rebased.unneeded_deletes:
        outcomes.delete_needs.pop(key)
    kept = [group for group in groups if group.group_id in rebased.kept]
    outcomes.committed |= {group.group_id: done[group.group_id] for group in kept}
    for key, count in _needed(*kept).items():
        if key in outcomes.delete_needs:
            outcomes.delete_needs[key] -= count
    if plan.recipe is not None and rebased.kept and not context.dry_run:
        context.memory.remember_clustering(outcomes.snapshot_ids[-1], plan.recipe.text)


def _without_failed(results: Iterable[RewriteResult], outcomes: GroupOutcomes) -> dict[int, RewriteResult]:
    """The results that may be committed, by group; the others are noted in ``outcomes``."""
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
    """The record of output sizes for the snapshot summary, from decoded groups of files of writers.

    Clustering and deletes change the size for other reasons, so such groups do not count.
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
            without_row_ids=not group.has_lineage,
        )
        for group in groups
    ]
    outputs = {group_id: [file.file_path for file in result.written] for group_id, result in done.items()}
    return Rewrite(loaded, planned, claims, outputs)


def _needed(*groups: FileGroup) -> Counter[FileKey]:
    return Counter(entry.file.key for group in groups for candidate in group.files for entry in candidate.deletes)
