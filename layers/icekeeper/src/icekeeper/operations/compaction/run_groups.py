"""Rewrite a plan's file groups through the engine, round by round, and commit them as they finish.

:mod:`.rounds` decides what belongs to a round and when to commit.  Small groups share a *batch*, which is a single task
of the engine.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.engines.engine import named_work
from icekeeper.errors import MaintenanceError, SwitchedOff
from icekeeper.machine.interrupts import uninterrupted
from icekeeper.operations.compaction.land.commit_groups import GroupOutcomes, commit_results, with_row_ids
from icekeeper.operations.compaction.land.group_entries import OVERTAKEN, GroupEntries
from icekeeper.operations.compaction.land.rounds import Pace, Work, in_commits, opened_bytes, small_together
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.group_tasks import group_task, needs_entries
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult, RewriteTask, planned_files
from icekeeper.operations.compaction.work.exchange import cluster_groups, fits_one_worker
from icekeeper.operations.compaction.work.rewrite import RewriteBatch, rewrite_batch, rewrite_group
from icekeeper.pass_context.context import OperationContext
from icekeeper.report.activity import REWRITING
from icekeeper.rows.arrow_schema import leaf_columns, stored_schema

# A worker finds all unreadable files of a group in one attempt, a sort in two attempts.  Further failures mean that
# files disappear meanwhile.
_ATTEMPTS_WITHOUT = 3


def rewrite_and_commit(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan
) -> tuple[CompactionPlan, GroupOutcomes]:
    """Rewrite the groups round by round and commit them as they finish, so that a killed process loses few of them.

    When the time limit is reached, finished groups are committed and the rest is left to the next run.  Returns the
    plan without unreadable files, and the outcomes.

    Raises:
        MaintenanceError: nothing was committed.
    """
    outcomes = GroupOutcomes(dict(plan.delete_needs))
    if plan.groups:
        return _Rewriting(context, loaded, plan, outcomes).run()
    commit_results(context, loaded, plan, [], outcomes)  # only drops delete files
    return plan, outcomes


class _Rewriting:
    """A plan in progress: the groups that wait, and the results that are not committed yet."""

    def __init__(
        self, context: OperationContext, loaded: LoadedTable, plan: CompactionPlan, outcomes: GroupOutcomes
    ) -> None:
        self._context, self._loaded, self._plan, self._outcomes = context, loaded, plan, outcomes
        self._stored = stored_schema(loaded.metadata.current_schema)
        self._entries = GroupEntries(context.reader(loaded), plan)
        # The groups without unreadable files, and with the row ids that a commit has assigned.
        self._groups = {group.group_id: group for group in plan.groups}
        self._waiting = deque(self._works(plan.groups))
        self._ready: list[RewriteResult] = []
        self._in_work = 0
        """The number of groups in the running round or commit."""
        self._attempts: Counter[int] = Counter()
        self._settled = 0
        """The number of groups in earlier rounds."""
        self._settled_bytes = 0
        self._pace = Pace(self._context.limits.time_left_s())
        self._planned_bytes = sum(group.total_bytes for group in plan.groups)
        self._slots = 1
        """The tasks that the engine ran at once when the running round began."""
        self._has_begun = False
        self._committed_s = context.monotonic_s()

    def run(self) -> tuple[CompactionPlan, GroupOutcomes]:
        """See :func:`rewrite_and_commit`; after an interrupt, finished groups are committed."""
        try:
            for step in (self._rewrite_all, self._commit):  # commit finished groups also after an error of the engine
                try:
                    step()
                except MaintenanceError as error:
                    if not self._ready and not self._outcomes.snapshot_ids:
                        raise
                    self._note_end(error)
        except KeyboardInterrupt:
            with suppress(MaintenanceError):
                self._commit()
            raise
        return self._plan_now(), self._outcomes

    def _note_end(self, error: MaintenanceError) -> None:
        """Record why no more groups begin, and that the groups in work are not committed."""
        if isinstance(error, SwitchedOff):
            self._outcomes.groups_left += self._in_work + self._stop()
            self._outcomes.why_left = f"because {error}"
            return
        self._outcomes.errors.append(f"{type(error).__name__}: {error}")
        self._outcomes.failed_groups += self._in_work + self._stop()

    def _rewrite_all(self) -> None:
        while works := self._next_round():
            self._rewrite(works)
            if self._commit_is_due():
                self._commit()
                self._load_row_ids()

    def _next_round(self) -> list[Work]:
        """The work that begins now; empty if nothing waits or the pass must stop."""
        if not self._waiting:
            return []
        count, why = 0, "because no time was left"
        if self._has_begun and (reason := self._context.limits.why_stop()) is not None:
            why = f"because {reason}"
        else:
            self._slots = self._context.engine.slots
            count = self._pace.next_round(self._portion(), self._context.limits.time_left_s(), self._slots)
        if not count:
            self._outcomes.groups_left, self._outcomes.why_left = self._stop(), why
        self._has_begun = True
        return [self._waiting.popleft() for _ in range(count)]

    def _rewrite(self, works: Sequence[Work]) -> None:
        """Rewrite a round.

        Unreadable files must not block their partition: a group is rewritten again without its unreadable files and
        their deletes, which stay in the table.  A group with nothing left to merge then is given up
        (rule: leave-out-unreadable-files).
        """
        groups = [group for work in works for group in work.groups]
        self._in_work, began_s = len(groups), self._context.monotonic_s()
        if self._settled:
            # Imported here, because most plans have a single round.
            from icekeeper.operations.compaction.land.forward_deletes import with_newest_deletes

            groups = with_newest_deletes(self._context, self._loaded, self._plan, groups)
            self._groups |= {group.group_id: group for group in groups}
        size = sum(group.total_bytes for group in groups)
        counted = replace(self._context, progress=partial(self._progress, self._settled_bytes))
        ids = [group.group_id + 1 for group in groups]
        with named_work(f"file groups {min(ids)} to {max(ids)} of {len(self._plan.groups)}"):
            results = rewrite_groups(counted, self._loaded, self._plan, groups, self._entries)
        self._settled += len(groups)
        self._settled_bytes += size
        self._in_work = 0
        # With executors that came meanwhile, the round shows a lower speed than theirs: the next one ends early.
        slots = max(self._slots, self._context.engine.slots)
        self._pace.note_round(works, self._context.monotonic_s() - began_s, slots)
        again: list[FileGroup] = []
        for result in results:
            if not result.unreadable or self._attempts[result.group_id] == _ATTEMPTS_WITHOUT:
                self._ready.append(result)
                continue
            self._attempts[result.group_id] += 1
            self._outcomes.unreadable |= result.unreadable
            smaller = _without(self._groups[result.group_id], result.unreadable)
            if len(smaller.files) > 1 or any(candidate.is_due for candidate in smaller.files):
                self._groups[result.group_id] = smaller
                again.append(smaller)
            else:
                del self._groups[result.group_id]
                self._outcomes.groups_given_up += 1
        self._waiting.extendleft(reversed(self._works(again)))

    def _progress(self, before: int, what: str, done: int, total: int) -> None:
        """Report progress of a round as progress of the whole plan, of which ``before`` bytes are already rewritten."""
        self._context.progress(what, before + done, max(self._planned_bytes, before + total))

    def _commit_is_due(self) -> bool:
        if self._context.policy.partial_progress:
            return not self._waiting or (self._is_full() and self._pace.may_commit_early(self._context.monotonic_s()))
        groups = [self._groups[result.group_id] for result in self._ready]
        size, files = sum(map(opened_bytes, groups)), sum(len(group.files) for group in groups)
        return self._pace.commit_is_due(size, files, self._context.monotonic_s() - self._committed_s)

    def _commit(self) -> None:
        if not self._ready:
            return
        with uninterrupted():
            results, self._ready = self._ready, []
            self._in_work, began_s = sum(result.error is None for result in results), self._context.monotonic_s()
            commit_results(self._context, self._loaded, self._plan_now(), results, self._outcomes)
            self._in_work, self._committed_s = 0, self._context.monotonic_s()
            self._pace.note_commit(self._committed_s, self._committed_s - began_s)

    def _load_row_ids(self) -> None:
        """After a commit to a table that was upgraded to v3, continue with the row ids that the commit has assigned to
        all rows."""
        waiting = [group for work in self._waiting for group in work.groups]
        if self._loaded.metadata.format_version >= 3 and not all(group.has_lineage for group in waiting):
            waiting = with_row_ids(self._context, waiting, self._outcomes)
            self._groups |= {group.group_id: group for group in waiting}
            self._entries = GroupEntries(self._context.reader(self._loaded), self._plan_now())
            self._waiting = deque(self._works(waiting))

    def _works(self, groups: Sequence[FileGroup]) -> list[Work]:
        """The groups in their order, small groups together."""
        clusters = self._plan.recipe is not None
        return [
            Work(tuple(some), clusters and len(some) == 1 and not self._fits_one_worker(some[0]))
            for portion in in_commits(groups, self._context.policy.partial_progress)
            for some in small_together(portion, opened_bytes)
        ]

    def _fits_one_worker(self, group: FileGroup) -> bool:
        return fits_one_worker(self._stored, group.record_count, group.total_bytes)

    def _portion(self) -> Iterator[Work]:
        """The work that may join the next round; with ``partial_progress`` as much as the next commit lacks, or another
        portion."""
        most = self._context.policy.partial_progress
        room = most if self._waiting and self._is_full() else most - len(self._ready)
        for work in self._waiting:
            room -= len(work.groups)
            if most and room < 0:
                return
            yield work

    def _is_full(self) -> bool:
        """Whether, by ``partial_progress``, the next commit has no room for the first waiting work."""
        return len(self._ready) + len(self._waiting[0].groups) > self._context.policy.partial_progress

    def _stop(self) -> int:
        """Begin no more groups; return how many waited."""
        waited = sum(len(work.groups) for work in self._waiting)
        self._waiting.clear()
        return waited

    def _plan_now(self) -> CompactionPlan:
        return replace(self._plan, groups=tuple(self._groups.values()))


def _without(group: FileGroup, unreadable: Container[str]) -> FileGroup:
    """The group without unreadable data files and data files with an unreadable delete file."""
    files = (c for c in group.files if c.file_path not in unreadable)
    return replace(group, files=tuple(c for c in files if not any(e.file.file_path in unreadable for e in c.deletes)))


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
    # All workers together sort a group that is too large for a single worker.
    is_small = {
        task.group_id: task.recipe is None or fits_one_worker(task.schema, task.record_count, task.file_bytes)
        for task in tasks
    }
    small = largest_first(task for task in tasks if is_small[task.group_id])
    large = [task for task in tasks if not is_small[task.group_id]]
    context.will_write(file.record for task in small for file in planned_files(task))
    all_bytes = sum(task.file_bytes for task in tasks)
    context.progress(REWRITING, 0, all_bytes)
    try:
        results = _rewrite_small(context, small, all_bytes)
        # Use other file names, because an attempt of the first try may still run and write.
        large += [
            replace(task, outputs=replace(task.outputs, stem=f"{task.outputs.stem}-sorted"))
            for task, result in zip(small, results, strict=True)
            if result.too_large
        ]
        results = [result for result in results if not result.too_large]
        ends = [0, *accumulate(task.file_bytes for task in large)]
        clustered = cluster_groups(
            context.engine,
            large,
            will_write=context.will_write,
            discard=lambda paths: context.discard(loaded, paths),
            on_done=lambda done: context.progress(REWRITING, all_bytes - ends[-1] + _reached(ends, done), all_bytes),
        )
        return overtaken + results + clustered
    except (MaintenanceError, KeyboardInterrupt):
        # Remove the files of finished groups.  Attempts may still write; their files are removed by the job's record.
        context.discard(loaded, (path for task in small for file in planned_files(task) for path in file.paths))
        raise


def _reached(ends: Sequence[int], done: float) -> int:
    """The bytes of the first ``done`` groups, of the last of these only a share."""
    whole = int(done)
    return ends[whole] + int((done - whole) * (ends[min(whole + 1, len(ends) - 1)] - ends[whole]))


def _rewrite_small(context: OperationContext, tasks: Sequence[RewriteTask], all_bytes: int) -> list[RewriteResult]:
    """Rewrite groups that each fit into a worker, tiny groups in batches; ``all_bytes`` is the total of the
    progress."""
    batches = in_batches(tasks)
    # An estimate, because batches end in any order.
    ends = [0, *accumulate(sum(task.file_bytes for task in batch.tasks) for batch in batches)]

    def on_done(done: int) -> None:
        context.progress(REWRITING, ends[min(done, len(batches))], all_bytes)

    if len(batches) == len(tasks):
        return context.engine.map(rewrite_group, tasks, on_done)
    by_batch = context.engine.map(rewrite_batch, batches, on_done)
    return [result for batch in by_batch for result in batch]


def largest_first(tasks: Iterable[RewriteTask]) -> list[RewriteTask]:
    """The order in which tasks of a round begin: were a large task the last, all other workers would wait for it."""
    return sorted(tasks, key=lambda task: -task.input_bytes)


def in_batches(tasks: Iterable[RewriteTask]) -> list[RewriteBatch]:
    """Put all tasks into batches, in their order (pure)."""
    return [RewriteBatch(tuple(batch)) for batch in small_together(tasks, lambda task: task.input_bytes)]


def _tasks(
    context: OperationContext,
    loaded: LoadedTable,
    plan: CompactionPlan,
    groups: Sequence[FileGroup],
    entries: GroupEntries,
) -> tuple[list[RewriteTask], list[RewriteResult]]:
    """The groups' tasks, and results for the groups whose files differ from the plan.

    Only manifests with files whose column metrics are needed are read again.
    """
    stored = stored_schema(loaded.metadata.current_schema)
    has_floats = any(leaf.is_float and not leaf.repeated for leaf in leaf_columns(stored))
    described = [g for g in groups if needs_entries(plan, g, has_floats=has_floats)]
    found = entries.of(described)
    gone = {group.group_id for group in described if not found.keys() >= group.paths}
    tasks = [group_task(loaded, plan, g, found, stored, context.policy) for g in groups if g.group_id not in gone]
    return tasks, [RewriteResult(group_id=group_id, overtaken=OVERTAKEN) for group_id in gone]
