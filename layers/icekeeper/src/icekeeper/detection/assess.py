"""Decide from metadata, policy and recorded passes whether a table needs work, and how urgently.

Everything here is pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from icekeeper.detection.look_again import Outlook, outlook, time_has_come
from icekeeper.detection.proposal import REQUESTED, Proposal, Skip
from icekeeper.detection.signals import (
    Signal,
    clustering_signals,
    expiry_signals,
    large_file_signals,
    load_signals,
    partition_signals,
    ref_signals,
    rewrites_are_blocked,
    statistics_signals,
    summary_signals,
)
from icekeeper.health.examine import summary_counters
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import MAIN, MAINTAINED_FORMAT_VERSIONS, Snapshot, TableMetadata, table_digest
from icekeeper.operations.compaction.where import why_not_rewritten
from icekeeper.policy import Operation, ResolvedPolicy, gc_enabled
from icekeeper.state.store import LastSeen

_PRIORITY_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFindings:
    """What is known of a table besides its metadata and policy."""

    now_ms: int
    """Epoch milliseconds."""
    expirable: int
    """How many snapshots the current expiry plan contains; it respects pins."""
    expirable_refs: int = 0
    """How many branches and tags the plan contains."""
    last_seen: LastSeen | None = None
    """The record of the last pass.  If that pass found nothing to do at the same snapshot with the same policy, the
    head's summary is no sign of work."""
    manifest_count: int | None = None
    """The number of entries of the head's manifest list, if it was read."""
    failed_loads: int = 0
    """How many failed loads are past the grace period.  A pass removes their files even if maintenance is disabled
    (rule: clean-failed-loads-from-record), unless the deployment forbids it."""
    due: tuple[Signal, ...] = ()
    """Signals that depend only on an interval: the orphan sweep."""
    clustering: str | None = None
    """The recipe by which compaction would cluster files; ``None``: it would not."""
    has_unreadable: bool = False
    """Passes found unreadable files, so first statistics cannot be computed."""


def assess(table: str, metadata: TableMetadata, resolved: ResolvedPolicy, found: TableFindings) -> Proposal | Skip:
    """Propose a table for maintenance, or return the reason against it."""
    now_ms, last_seen = found.now_ms, found.last_seen
    uuid = metadata.uuid or ""
    cleaning = [] if resolved.is_stopped or not gc_enabled(metadata) else list(load_signals(found.failed_loads))
    if disabled := resolved.why_disabled():
        return _proposal(table, cleaning, uuid) if cleaning else Skip(table, disabled)
    if metadata.format_version not in MAINTAINED_FORMAT_VERSIONS:
        return Skip(table, f"format version {metadata.format_version} is not maintained by this version")
    branch = resolved.policy.branch
    head = metadata.head(branch)
    if head is None and branch != MAIN:
        return Skip(table, f"policy key branch names '{branch}', which is no branch of this table")

    signals: list[Signal] = cleaning
    if resolved.runs(Operation.EXPIRE_SNAPSHOTS) and gc_enabled(metadata):
        signals.extend(expiry_signals(metadata, resolved.policy, now_ms=now_ms, expirable=found.expirable))
        signals.extend(ref_signals(found.expirable_refs))
    seen = _telling(last_seen, resolved, now_ms)
    known_idle = head is not None and _is_known_idle(metadata, head, resolved, seen, now_ms)
    ahead = Outlook()
    if head is not None:
        if resolved.runs(Operation.EXPIRE_PARTITIONS):
            looked_ms = None if seen is None else seen.finished_ms
            signals.extend(partition_signals(metadata, resolved.policy, now_ms=now_ms, last_looked_ms=looked_ms))
        if not known_idle:
            if resolved.runs(Operation.COMPUTE_STATISTICS) and (metadata.statistics or not found.has_unreadable):
                signals.extend(statistics_signals(metadata, head, resolved.policy))
            clusters = found.clustering is not None and resolved.runs(Operation.COMPACT)
            look = partial(outlook, metadata, head, resolved, seen, clusters=clusters, now_ms=now_ms)
            ahead = look()
            of_layout = _layout_signals(metadata, head, resolved, found, ahead, seen)
            # Last, because it reads the whole schema.
            why = why_not_rewritten(metadata) if of_layout and resolved.runs(Operation.COMPACT) else None
            if why is not None:
                ahead = look(refused={Operation.COMPACT: why})
                of_layout = _layout_signals(metadata, head, resolved, found, ahead, seen)
            signals.extend(of_layout)
    signals.extend(found.due)
    if signals:
        return _proposal(table, signals, uuid)
    if head is None:
        return Skip(table, "no current snapshot")
    if known_idle:
        return Skip(table, "unchanged since the last pass found nothing to do")
    return Skip(table, next(iter(ahead.idle.values()), "no sign of work"))


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
    return frozenset(outlook(metadata, head, resolved, seen, clusters=clusters, now_ms=now_ms).idle)


def _layout_signals(
    metadata: TableMetadata,
    head: Snapshot,
    resolved: ResolvedPolicy,
    found: TableFindings,
    ahead: Outlook,
    seen: LastSeen | None,
) -> Sequence[Signal]:
    """Signals that files, deletes or manifests need a rewrite; without any, reasons why a pass should still look."""
    signals = list(summary_signals(head, resolved, found.manifest_count, ahead.idle))
    may_compact = resolved.runs(Operation.COMPACT) and Operation.COMPACT not in ahead.idle
    if found.clustering is not None and may_compact and resolved.policy.rewrite_enabled:
        idle_at = seen.snapshot_id if seen is not None and seen.idle else None
        signals.extend(clustering_signals(metadata, head, resolved.policy, found.clustering, idle_at))
    is_blocked = rewrites_are_blocked(summary_counters(head), resolved.policy)
    if found.clustering is None and may_compact and resolved.policy.rewrite_enabled and not is_blocked:
        signals.extend(large_file_signals(head, resolved))
    return signals or ahead.looks


def as_requested(found: Proposal | Skip, resolved: ResolvedPolicy, uuid: str) -> Proposal | Skip:
    """The proposal for a requested table, with the highest priority whatever was found.

    The table is skipped only if the deployment forbids maintenance; the pass reports any other obstacle.
    """
    if resolved.is_stopped:
        return Skip(found.table, f"{REQUESTED}, but {resolved.why_disabled()}")
    if isinstance(found, Proposal):
        return replace(found, reasons=(REQUESTED, *found.reasons), priority=1.0, uuid=uuid, only_schedules=False)
    return Proposal(found.table, (REQUESTED,), 1.0, uuid)


def with_schedules(
    table: str, found: Proposal | Skip, signals: Sequence[Signal], schedules: Sequence[str], uuid: str
) -> Proposal | Skip:
    """Combine the finding for operations that no schedule names with the signals of due ``schedules``."""
    if not signals:
        return found
    others = found if isinstance(found, Proposal) else None
    due = _proposal(table, signals, uuid)
    left = (1 - due.priority) * (1 if others is None else 1 - others.priority)
    return replace(
        due,
        reasons=(*(() if others is None else others.reasons), *due.reasons),
        priority=round(1 - left, _PRIORITY_DIGITS),
        schedules=tuple(schedules),
        only_schedules=others is None,
    )


def _proposal(table: str, signals: Sequence[Signal], uuid: str) -> Proposal:
    return Proposal(table, tuple(signal.reason for signal in signals), _priority(signals), uuid)


def _priority(signals: Iterable[Signal]) -> float:
    """``1 − 1 / ∏(1 + weight)``: 0 without signals, towards 1 with growing weights; a new signal never lowers it."""
    return round(1 - 1 / math.prod(1 + signal.weight for signal in signals), _PRIORITY_DIGITS)


# If a scan may not propose all tables, it chooses by urgency.  By priority alone, every scan would choose the same
# hundred tables if their passes cannot help them.  So urgency grows with the time since the last pass: after a day, a
# table precedes all that had a pass just now.

_DAY_MS = 24 * HOUR_MS
# Beyond this, urgency does not grow, and priority decides again, as in a fleet that is scanned for the first time.
_LONGEST_DAYS = 7


def waited_ms(metadata: TableMetadata, passes_ms: Iterable[int], now_ms: int) -> int:
    """Milliseconds since the last end of a pass in ``passes_ms``; without any, since the oldest snapshot."""
    oldest_ms = min(metadata.snapshot_times_ms, default=now_ms)
    return max(0, now_ms - max(passes_ms, default=oldest_ms))


def urgency(priority: float, waited_ms: int) -> float:
    """The priority of a table (0 to 1) plus 1 for each day that it waited; higher is chosen first."""
    return priority + min(waited_ms / _DAY_MS, _LONGEST_DAYS)
