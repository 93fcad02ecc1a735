"""Does one table need work, and why?  Pure: table metadata, policy and memory in, a proposal or a reason out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.detection.signals import Signal, expiry_signals, load_signals, ref_signals, summary_signals
from icekeeper.metadata.document import MAIN, TableMetadata
from icekeeper.policy import Operation, ResolvedPolicy, gc_enabled
from icekeeper.state.store import LastSeen

__all__ = ["MAINTAINED_FORMAT_VERSIONS", "assess"]

MAINTAINED_FORMAT_VERSIONS = frozenset({1, 2, 3})
_PRIORITY_DIGITS = 4


def assess(
    table: str,
    metadata: TableMetadata,
    resolved: ResolvedPolicy,
    *,
    now_ms: int,
    expirable: int,
    expirable_refs: int = 0,
    last_seen: LastSeen | None = None,
    manifest_count: int | None = None,
    failed_loads: int = 0,
) -> Proposal | Skip:
    """Propose a table for maintenance, or say why not.

    ``now_ms`` is epoch milliseconds.  ``expirable`` and ``expirable_refs`` are the numbers of snapshots and refs that
    the expiry plan of this moment holds, pins considered.  ``last_seen`` silences what the head's summary hints at,
    once a pass under this very policy found nothing to do at this very snapshot.  ``manifest_count`` counts the
    entries of the head's manifest list.  ``failed_loads`` are past the grace period; a pass cleans up after them also
    where maintenance is disabled (seed 002), unless the deployment forbids it.
    """
    cleaning = [] if resolved.is_stopped or not gc_enabled(metadata) else list(load_signals(failed_loads))
    if disabled := resolved.why_disabled():
        return _proposal(table, metadata, cleaning) if cleaning else Skip(table, disabled)
    if metadata.format_version not in MAINTAINED_FORMAT_VERSIONS:
        return Skip(table, f"format version {metadata.format_version} is not maintained by this version")
    branch = resolved.policy.branch
    head = metadata.head(branch)
    if head is None and branch != MAIN:
        return Skip(table, f"policy key branch names '{branch}', which is no branch of this table")
    signals: list[Signal] = cleaning
    if resolved.runs(Operation.EXPIRE_SNAPSHOTS) and gc_enabled(metadata):
        signals.extend(expiry_signals(metadata, resolved.policy, now_ms=now_ms, expirable=expirable))
        signals.extend(ref_signals(expirable_refs))
    known_idle = head is not None and _was_idle(last_seen, head.snapshot_id, resolved)
    if head is not None and not known_idle:
        signals.extend(summary_signals(head, resolved, manifest_count))
    if signals:
        return _proposal(table, metadata, signals)
    if head is None:
        return Skip(table, "no current snapshot")
    return Skip(table, "unchanged since the last pass found nothing to do" if known_idle else "no sign of work")


def _proposal(table: str, metadata: TableMetadata, signals: Sequence[Signal]) -> Proposal:
    return Proposal(table, tuple(signal.reason for signal in signals), _priority(signals), metadata.uuid or "")


def _was_idle(last_seen: LastSeen | None, snapshot_id: int, resolved: ResolvedPolicy) -> bool:
    return (
        last_seen is not None
        and last_seen.idle
        and last_seen.snapshot_id == snapshot_id
        and last_seen.fingerprint == resolved.fingerprint()
    )


def _priority(signals: Iterable[Signal]) -> float:
    """``1 − 1 / ∏(1 + weight)``: 0 without need, towards 1 as any need grows, and never less for one need more."""
    return round(1 - 1 / math.prod(1 + signal.weight for signal in signals), _PRIORITY_DIGITS)
