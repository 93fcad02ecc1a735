"""From a loaded table to its assessment: policy resolved, memory and pins looked up, expiry planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.detection.assess import assess
from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import Nothing
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import StateStore

__all__ = ["Assessor", "ExpiryPlanner", "ExpiryWork", "assessor"]

Assessor = Callable[[LoadedTable], Proposal | Skip]
"""Assesses one loaded table; called from several threads."""


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
    catalog: str,
    warehouse: str,
    *,
    resolve_policy: Callable[[LoadedTable], ResolvedPolicy],
    store: StateStore,
    now_ms: int,
    plan_expiry: ExpiryPlanner,
) -> Assessor:
    """An assessor for the tables of one catalog, all judged at ``now_ms`` (epoch milliseconds).

    Raises (when called):
        PolicyError: the table's settings are wrong.
        StorageError: the state cannot be read.
    """

    def assess_table(loaded: LoadedTable) -> Proposal | Skip:
        metadata = loaded.metadata
        resolved = resolve_policy(loaded)
        identity = TableIdentity(catalog, warehouse, loaded.name, metadata.uuid or "")
        pinned = [pin.snapshot_id for pin in store.pins(identity, now_ms=now_ms)]
        grace_ms = resolved.policy.orphan_older_than_ms
        plan = plan_expiry(metadata, resolved.policy, now_ms=now_ms, pinned=pinned)
        return assess(
            str(loaded.name),
            metadata,
            resolved,
            now_ms=now_ms,
            expirable=0 if isinstance(plan, Nothing) else len(plan.snapshot_ids),
            expirable_refs=0 if isinstance(plan, Nothing) else len(plan.refs),
            last_seen=store.last_seen(identity),
            failed_loads=sum(load.can_be_cleaned(now_ms, grace_ms) for load in store.staging.loads(identity)),
        )

    return assess_table
