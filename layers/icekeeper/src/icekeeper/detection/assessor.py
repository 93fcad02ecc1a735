"""Makes the function that assesses a loaded table: it resolves the policy, reads what is remembered, plans expiry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.detection.assess import TableFindings, as_requested, assess
from icekeeper.detection.layout_signals import wanted_clustering
from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.model import Nothing, TableName
from icekeeper.operations.expiry.retention import plan_expiry
from icekeeper.policy import Operation, ResolvedPolicy
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import StateStore

__all__ = [
    "Assessor",
    "Observer",
    "PolicyResolver",
    "assessor",
    "load_or_skip",
    "skip_on_error",
]

log = logging.getLogger(__name__)

Result = TypeVar("Result")

PolicyResolver = Callable[[LoadedTable], ResolvedPolicy]
"""The settings that hold for a table; raises PolicyError."""
Observer = Callable[[LoadedTable, TableIdentity, ResolvedPolicy | PolicyError], None]
"""Called with every table that was loaded, and its settings or what is wrong with them."""


class Assessor(Protocol):
    """Assesses one loaded table; called from several threads."""

    def __call__(self, loaded: LoadedTable, *, is_requested: bool = False) -> Proposal | Skip: ...


def assessor(
    catalog: Catalog,
    *,
    resolve_policy: PolicyResolver,
    store: StateStore,
    now_ms: int,
    observe: Observer | None = None,
) -> Assessor:
    """An assessor for the tables of one catalog, all judged at ``now_ms`` (epoch milliseconds).

    The state store is asked once per table.

    Raises (when called):
        PolicyError: the table's settings are wrong.
        StorageError: the state cannot be read.
    """

    def settings_of(loaded: LoadedTable, identity: TableIdentity) -> ResolvedPolicy:
        try:
            resolved = resolve_policy(loaded)
        except PolicyError as error:
            if observe is not None:
                observe(loaded, identity, error)
            raise
        if observe is not None:
            observe(loaded, identity, resolved)
        return resolved

    def assess_table(loaded: LoadedTable, *, is_requested: bool = False) -> Proposal | Skip:
        metadata = loaded.metadata
        identity = identity_of(catalog, loaded)
        memory = store.glance(identity, now_ms=now_ms)

        resolved = settings_of(loaded, identity)
        policy = resolved.policy
        pinned = [pin.snapshot_id for pin in memory.pins]
        plan = plan_expiry(metadata, policy, now_ms=now_ms, pinned=pinned)
        grace_ms = policy.orphan_older_than_ms
        findings = TableFindings(
            now_ms=now_ms,
            expirable=0 if isinstance(plan, Nothing) else len(plan.snapshot_ids),
            expirable_refs=0 if isinstance(plan, Nothing) else len(plan.refs),
            last_seen=memory.last_seen,
            failed_loads=sum(load.can_be_cleaned(now_ms, grace_ms) for load in memory.loads),
            clustering=wanted_clustering(metadata, policy) if resolved.runs(Operation.COMPACT) else None,
        )
        found = assess(str(loaded.name), metadata, resolved, findings)
        found = as_requested(found, resolved, identity.uuid) if is_requested else found
        return replace(found, location=identity.location) if isinstance(found, Proposal) else found

    return assess_table


def skip_on_error(table: TableName, work: Callable[[], Result]) -> Result | Skip:
    """What ``work`` returns; an exception becomes the reason why the table is skipped, so that the scan goes on."""
    try:
        return work()
    except MaintenanceError as error:
        return Skip(str(table), str(error), is_error=True)
    except OSError as error:
        return Skip(str(table), f"the table cannot be read: {error}", is_error=True)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Documents are read as they are; one that breaks the specification must not stop the scan of the others.
        reason = f"the metadata does not follow the specification: {type(error).__name__} {error}"
        return Skip(str(table), reason, is_error=True)
    except Exception as error:  # a bug that one table brings to light must not stop the scan of the others
        log.exception("%s could not be assessed", table)
        return Skip(str(table), f"the table cannot be assessed: {type(error).__name__} {error}", is_error=True)


def load_or_skip(catalog: Catalog, table: TableName) -> LoadedTable | Skip:
    """Load one table; a table that the catalog does not have any more is skipped, and marked as gone.

    Raises:
        MaintenanceError: it cannot be loaded.
    """
    try:
        return catalog.load(table)
    except PolicyError as error:
        return Skip(str(table), str(error), is_error=True, is_gone=True)
