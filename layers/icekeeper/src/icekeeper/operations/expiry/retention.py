"""Which snapshots to expire: the retention rules, and nothing else (pure).

Kept are the specification's set (heads of branches and tags, and of every branch its newest ancestors by count and
age), joined with seed 000's (the newest ``max_snapshots_to_keep`` of the table, and every snapshot younger than the
retention).  A branch's own settings may only keep more.  Sources: specification, "Snapshot Retention Policy"; seed
000, "Expire Snapshots"; seed 002, pinned horizons; seed 004, ``snapshot.num-retained.max`` and ``expire.limit``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from icekeeper.metadata.document import MAIN, Ref, Snapshot, TableMetadata
from icekeeper.model import Nothing
from icekeeper.policy import Policy

__all__ = ["NOTHING_TO_EXPIRE", "ExpiryPlan", "plan_expiry"]

NOTHING_TO_EXPIRE = "no snapshots to expire"


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """Snapshots to remove, oldest first, and refs whose own age limit has passed."""

    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]


def plan_expiry(
    metadata: TableMetadata, policy: Policy, *, now_ms: int, pinned: Iterable[int] = ()
) -> ExpiryPlan | Nothing:
    """Decide what expires at ``now_ms``.

    ``pinned`` are snapshot ids that readers or running jobs rely on: nothing at or above the oldest of them expires.
    """
    refs_to_drop = tuple(name for name, ref in metadata.refs.items() if _ref_is_too_old(metadata, ref, now_ms))
    refs = [ref for name, ref in metadata.refs.items() if name not in refs_to_drop]
    newest_first = sorted(metadata.snapshots.values(), key=_recency, reverse=True)
    keep = {ref.snapshot_id for ref in refs}
    for ref in refs:
        if ref.type == "branch":
            keep.update(_kept_by_branch(metadata, ref, policy, now_ms))
    young_limit = len(newest_first) if policy.snapshot_retain_max is None else policy.snapshot_retain_max
    keep.update(s.snapshot_id for s in newest_first[: policy.max_snapshots_to_keep])
    keep.update(s.snapshot_id for s in newest_first[:young_limit] if _is_young(s, now_ms, policy.snapshot_retention_ms))
    horizons = [metadata.snapshots[i] for i in pinned if i in metadata.snapshots]
    if horizons:
        oldest = min(horizons, key=_recency)
        keep.update(s.snapshot_id for s in newest_first if _recency(s) >= _recency(oldest))
    expired = [s.snapshot_id for s in reversed(newest_first) if s.snapshot_id not in keep]
    if policy.snapshot_expire_limit is not None:
        expired = expired[: policy.snapshot_expire_limit]
    if not expired and not refs_to_drop:
        return Nothing(NOTHING_TO_EXPIRE)
    return ExpiryPlan(tuple(expired), refs_to_drop)


def _recency(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.timestamp_ms, snapshot.sequence_number


def _is_young(snapshot: Snapshot, now_ms: int, max_age_ms: int) -> bool:
    return now_ms - snapshot.timestamp_ms <= max_age_ms


def _ref_is_too_old(metadata: TableMetadata, ref: Ref, now_ms: int) -> bool:
    """``main`` never is; a ref to a snapshot that is not there is left for ``verify`` to report."""
    if ref.name == MAIN or ref.max_ref_age_ms is None or ref.snapshot_id not in metadata.snapshots:
        return False
    return not _is_young(metadata.snapshots[ref.snapshot_id], now_ms, ref.max_ref_age_ms)


def _kept_by_branch(metadata: TableMetadata, branch: Ref, policy: Policy, now_ms: int) -> set[int]:
    """Ancestors until one is both beyond the branch's count and beyond its age."""
    least = max(branch.min_snapshots_to_keep or 1, policy.max_snapshots_to_keep)
    kept: set[int] = set()
    for snapshot in metadata.ancestors(branch.snapshot_id):
        # Without a setting of its own the branch follows the table-wide age rule, which a cap may overrule.
        young = branch.max_snapshot_age_ms is not None and _is_young(snapshot, now_ms, branch.max_snapshot_age_ms)
        if len(kept) >= least and not young:
            break
        kept.add(snapshot.snapshot_id)
    return kept
