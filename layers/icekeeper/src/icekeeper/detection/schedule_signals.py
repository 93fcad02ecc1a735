"""Signals that schedules of a policy are due (pure).

A schedule that is due is reason enough for a pass: what it finds to do, only the pass knows.  It is silent where it
would find the same as the last time: nothing, at this very head, under these settings, in operations that look at
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from icekeeper.detection.moving_scope import scope_has_moved
from icekeeper.detection.signals import Signal
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Operation, ResolvedPolicy
from icekeeper.policy.schedules import interval_text
from icekeeper.policy_parts import PolicyPart
from icekeeper.state.schedules import ScheduleRun

__all__ = ["is_known_idle", "schedule_signals"]

# The others also go by what time it is, or by what lies in the store.
_OF_THE_HEAD = frozenset(
    {
        Operation.COMPACT,
        Operation.REWRITE_POSITION_DELETES,
        Operation.REWRITE_MANIFESTS,
        Operation.COMPUTE_STATISTICS,
    }
)


def is_known_idle(metadata: TableMetadata, part: PolicyPart, last: ScheduleRun | None, now_ms: int) -> bool:
    """Whether a turn of a schedule would find nothing to do, as the last one did."""
    head = metadata.head(part.resolved.policy.branch)
    if last is None or head is None or not last.idle or last.snapshot_id != head.snapshot_id:
        return False
    if last.fingerprint != part.resolved.fingerprint() or not _OF_THE_HEAD.issuperset(part.operations):
        return False
    policy = part.resolved.policy
    # By then every partition is at rest, and its small files are merged.
    at_rest_ms = head.timestamp_ms + policy.partition_rest_ms
    if Operation.COMPACT in part.operations and last.finished_ms < at_rest_ms <= now_ms:
        return False
    return not scope_has_moved(metadata, head, policy, looked_ms=last.finished_ms, now_ms=now_ms)


def schedule_signals(
    resolved: ResolvedPolicy, parts: Iterable[PolicyPart], runs: Mapping[str, ScheduleRun], now_ms: int
) -> Iterable[Signal]:
    """A signal for each schedule that is due; its weight is how many intervals have passed."""
    for part in parts:
        if part.schedule is None:
            continue
        interval_ms = resolved.schedules[part.schedule].interval_ms
        last = runs.get(part.schedule)
        if last is None or not part.due_ms:
            yield Signal(f"schedule {part.schedule} has not run yet", 1.0)
            continue
        every = interval_text(interval_ms)
        yield Signal(f"schedule {part.schedule} is due, every {every}", 1 + (now_ms - part.due_ms) / interval_ms)
