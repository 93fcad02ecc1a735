"""Commits a rewrite: groups that other commits overtook are dropped, the others land together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.conflict_detection import GroupClaim, PlanningState, RebaseResult, rebase
from icekeeper.commit.snapshot import FileReplacement
from icekeeper.commit.transaction import Committed
from icekeeper.metadata.document import TableMetadata, require_writable
from icekeeper.model import Nothing
from icekeeper.pass_context.context import OperationContext

__all__ = ["ReplacementOn", "Rewrite", "commit_rewrite"]

ReplacementOn: TypeAlias = Callable[[TableMetadata, RebaseResult], tuple[FileReplacement, Collection[str]] | Nothing]
"""Returns what the groups that still hold replace on a head, and the manifests that list the replaced files."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewrite to commit: its groups, what each relies on, and the files that were written."""

    loaded: LoadedTable
    """The table at planning."""
    planned: PlanningState
    groups: Sequence[GroupClaim]
    outputs: Mapping[int, Sequence[str]]
    """Group → paths of the files that were written for it."""


@dataclass(slots=True)
class _Attempts:
    context: OperationContext
    rewrite: Rewrite
    replacement_on: ReplacementOn
    rebased: list[RebaseResult] = field(default_factory=list)

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        require_writable(head.metadata)
        reader, branch = self.context.reader(head), self.context.policy.branch
        rebased = rebase(self.rewrite.planned, head.metadata, reader, branch, self.rewrite.groups)
        self.rebased.append(rebased)
        found = self.replacement_on(head.metadata, rebased)
        if isinstance(found, Nothing):
            return found
        replacement, affected = found
        return self.context.snapshot_writer(head).replace_files(replacement, rebased.manifests, affected)


def commit_rewrite(
    context: OperationContext, rewrite: Rewrite, replacement_on: ReplacementOn
) -> tuple[Committed | Nothing, RebaseResult]:
    """Commit the groups that still hold on the newest head; outputs of the others are removed, unless they may be live.

    Returns:
        What landed, and what the last attempt decided about the groups.

    Raises:
        CommitStateUnknown: the outcome could not be found out; the outputs stay.
        MaintenanceError: nothing was committed.
    """
    attempts = _Attempts(context, rewrite, replacement_on)
    outputs = list(chain.from_iterable(rewrite.outputs.values()))
    committed = context.commit_outputs(rewrite.loaded, attempts.prepare, outputs)
    rebased = attempts.rebased[-1]
    context.discard(rewrite.loaded, chain.from_iterable(rewrite.outputs[group_id] for group_id in rebased.dropped))
    return committed, rebased
