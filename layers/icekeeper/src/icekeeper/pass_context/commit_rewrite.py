"""Commits the file groups of a rewrite that still hold on the newest head."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.conflict_detection import DeleteManifests, GroupClaim, PlanningState, RebaseResult, rebase
from icekeeper.commit.snapshot import REPLACE, FileReplacement
from icekeeper.commit.transaction import Committed
from icekeeper.metadata.document import TableMetadata, require_writable
from icekeeper.model import Nothing
from icekeeper.pass_context.context import OperationContext


@dataclass(frozen=True, slots=True)
class GroupsRefused:
    """Groups that must not be committed on this head, each with the reason."""

    reasons: Mapping[int, str]


ReplacementOn: TypeAlias = Callable[
    [TableMetadata, RebaseResult], tuple[FileReplacement, Collection[str]] | Nothing | GroupsRefused
]
"""Returns the replacement for the groups that still hold on a head, and the manifests that list the replaced files.

After a refusal it is called again, without the refused groups.
"""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewrite of ``loaded`` to commit; ``outputs``: group id → paths of the written files."""

    loaded: LoadedTable
    planned: PlanningState
    groups: Sequence[GroupClaim]
    outputs: Mapping[int, Sequence[str]]
    operation: str = REPLACE
    """The operation of the snapshot."""


def commit_rewrite(
    context: OperationContext, rewrite: Rewrite, replacement_on: ReplacementOn
) -> tuple[Committed | Nothing, RebaseResult]:
    """Commit together the groups that still hold on the newest head; drop groups that conflict with other commits.

    Outputs of dropped groups are removed, unless they may be live.

    Returns:
        The commit, and the last attempt's decision about the groups.

    Raises:
        CommitStateUnknown: it is unknown whether the commit landed; the outputs are kept.
        MaintenanceError: nothing was committed.
    """
    rebased: RebaseResult
    deletes = DeleteManifests()

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        nonlocal rebased
        require_writable(head.metadata)
        refused: dict[int, str] = {}
        found: tuple[FileReplacement, Collection[str]] | Nothing | GroupsRefused = GroupsRefused({})
        while isinstance(found, GroupsRefused):
            refused |= found.reasons
            groups = [group for group in rewrite.groups if group.group_id not in refused]
            reader = context.reader(head)
            rebased = rebase(rewrite.planned, head.metadata, reader, context.policy.branch, groups, deletes)
            found = replacement_on(head.metadata, rebased)
        rebased = replace(rebased, dropped={**rebased.dropped, **refused})
        if isinstance(found, Nothing):
            return found
        replacement, affected = found
        writer = context.snapshot_writer(head)
        return writer.replace_files(replacement, rebased.manifests, affected, rewrite.operation)

    if context.operation is not None:
        context.progress(f"{context.operation.value}: committing", 0, 0)
    outputs = list(chain.from_iterable(rewrite.outputs.values()))
    committed = context.commit_outputs(rewrite.loaded, prepare, outputs)
    context.discard(rewrite.loaded, chain.from_iterable(rewrite.outputs[group_id] for group_id in rebased.dropped))
    return committed, rebased
