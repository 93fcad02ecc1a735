"""Begins a pass: loads the table, checks the policy against it, records where it has files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.deletion.table_claims import begin_claims
from icekeeper.errors import MaintenanceError, PlanStale
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.other_entries import deletes_after_commit
from icekeeper.policy import ResolvedPolicy
from icekeeper.policy_fit import fitting
from icekeeper.state.identity import TableIdentity

__all__ = ["PassStart", "begin", "head_id"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassStart:
    """What a pass found: which table, and its head before the first operation."""

    identity: TableIdentity
    head_id: int | None
    started_ms: int


def begin(
    context: OperationContext, policies: Sequence[ResolvedPolicy] = (), *, loaded: LoadedTable | None = None
) -> LoadedTable:
    """Load the table, check that the policy fits it, and record that it is known here.

    ``policies`` are those of the pass's parts, where these are not the one of the context.  ``loaded`` is the table
    where it was loaded just now.

    Raises:
        PolicyError: there is no such table, or the policy does not fit it.
        PlanStale: it is not the table that the context was made for.
        StorageError: the table cannot be loaded at all.
    """
    loaded = loaded or context.load()
    for resolved in policies or (context.resolved,):
        fitting(loaded.metadata, resolved)
    if not identity_of(context.catalog, loaded).is_same_table(context.memory.identity):
        raise PlanStale(f"{context.table} was replaced by another table just now; run the pass again")
    if context.resolved.why_disabled() is None:
        begin_claims(context, loaded)
        if deletes_after_commit(loaded.metadata) and not context.dry_run:
            _know_other_entries(context, loaded)
    return loaded


def _know_other_entries(context: OperationContext, loaded: LoadedTable) -> None:
    """Look at every table: another entry may stand at a metadata file that a commit of this pass would delete."""
    from icekeeper.deletion.other_tables import know_every_table  # functions that begin no pass import this module

    try:
        know_every_table(context, loaded)
    except MaintenanceError as error:
        log.warning("%s: commits delete no old metadata files: %s", context.table, error)


def head_id(context: OperationContext, loaded: LoadedTable) -> int | None:
    """The snapshot at the head of the branch that the policy names."""
    head = loaded.metadata.head(context.policy.branch)
    return None if head is None else head.snapshot_id
