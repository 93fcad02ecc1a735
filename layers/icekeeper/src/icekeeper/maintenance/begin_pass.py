"""Begins a pass: loads the table, checks the policy against it, records where it has files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.deletion.claims import begin_claims
from icekeeper.errors import PlanStale, TableUnsupported
from icekeeper.operations.compaction.recipe import choose_recipe
from icekeeper.operations.compaction.scope import file_scope
from icekeeper.operations.expiry.retention import check_retention
from icekeeper.operations.statistics.columns import statistics_columns
from icekeeper.pass_context.branch import branch_head
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation, ResolvedPolicy
from icekeeper.state.identity import TableIdentity

__all__ = ["PassStart", "begin", "head_id"]


@dataclass(frozen=True, slots=True)
class PassStart:
    """What a pass found: which table, and its head before the first operation."""

    identity: TableIdentity
    head_id: int | None
    started_ms: int


def begin(context: OperationContext, policies: Sequence[ResolvedPolicy] = ()) -> LoadedTable:
    """Load the table, check that the policy fits it, and record that it is known here.

    ``policies`` are those of the pass's parts, where these are not the one of the context.

    Raises:
        PolicyError: there is no such table, or the policy does not fit it.
        PlanStale: it is not the table that the context was made for.
        StorageError: the table cannot be loaded at all.
    """
    loaded = context.load()
    is_maintained = context.resolved.why_disabled() is None
    if is_maintained:
        for resolved in policies or (context.resolved,):
            _check_fit(replace(context, resolved=resolved), loaded)
    if not identity_of(context.catalog, loaded).is_same_table(context.memory.identity):
        raise PlanStale(f"{context.table} was replaced by another table just now; run the pass again")
    if is_maintained:
        begin_claims(context, loaded)
    return loaded


def head_id(context: OperationContext, loaded: LoadedTable) -> int | None:
    """The snapshot at the head of the branch that the policy names."""
    head = loaded.metadata.head(context.policy.branch)
    return None if head is None else head.snapshot_id


def _check_fit(context: OperationContext, loaded: LoadedTable) -> None:
    """A branch, filter, order or column that does not fit the table is a mistake of the policy: nothing runs."""
    branch_head(loaded.metadata, context.policy.branch)
    file_scope(context.policy, loaded.metadata, context.started_ms)
    if Operation.EXPIRE_SNAPSHOTS in context.policy.operations:
        check_retention(loaded.metadata, context.policy)
    if Operation.COMPUTE_STATISTICS in context.policy.operations:
        statistics_columns(loaded.metadata, context.policy.statistics_columns)
    if Operation.COMPACT in context.policy.operations:
        with suppress(TableUnsupported):  # that is for the operation to report
            choose_recipe(loaded.metadata, context.policy)
