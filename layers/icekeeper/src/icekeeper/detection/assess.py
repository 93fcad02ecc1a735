"""Decide from metadata, policy and recorded passes whether a table needs work, and how urgently.

Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.detection.look_again import outlook, time_has_come
from icekeeper.detection.priority import Signal, priority_of, waited_ms
from icekeeper.detection.proposal import REQUESTED, Proposal, Skip
from icekeeper.detection.signals import (
    SweepPlanner,
    clustering_signals,
    due_sweep,
    expiry_signals,
    large_file_signals,
    load_signals,
    partition_signals,
    ref_signals,
    rewrites_are_blocked,
    statistics_signals,
    summary_signals,
    sweep_memory,
    wanted_clustering,
)
from icekeeper.errors import PolicyError
from icekeeper.health.examine import refused_expiry_warning, summary_counters, unreadable_warning
from icekeeper.metadata.document import (
    MAIN,
    MAINTAINED_FORMAT_VERSIONS,
    Snapshot,
    TableMetadata,
    history_digest,
    table_digest,
)
from icekeeper.operations.compaction.plan.where import why_not_rewritten
from icekeeper.operations.expiry.retention import ExpiryPlan, expiry_at
from icekeeper.operations.policy_fit import check_fit
from icekeeper.policy import Operation, Policy, ResolvedPolicy, gc_enabled
from icekeeper.policy.sweep_rhythm import next_proposal_ms, sweep_interval_ms
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Glance, LastSeen, SweepKind, SweepRecord


def assess_table(
    loaded: LoadedTable,
    identity: TableIdentity,
    resolved: ResolvedPolicy,
    memory: Glance,
    *,
    now_ms: int,
    plan_sweep: SweepPlanner,
    is_requested: bool = False,
    fleet: int = 1,
    manifests: int | None = None,
) -> Proposal | Skip:
    """Assess a table by its records in the state store (``memory``).

    For a table without a recorded sweep, the time of the first one is passed to ``plan_sweep``, unless it is now; the
    first sweeps of the ``fleet`` tables that the scan selects are spread over an interval.  ``manifests`` is the number
    of manifests of the head where its summary lacks it; ``None``: unknown.

    Raises:
        StorageError: ``plan_sweep`` failed.
    """
    metadata, policy, sweeps = loaded.metadata, resolved.policy, memory.sweeps
    found: Proposal | Skip | None = _why_filters_misfit(loaded, resolved)
    if found is None:
        deletes = not loaded.versioned_by  # else passes refuse to (rule: branches-outside-need-everything)
        plan = _expirable(metadata, policy, memory, now_ms) if deletes else ExpiryPlan((), ())
        grace_ms = policy.orphan_older_than_ms
        found = assess(
            str(loaded.name),
            metadata,
            resolved,
            now_ms=now_ms,
            expirable=len(plan.snapshot_ids),
            expirable_refs=len(plan.refs),
            last_seen=memory.last_seen,
            failed_loads=sum(load.can_be_cleaned(now_ms, grace_ms) for load in memory.loads) if deletes else 0,
            due=due_sweep(plan_sweep, identity, metadata, resolved, sweeps, fleet=fleet, now_ms=now_ms)
            if deletes
            else (),
            clustering=wanted_clustering(metadata, policy) if resolved.runs(Operation.COMPACT) else None,
            has_unreadable=bool(memory.unreadable),
            manifests=manifests,
        )
    found = as_requested(found, resolved, identity.uuid) if is_requested else found
    warning = _unreadable(metadata, memory)
    if isinstance(found, Skip):
        return replace(found, warning=warning, catalog=identity.catalog.name)
    seen = () if memory.last_seen is None else (memory.last_seen.finished_ms,)
    passes_ms = (*seen, *(one.finished_ms for one in sweeps.values() if one.kind is not SweepKind.FIRST))
    return replace(
        found,
        warning=warning,
        catalog=identity.catalog.name,
        warehouse=identity.catalog.warehouse,
        location=identity.location,
        waited_ms=waited_ms(metadata, passes_ms, now_ms),
    )


def _unreadable(metadata: TableMetadata, memory: Glance) -> str | None:
    told = unreadable_warning(memory.unreadable), refused_expiry_warning(metadata, memory.refused_expiry)
    return "; ".join(filter(None, told)) or None


def _expirable(metadata: TableMetadata, policy: Policy, memory: Glance, now_ms: int) -> ExpiryPlan:
    """What expires now; nothing if the last expiry was refused and would be again
    (rule: retry-unreadable-files-weekly)."""
    refused = memory.refused_expiry
    is_named = bool(policy.named_snapshots[1])
    if refused and not is_named and refused.waits(history_digest(metadata, refused.needed_by), now_ms):
        return ExpiryPlan((), ())
    return expiry_at(metadata, policy, now_ms=now_ms, pinned=[pin.snapshot_id for pin in memory.pins])


def next_sweep_ms(
    identity: TableIdentity,
    metadata: TableMetadata,
    resolved: ResolvedPolicy,
    sweeps: Mapping[SweepKind, SweepRecord],
    *,
    fleet: int,
    now_ms: int,
) -> int:
    """When an orphan sweep alone is a reason for a pass, in epoch milliseconds; 0: passes sweep no orphans here."""
    interval_ms = sweep_interval_ms(resolved.policy)
    if not (interval_ms and resolved.runs(Operation.REMOVE_ORPHANS) and gc_enabled(metadata) and metadata.has_history):
        return 0
    memory = sweep_memory(identity, metadata, resolved.policy, sweeps, fleet=fleet, now_ms=now_ms)
    return next_proposal_ms(memory, interval_ms, identity.key, now_ms)


def _why_filters_misfit(loaded: LoadedTable, resolved: ResolvedPolicy) -> Skip | None:
    """Skip a table if every pass would refuse a filter of its policy."""
    try:
        if resolved.policy.where is not None and resolved.why_disabled() is None:
            check_fit(loaded.metadata, resolved.policy, ())
    except PolicyError as error:
        return Skip(str(loaded.name), str(error), is_error=True)
    return None


def idle_by_memory(loaded: LoadedTable, resolved: ResolvedPolicy, memory: Glance, now_ms: int) -> frozenset[Operation]:
    """The operations of a policy that certainly find nothing to do at ``now_ms``."""
    clusters = resolved.runs(Operation.COMPACT) and wanted_clustering(loaded.metadata, resolved.policy) is not None
    return idle_operations(loaded.metadata, resolved, memory.last_seen, clusters=clusters, now_ms=now_ms)


def assess(
    table: str,
    metadata: TableMetadata,
    resolved: ResolvedPolicy,
    *,
    now_ms: int,
    expirable: int,
    expirable_refs: int = 0,
    last_seen: LastSeen | None = None,
    failed_loads: int = 0,
    due: Sequence[Signal] = (),
    clustering: str | None = None,
    has_unreadable: bool = False,
    manifests: int | None = None,
) -> Proposal | Skip:
    """Propose a table for maintenance, or return the reason against it.

    Args:
        expirable: how many snapshots the current expiry plan contains; it respects pins.
        expirable_refs: how many branches and tags it contains.
        last_seen: the record of the last pass.  If that pass found nothing to do at the same snapshot with the same
            policy, the head's summary is no sign of work.
        failed_loads: how many failed loads are past the grace period.  A pass removes their files even if maintenance
            is disabled (rule: clean-failed-loads-from-record), unless the deployment forbids it.
        due: signals that depend only on an interval: the orphan sweep.
        clustering: the recipe by which compaction would cluster files; ``None``: it would not.
        has_unreadable: passes found unreadable files, so first statistics cannot be computed.
        manifests: the number of manifests where the head's summary lacks it.
    """
    uuid, policy = metadata.uuid or "", resolved.policy
    signals = [] if resolved.is_stopped or not gc_enabled(metadata) else list(load_signals(failed_loads))
    if disabled := resolved.why_disabled():
        return _proposal(table, signals, uuid) if signals else Skip(table, disabled)
    if metadata.format_version not in MAINTAINED_FORMAT_VERSIONS:
        return Skip(table, f"format version {metadata.format_version} is not maintained by this version")
    head = metadata.head(policy.branch)
    if head is None and policy.branch != MAIN:
        return Skip(table, f"policy key branch names '{policy.branch}', which is no branch of this table")

    if resolved.runs(Operation.EXPIRE_SNAPSHOTS) and gc_enabled(metadata):
        signals.extend(expiry_signals(metadata, policy, now_ms=now_ms, expirable=expirable))
        signals.extend(ref_signals(expirable_refs))
    seen = _telling(last_seen, resolved, now_ms)
    why_idle = "no current snapshot"
    if head is not None:
        if resolved.runs(Operation.EXPIRE_PARTITIONS):
            looked_ms = None if seen is None else seen.finished_ms
            signals.extend(partition_signals(metadata, policy, now_ms=now_ms, last_looked_ms=looked_ms))
        if _is_known_idle(metadata, head, resolved, seen, now_ms):
            why_idle = "unchanged since the last pass found nothing to do"
        else:
            if resolved.runs(Operation.COMPUTE_STATISTICS) and (metadata.statistics or not has_unreadable):
                signals.extend(statistics_signals(metadata, head, policy))
            of_layout, idle = _layout_signals(metadata, head, resolved, clustering, seen, now_ms, manifests)
            signals.extend(of_layout)
            why_idle = next(iter(idle.values()), "no sign of work")
    signals.extend(due)
    return _proposal(table, signals, uuid) if signals else Skip(table, why_idle)


def _telling(last_seen: LastSeen | None, resolved: ResolvedPolicy, now_ms: int) -> LastSeen | None:
    """The record of the last pass, unless it had other settings or a clock that was ahead
    (rule: future-records-bar-nothing)."""
    if last_seen is None or last_seen.finished_ms > now_ms or last_seen.fingerprint != resolved.fingerprint():
        return None
    return last_seen


def _is_known_idle(
    metadata: TableMetadata, head: Snapshot, resolved: ResolvedPolicy, seen: LastSeen | None, now_ms: int
) -> bool:
    return (
        seen is not None
        and (seen.idle and seen.snapshot_id == head.snapshot_id)
        and not time_has_come(head, resolved.policy, seen.finished_ms, now_ms)
        and {one.table_digest for one in seen.idle_since.values()} <= {table_digest(metadata)}
    )


def idle_operations(
    metadata: TableMetadata, resolved: ResolvedPolicy, last_seen: LastSeen | None, *, clusters: bool, now_ms: int
) -> frozenset[Operation]:
    """The operations that certainly find nothing to do, by the record of the last pass and the commits since.

    ``clusters``: compaction would cluster files.
    """
    head, seen = metadata.head(resolved.policy.branch), _telling(last_seen, resolved, now_ms)
    if head is None or seen is None:
        return frozenset()
    if _is_known_idle(metadata, head, resolved, seen, now_ms):
        return frozenset(operation for operation in Operation if resolved.runs(operation))
    return frozenset(outlook(metadata, head, resolved, seen, clusters=clusters, now_ms=now_ms)[0])


def _layout_signals(
    metadata: TableMetadata,
    head: Snapshot,
    resolved: ResolvedPolicy,
    clustering: str | None,
    seen: LastSeen | None,
    now_ms: int,
    manifests: int | None,
    refused: Mapping[Operation, str] | None = None,
) -> tuple[Sequence[Signal], Mapping[Operation, str]]:
    """Signals that files, deletes or manifests need a rewrite; without any, reasons why a pass should still look.

    Also the idle operations, each with its reason.  ``refused`` are those that cannot work on this table.
    """
    policy, compacts = resolved.policy, resolved.runs(Operation.COMPACT)
    clusters = clustering is not None and compacts
    idle, looks = outlook(
        metadata, head, resolved, seen, clusters=clusters, now_ms=now_ms, refused=refused, manifests=manifests
    )
    signals = list(summary_signals(head, resolved, idle, manifests))
    if compacts and Operation.COMPACT not in idle and policy.rewrite_enabled:
        if clustering is not None:
            idle_at = seen.snapshot_id if seen is not None and seen.idle else None
            signals.extend(clustering_signals(metadata, head, policy, clustering, idle_at))
        elif not rewrites_are_blocked(summary_counters(head), policy):
            signals.extend(large_file_signals(head, resolved))
    found = signals or looks
    if found and compacts and refused is None:
        # Last, because it reads the whole schema.
        why = why_not_rewritten(metadata)
        if why is not None:
            refused = {Operation.COMPACT: why}
            return _layout_signals(metadata, head, resolved, clustering, seen, now_ms, manifests, refused)
    return found, idle


def as_requested(found: Proposal | Skip, resolved: ResolvedPolicy, uuid: str) -> Proposal | Skip:
    """The proposal for a requested table, with the highest priority whatever was found.

    The table is skipped only if the deployment forbids maintenance; the pass reports any other obstacle.
    """
    if resolved.is_stopped:
        return Skip(found.table, f"{REQUESTED}, but {resolved.why_disabled()}")
    if isinstance(found, Proposal):
        return replace(found, reasons=(REQUESTED, *found.reasons), priority=1.0, uuid=uuid)
    return Proposal(found.table, (REQUESTED,), 1.0, uuid)


def _proposal(table: str, signals: Sequence[Signal], uuid: str) -> Proposal:
    return Proposal(table, tuple(signal.reason for signal in signals), priority_of(signals), uuid)
