"""Which snapshots to expire: the retention rules, and the snapshots that streaming writers need.  Reads no files."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, repeat, takewhile

from icekeeper.errors import OperationRefused, PolicyError
from icekeeper.metadata.document import MAIN, Ref, Snapshot, TableMetadata
from icekeeper.metadata.writer_marks import marks_of
from icekeeper.policy import Policy

MOST_STEPS = 500_000
"""The most branches times snapshots for which each branch's own history is walked, which takes about a second.

Beyond this number, each snapshot is visited once for all branches, and more snapshots are kept: each branch keeps as
many and as old snapshots as any other, and every recent mark of a streaming writer counts, not only the newest mark on
its branch.
"""

# Which snapshots streaming writers need to find their last commit (rule: carry-streaming-marks).
#
# A writer walks from the head, from parent to parent, to the newest snapshot that it marked, and gives up at a missing
# snapshot.  So every snapshot on the way must be kept, not only the marked snapshot.  A writer that has not committed
# for a long time counts as dead, so that it cannot stop expiry for ever.


def writer_chains(metadata: TableMetadata, refs: Iterable[Ref], policy: Policy, now_ms: int) -> Mapping[int, str]:
    """Snapshot id → a writer that needs it, for all snapshots between a branch's head and a writer's newest mark.

    Only writers that committed within ``writer_mark_retention_hours`` count.
    """
    chains: dict[int, str] = {}
    if policy.writer_mark_retention_ms == 0:
        return chains
    oldest_ms = now_ms - policy.writer_mark_retention_ms
    heads = dict.fromkeys(ref.snapshot_id for ref in refs if ref.type == "branch")
    if len(heads) * len(metadata.snapshots) > MOST_STEPS:
        return _chains_of_all(metadata, heads, oldest_ms)
    for head in heads:
        for snapshot_id, writer in _chains_of(metadata, head, oldest_ms).items():
            chains.setdefault(snapshot_id, writer)
    return chains


def refuse_broken_chains(metadata: TableMetadata, policy: Policy, now_ms: int) -> None:
    """Refuse when the policy names a snapshot that a writer needs to find its last commit.

    Raises:
        OperationRefused: without such a snapshot, a writer would not find its last commit.
    """
    key, named = policy.named_snapshots
    if not named:
        return
    chains = writer_chains(metadata, metadata.refs.values(), policy, now_ms)
    for snapshot_id in named:
        if snapshot_id in chains:
            raise OperationRefused(
                f"{chains[snapshot_id]} needs snapshot {snapshot_id} of {key} to find its last commit and may write "
                "its data again without it; nothing expired: take the snapshot out, or, if that writer no longer "
                "exists, set writer_mark_retention_hours=0"
            )


def _chains_of(metadata: TableMetadata, head: int, oldest_ms: int) -> dict[int, str]:
    chains: dict[int, str] = {}
    seen: set[str] = set()
    way: list[int] = []
    for snapshot in metadata.ancestors(head):
        way.append(snapshot.snapshot_id)
        for writer, committed_ms in marks_of(snapshot).items():
            # Only the newest mark of a writer counts: older marks are never reached.
            if writer not in seen and committed_ms >= oldest_ms:
                chains.update(dict.fromkeys(way, writer))
                way = []
            seen.add(writer)
    return chains


def _chains_of_all(metadata: TableMetadata, heads: Iterable[int], oldest_ms: int) -> dict[int, str]:
    """The snapshots between any head and any recent mark of a writer; each snapshot is visited once."""
    below: dict[int | None, str | None] = {}
    for head in heads:
        way = list(takewhile(lambda ancestor: ancestor.snapshot_id not in below, metadata.ancestors(head)))
        for snapshot in reversed(way):
            marks = (writer for writer, committed_ms in marks_of(snapshot).items() if committed_ms >= oldest_ms)
            below[snapshot.snapshot_id] = next(marks, below.get(snapshot.parent_id))
    return {i: writer for i, writer in below.items() if i is not None and writer is not None}


# The retention rules.  A snapshot is kept if any of these keeps it (rule: retention-keeps-if-anything-does):
#
# * the specification: heads of branches and tags, and the newest ancestors of each branch by count and age;
# * SeaweedFS's worker: the table's newest ``max_snapshots_to_keep``, and every snapshot younger than the retention;
# * the snapshots that streaming writers need to find their last commit, which no cap removes.
#
# A branch's own settings can only keep more snapshots.  Sources: specification, "Snapshot Retention Policy"; pinned
# horizons as in Modak (rule: pin-is-a-horizon);
# ``snapshot.num-retained.max`` and ``expire.limit`` of Apache Paimon.

NOTHING_TO_EXPIRE = "no snapshots to expire"
# Iceberg's table property; its default is the largest long, so that refs without a setting of their own never age.
MAX_REF_AGE = "history.expire.max-ref-age-ms"


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """Snapshots to remove, oldest first, and refs whose own age limit has passed."""

    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    kept_for_writers: int = field(default=0, compare=False)
    """The number of snapshots that are kept only because a streaming writer needs them to find its last commit."""

    def __bool__(self) -> bool:
        return bool(self.snapshot_ids or self.refs)


def expiry_at(metadata: TableMetadata, policy: Policy, *, now_ms: int, pinned: Iterable[int] = ()) -> ExpiryPlan:
    """The plan at ``now_ms`` (epoch milliseconds), which may be empty.

    ``pinned`` are snapshot ids that readers or running jobs rely on: nothing at or above the oldest of them expires.
    If the policy names snapshots (``snapshot_expire_ids``, ``snapshot_give_up_ids``), only these expire, regardless of
    the retention.  Protected and missing snapshots are skipped here; :func:`check_retention`, :func:`refuse_protected`
    and :func:`refuse_broken_chains` refuse them.

    Raises:
        PolicyError: the table's ``history.expire.max-ref-age-ms`` is malformed.
    """
    if policy.named_snapshots[1]:
        return _plan_named(metadata, policy, now_ms, pinned)
    refs_to_drop = aged_refs(metadata, now_ms)
    gone = set(refs_to_drop)
    refs = [ref for name, ref in metadata.refs.items() if name not in gone]
    keep = {ref.snapshot_id for ref in refs} | _kept_by_branches(metadata, refs, policy, now_ms)
    young_ms = now_ms - policy.snapshot_retention_ms
    # A child may have an earlier timestamp than its parent, so the newest snapshots by either order are kept.
    for newest_last in (metadata.in_commit_order, metadata.by_recency):
        newest_first = newest_last[::-1]
        keep.update([s.snapshot_id for s in newest_first[: policy.max_snapshots_to_keep]])
        among_newest = newest_first[: policy.snapshot_retain_max]
        keep.update([s.snapshot_id for s in among_newest if s.timestamp_ms >= young_ms])
    keep |= metadata.behind(pinned)
    for_writers: set[int] = set()
    if not keep.issuperset(metadata.snapshots):
        for_writers = writer_chains(metadata, refs, policy, now_ms).keys() - keep
        keep |= for_writers
    expired = [s.snapshot_id for s in metadata.in_commit_order if s.snapshot_id not in keep]
    if policy.snapshot_expire_limit is not None:
        expired = expired[: policy.snapshot_expire_limit]
    return ExpiryPlan(tuple(expired), refs_to_drop, len(for_writers))


def only_reviewed(
    metadata: TableMetadata, plan: ExpiryPlan, snapshot_ids: Collection[int], refs: Collection[str]
) -> ExpiryPlan:
    """The part of a plan with only these snapshots and refs; snapshots that another ref of the plan needs stay with it
    (rule: apply-only-what-was-reviewed)."""
    staying = [metadata.refs[name].snapshot_id for name in plan.refs if name not in refs]
    needed = {ancestor.snapshot_id for head in staying for ancestor in metadata.ancestors(head)}
    return replace(
        plan,
        snapshot_ids=tuple(i for i in plan.snapshot_ids if i in snapshot_ids and i not in needed),
        refs=tuple(name for name in plan.refs if name in refs),
    )


def oldest_readable_ms(metadata: TableMetadata, branch: str, plan: ExpiryPlan) -> int | None:
    """The oldest time (epoch milliseconds) since which a branch can be read without a gap once the plan is done.

    ``None``: the branch has no snapshot.
    """
    head, gone = metadata.head(branch), set(plan.snapshot_ids)
    chain = () if head is None else metadata.ancestors(head.snapshot_id)
    oldest_ms = None
    for snapshot in takewhile(lambda ancestor: ancestor.snapshot_id not in gone, chain):
        oldest_ms = snapshot.timestamp_ms
    return oldest_ms


def aged_refs(metadata: TableMetadata, now_ms: int) -> tuple[str, ...]:
    """The names of the branches and tags whose own age limit, or the table's, has passed at ``now_ms``.

    Raises:
        PolicyError: the table's ``history.expire.max-ref-age-ms`` is malformed.
    """
    default_age_ms = _default_ref_age_ms(metadata)
    return tuple(name for name, ref in metadata.refs.items() if _ref_is_too_old(metadata, ref, now_ms, default_age_ms))


def check_retention(metadata: TableMetadata, policy: Policy) -> None:
    """Check, before anything runs, that the policy's named snapshots and the table's properties fit the table.

    Raises:
        PolicyError: a named snapshot is not in the table, or is the head of a ref; or a table property is malformed.
    """
    _default_ref_age_ms(metadata)
    heads = {ref.snapshot_id: ref for ref in metadata.refs.values()}
    key, named = policy.named_snapshots
    for snapshot_id in named:
        if snapshot_id not in metadata.snapshots:
            raise PolicyError(
                f"policy key {key} names {snapshot_id}, which is not a snapshot of this table or has already expired: "
                "take it out"
            )
        if snapshot_id in heads:
            raise PolicyError(
                f"policy key {key} names {snapshot_id}, the head of {_named(heads[snapshot_id])}, which cannot expire: "
                "take it out, or move the ref first"
            )


def refuse_protected(metadata: TableMetadata, policy: Policy, pinned: Iterable[int]) -> None:
    """Refuse if the policy names a snapshot that must be kept; snapshots that have already expired are skipped.

    Raises:
        OperationRefused: a named snapshot is at or above the oldest pin, or has become the head of a ref since the pass
            began.
    """
    behind, heads = metadata.behind(pinned), {ref.snapshot_id: ref for ref in metadata.refs.values()}
    key, named = policy.named_snapshots
    for snapshot_id in named:
        if snapshot_id in heads:
            raise OperationRefused(
                f"snapshot {snapshot_id} of {key} has become the head of {_named(heads[snapshot_id])}; nothing expired"
            )
        if snapshot_id in behind:
            raise OperationRefused(
                f"snapshot {snapshot_id} of {key} is pinned or newer than a pinned snapshot; nothing expired"
            )


def _plan_named(metadata: TableMetadata, policy: Policy, now_ms: int, pinned: Iterable[int]) -> ExpiryPlan:
    refs = metadata.refs.values()
    keep = metadata.behind(pinned) | {ref.snapshot_id for ref in refs}
    keep |= writer_chains(metadata, refs, policy, now_ms).keys()
    wanted = set(policy.named_snapshots[1]) - keep
    return ExpiryPlan(tuple(s.snapshot_id for s in metadata.in_commit_order if s.snapshot_id in wanted), ())


def _named(ref: Ref) -> str:
    return f"{ref.type} '{ref.name}'"


def _default_ref_age_ms(metadata: TableMetadata) -> int | None:
    """How old a ref without a setting of its own may become; ``None``: unlimited."""
    if MAX_REF_AGE not in metadata.properties:
        return None
    age_ms = metadata.property_int(MAX_REF_AGE, 0)
    if age_ms < 1:
        raise PolicyError(f"table property {MAX_REF_AGE} is '{age_ms}'; it must be a whole number of at least 1")
    return age_ms


def _is_young(snapshot: Snapshot, now_ms: int, max_age_ms: float) -> bool:
    return now_ms - snapshot.timestamp_ms <= max_age_ms


def _ref_is_too_old(metadata: TableMetadata, ref: Ref, now_ms: int, default_age_ms: int | None) -> bool:
    """Whether a ref is past its age limit; ``main`` never is.  A ref without a snapshot is not; ``verify`` reports
    it."""
    age_ms = default_age_ms if ref.max_ref_age_ms is None else ref.max_ref_age_ms
    if ref.name == MAIN or age_ms is None or ref.snapshot_id not in metadata.snapshots:
        return False
    return not _is_young(metadata.snapshots[ref.snapshot_id], now_ms, age_ms)


def _kept_by_branches(metadata: TableMetadata, refs: Iterable[Ref], policy: Policy, now_ms: int) -> set[int]:
    """The newest ancestors of each branch, up to the first snapshot beyond both the branch's count and its age."""
    # Without its own setting the branch follows the table's age rule, which a cap may override.
    walks = {
        (
            -math.inf if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms,
            max(ref.min_snapshots_to_keep or 1, policy.max_snapshots_to_keep),
            ref.snapshot_id,
        )
        for ref in refs
        if ref.type == "branch"
    }
    if len(walks) * len(metadata.snapshots) > MOST_STEPS:
        ages_ms, counts, heads = zip(*walks, strict=True)
        walks = {(max(ages_ms), max(counts), head) for head in heads}
    kept: dict[int, int] = {}
    """Snapshot id → how many snapshots were still to be counted from there on."""
    for age_ms, count, head in sorted(walks, reverse=True):
        for left, snapshot in zip(chain(range(count, 0, -1), repeat(0)), metadata.ancestors(head), strict=False):
            if left == 0 and not _is_young(snapshot, now_ms, age_ms):
                break
            if kept.get(snapshot.snapshot_id, -1) >= left:  # a branch of at least this age limit kept the rest
                break
            kept[snapshot.snapshot_id] = left
    return set(kept)
