"""Rewrites and commits a plan's groups: all at once, some at a time, or as many as there is time for (rule 147)."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MaintenanceError
from icekeeper.operations.compaction.commit_results import GroupOutcomes, commit_results
from icekeeper.operations.compaction.dispatch import rewrite_groups
from icekeeper.operations.compaction.group_batches import small_together
from icekeeper.operations.compaction.plan import CompactionPlan, FileGroup
from icekeeper.operations.compaction.task import RewriteResult
from icekeeper.operations.compaction.time_left import TimeLeft
from icekeeper.pass_context.context import OperationContext
from icekeeper.rows.read_task import OPEN_FILE_BYTES

__all__ = ["commits_of", "rewrite_and_commit"]

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
    (rule 186).
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
