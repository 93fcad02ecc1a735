"""Decide from metadata, policy and recorded passes whether a table needs work, and how urgently.

Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.detection.looked_at import OF_FILES, LookedAt, looked_at
from icekeeper.detection.priority import LOOK_WEIGHT, Signal, priority_of, waited_ms
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
from icekeeper.health.examine import (
    finding_warnings,
    listed_manifests,
    refused_expiry_warning,
    summary_counter,
    summary_counters,
)
from icekeeper.metadata.delete_scope import may_stand_elsewhere
from icekeeper.metadata.document import MAIN, MAINTAINED_FORMAT_VERSIONS, Snapshot, TableMetadata, history_digest
from icekeeper.operations.compaction.plan.where import why_not_rewritten
from icekeeper.operations.expiry.retention import ExpiryPlan, expiry_at
from icekeeper.policy import Operation, Policy, ResolvedPolicy, gc_enabled
from icekeeper.policy.sweep_rhythm import next_proposal_ms, sweep_interval_ms
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Glance, SeenTable
from icekeeper.state.sweeps import SweepKind, SweepRecord


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

    For a table without a recorded sweep, the time of the first sweep is passed to ``plan_sweep``, unless it is now; the
    first sweeps of the ``fleet`` tables that the scan selects are spread over an interval.  ``manifests`` is the number
    of manifests of the head where its summary lacks it; ``None``: unknown.

    Raises:
        StorageError: ``plan_sweep`` failed.
        PolicyError: the policy names an order or columns that the table does not have.
    """
    metadata, policy, sweeps = loaded.metadata, resolved.policy, memory.sweeps
    deletes = not loaded.versioned_by  # else passes refuse to (rule: branches-outside-need-everything)
    plan = _expirable(metadata, policy, memory, now_ms) if deletes else ExpiryPlan((), ())
    grace_ms = policy.orphan_older_than_ms
    found: Proposal | Skip = assess(
        str(loaded.name),
        metadata,
        resolved,
        now_ms=now_ms,
        expirable=len(plan.snapshot_ids),
        expirable_refs=len(plan.refs),
        seen=memory.seen,
        failed_loads=sum(load.can_be_cleaned(now_ms, grace_ms) for load in memory.loads) if deletes else 0,
        due=due_sweep(plan_sweep, identity, metadata, resolved, sweeps, fleet=fleet, now_ms=now_ms) if deletes else (),
        clustering=wanted_clustering(metadata, policy) if resolved.runs(Operation.COMPACT) else None,
        has_unreadable=any(file.schema_digest for file in memory.findings.values()),
        manifests=manifests,
    )
    found = as_requested(found, resolved, identity.uuid) if is_requested else found
    warning = _unreadable(metadata, memory)
    if isinstance(found, Skip):
        return replace(found, warning=warning, catalog=identity.catalog.name)
    seen = () if memory.seen is None else (memory.seen.finished_ms,)
    passes_ms = (*seen, *(sweep.finished_ms for sweep in sweeps.values() if sweep.kind is not SweepKind.FIRST))
    return replace(
        found,
        warning=warning,
        catalog=identity.catalog.name,
        warehouse=identity.catalog.warehouse,
        location=identity.location,
        waited_ms=waited_ms(metadata, passes_ms, now_ms),
    )


def _unreadable(metadata: TableMetadata, memory: Glance) -> str | None:
    refused = refused_expiry_warning(metadata, memory.refused_expiry)
    warnings = (*finding_warnings(memory.findings).values(), refused)
    return "; ".join(filter(None, warnings)) or None


def _expirable(metadata: TableMetadata, policy: Policy, memory: Glance, now_ms: int) -> ExpiryPlan:
    """What expires now; nothing if the last expiry was refused and would be again
    (rule: leave-out-unreadable-files)."""
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


def settled_operations(
    metadata: TableMetadata, resolved: ResolvedPolicy, memory: Glance, now_ms: int
) -> frozenset[Operation]:
    """The operations over the files of the head that find nothing to do at ``now_ms``, by the records of passes."""
    head = metadata.head(resolved.policy.branch)
    is_settled = head is not None and looked_at(metadata, head, resolved, memory.seen, now_ms).is_settled
    return frozenset(OF_FILES if is_settled else ())


def assess(
    table: str,
    metadata: TableMetadata,
    resolved: ResolvedPolicy,
    *,
    now_ms: int,
    expirable: int,
    expirable_refs: int = 0,
    seen: SeenTable | None = None,
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
        seen: what passes saw of the table (:func:`.looked_at`).
        failed_loads: how many failed loads are past the grace period; only the deployment can forbid their removal.
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
        return Skip(table, f"policy key branch names '{policy.branch}', which is not a branch of this table")

    if resolved.runs(Operation.EXPIRE_SNAPSHOTS) and gc_enabled(metadata):
        signals.extend(expiry_signals(metadata, policy, now_ms=now_ms, expirable=expirable))
        signals.extend(ref_signals(expirable_refs))
    why_idle = "no current snapshot"
    if head is not None:
        looked = looked_at(metadata, head, resolved, seen, now_ms)
        last = looked.seen
        if resolved.runs(Operation.EXPIRE_PARTITIONS):
            ended_ms = None if last is None else last.finished_ms
            signals.extend(partition_signals(metadata, policy, now_ms=now_ms, last_looked_ms=ended_ms))
        is_unchanged = looked.is_settled and last is not None and last.snapshot_id == head.snapshot_id
        has_statistics = bool(metadata.statistics) or not has_unreadable
        if not is_unchanged and has_statistics and resolved.runs(Operation.COMPUTE_STATISTICS):
            signals.extend(statistics_signals(metadata, head, policy))
        if looked.is_settled:
            why_idle = looked.why
        else:
            of_layout, why_idle = _layout_signals(metadata, head, resolved, clustering, looked, manifests)
            signals.extend(of_layout)
    signals.extend(due)
    return _proposal(table, signals, uuid) if signals else Skip(table, why_idle)


def _layout_signals(
    metadata: TableMetadata,
    head: Snapshot,
    resolved: ResolvedPolicy,
    clustering: str | None,
    looked: LookedAt,
    manifests: int | None,
    refused: str = "",
) -> tuple[Sequence[Signal], str]:
    """Signals that files, deletes or manifests need a rewrite; without any, the reason why a pass should still look.

    Also why there is no reason.  ``refused``: why compaction cannot work on this table.
    """
    policy, compacts = resolved.policy, resolved.runs(Operation.COMPACT) and not refused
    signals = list(
        summary_signals(
            head,
            resolved,
            {Operation.COMPACT} if refused else (),
            manifests,
            has_partitions=may_stand_elsewhere(metadata),
        )
    )
    if compacts and policy.rewrite_enabled:
        if clustering is not None:
            at = looked.seen.snapshot_id if looked.seen is not None and looked.seen.is_done else None
            signals.extend(clustering_signals(metadata, head, policy, clustering, at))
        elif not rewrites_are_blocked(summary_counters(head), policy):
            signals.extend(large_file_signals(head, resolved))
    clusters = clustering is not None
    if not signals and _may_have_work(head, resolved, looked, manifests, compacts=compacts, clusters=clusters):
        signals.append(Signal(looked.why, LOOK_WEIGHT))
    if signals and compacts and (why := why_not_rewritten(metadata)) is not None:
        # Last, because it reads the whole schema.
        return _layout_signals(metadata, head, resolved, clustering, looked, manifests, why)
    return signals, refused or "no sign of work"


def _may_have_work(
    head: Snapshot, resolved: ResolvedPolicy, looked: LookedAt, manifests: int | None, *, compacts: bool, clusters: bool
) -> bool:
    """Whether a pass can find work that averages hide, by the counters of the head's summary."""
    counters, policy = summary_counters(head), resolved.policy
    rewrites = compacts and policy.rewrite_enabled and not rewrites_are_blocked(counters, policy)
    if looked.seen is None or not looked.seen.is_done:
        # If the average is large enough, at least one of the files is large.  With clustering, two files may overlap.
        files, least = summary_counter(counters, "total-data-files") or 0, 2 if clusters else policy.min_input_files + 1
        return rewrites and files >= least and summary_counter(counters, "total-files-size") is not None
    if rewrites:
        return True
    if resolved.runs(Operation.REWRITE_POSITION_DELETES) and summary_counter(counters, "total-delete-files") != 0:
        return True
    listed = listed_manifests(counters)
    listed = manifests if listed is None else listed
    is_sprawling = listed is None or listed >= policy.min_manifests_to_rewrite
    return resolved.runs(Operation.REWRITE_MANIFESTS) and is_sprawling


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
