"""From a loaded table to its assessment: policy resolved, memory and pins looked up, expiry planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.detection.assess import as_requested, assess
from icekeeper.detection.layout_signals import Clustering
from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import Nothing
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import StateStore

__all__ = [
    "Assessor",
    "ClusteringChoice",
    "ExpiryPlanner",
    "ExpiryWork",
    "Observer",
    "PolicyResolver",
    "assessor",
]

PolicyResolver = Callable[[LoadedTable], ResolvedPolicy]
"""The settings that hold for a table; raises PolicyError."""
ClusteringChoice = Callable[[TableMetadata, Policy], Clustering | None]
"""How the policy wants files clustered; raises PolicyError."""
Observer = Callable[[LoadedTable, TableIdentity, ResolvedPolicy | PolicyError], None]
"""Told of every table that was loaded, with its settings or what is wrong with them."""


class Assessor(Protocol):
    """Assesses one loaded table; called from several threads."""

    def __call__(self, loaded: LoadedTable, *, is_requested: bool = False) -> Proposal | Skip: ...


class ExpiryWork(Protocol):
    """What an expiry plan holds."""

    @property
    def snapshot_ids(self) -> tuple[int, ...]: ...

    @property
    def refs(self) -> tuple[str, ...]: ...


class ExpiryPlanner(Protocol):
    """The pure plan of the expiry operation, handed in so that detection need not know that operation."""

    def __call__(
        self, metadata: TableMetadata, policy: Policy, *, now_ms: int, pinned: Iterable[int]
    ) -> ExpiryWork | Nothing: ...


def assessor(
    catalog: Catalog,
    *,
    resolve_policy: PolicyResolver,
    store: StateStore,
    now_ms: int,
    plan_expiry: ExpiryPlanner,
    choose_clustering: ClusteringChoice | None = None,
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
        clusters = choose_clustering if resolved.runs(Operation.COMPACT) else None
        grace_ms = policy.orphan_older_than_ms
        found = assess(
            str(loaded.name),
            metadata,
            resolved,
            now_ms=now_ms,
            expirable=0 if isinstance(plan, Nothing) else len(plan.snapshot_ids),
            expirable_refs=0 if isinstance(plan, Nothing) else len(plan.refs),
            last_seen=memory.last_seen,
            failed_loads=sum(load.can_be_cleaned(now_ms, grace_ms) for load in memory.loads),
            clustering=None if clusters is None else clusters(metadata, policy),
        )
        found = as_requested(found, resolved, identity.uuid) if is_requested else found
        return replace(found, location=identity.location) if isinstance(found, Proposal) else found

    return assess_table
