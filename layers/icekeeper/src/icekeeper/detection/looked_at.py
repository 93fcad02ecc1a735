"""Whether passes look at the files of a table again: one rule for compaction, position deletes and manifests.

A pass records which head it looked at, under the digest of its settings and operations (:mod:`icekeeper.state.store`).
A pass of that digest looks again once others have added as many files as the policy requires, by the summaries of their
snapshots, or once time alone may have brought work.  Snapshots of Icekeeper's own runs do not count, so that two
rhythms over one table do not wake each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.health.examine import summary_counter, summary_counters
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.operation_facts import Operation
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.state.store import LastSeen, SeenTable
from icekeeper.text import counted

OF_FILES = (Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.REWRITE_MANIFESTS)
"""The operations whose work shows in the files of the head."""
_SINCE = "since the last pass"
_DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class LookedAt:
    """What the record of the last pass with the same digest says about the head."""

    is_settled: bool
    """Whether another look would find nothing."""
    why: str
    """Why it would find nothing, or why a pass should look."""
    seen: LastSeen | None = None
    """The record; ``None``: there is no usable record."""


def looked_at(
    metadata: TableMetadata, head: Snapshot, resolved: ResolvedPolicy, seen: SeenTable | None, now_ms: int
) -> LookedAt:
    """Compare the head with what the last pass of the same digest saw, at ``now_ms`` (epoch milliseconds)."""
    last = None if seen is None else seen.under(resolved.digest_over(metadata))
    if last is None or last.finished_ms > now_ms:  # a clock was ahead
        files = summary_counter(summary_counters(head), "total-data-files") or 0
        return LookedAt(False, f"no pass under these settings has looked at the {counted(files, 'data file')}")
    if not last.is_done:
        return LookedAt(False, "the last pass left work", last)
    if time_has_come(head, resolved.policy, last.looked_ms, now_ms):
        return LookedAt(False, f"time alone may have brought work {_SINCE}", last)
    came = _came_since(metadata, head, last)
    if came is None:
        return LookedAt(False, f"the snapshots do not show what was added {_SINCE}", last)
    words = []
    for what, least in _least(resolved).items():
        if came[what] >= least:
            return LookedAt(False, f"{counted(came[what], what)} came {_SINCE}", last)
        if came[what]:
            words.append(f"{counted(came[what], what)} came {_SINCE}, fewer than {least}")
    return LookedAt(True, "; ".join(words) or f"nothing came {_SINCE}", last)


def _least(resolved: ResolvedPolicy) -> dict[str, int]:
    """How much must come before a pass looks again."""
    policy, compacts = resolved.policy, resolved.runs(Operation.COMPACT)
    merges_deletes = resolved.runs(Operation.REWRITE_POSITION_DELETES)
    files, least = 1 if policy.rewrite_all else policy.min_input_files, dict[str, int]()
    if compacts and policy.rewrite_enabled:
        least["data file"] = 1 if policy.rewrite_reason else files
    if merges_deletes or (compacts and policy.apply_deletes):
        least["delete file"] = 1 if merges_deletes and policy.convert_equality_deletes else files
    if resolved.runs(Operation.REWRITE_MANIFESTS):
        least["commit"] = policy.min_manifests_to_rewrite
    return least


def _came_since(metadata: TableMetadata, head: Snapshot, last: LastSeen) -> dict[str, int] | None:
    """What others have added since a pass; ``None``: the snapshots do not show it."""
    came = {"data file": 0, "delete file": 0, "commit": 0}
    base_id: int | None = head.snapshot_id
    for snapshot in metadata.ancestors(head.snapshot_id):
        if snapshot.snapshot_id == last.snapshot_id:
            return came
        counters = summary_counters(snapshot)
        if RUN_ID_KEY not in counters:
            if summary_counter(counters, "total-data-files") is None:
                return None
            came["data file"] += summary_counter(counters, "added-data-files") or 0
            came["delete file"] += summary_counter(counters, "added-delete-files") or 0
            came["commit"] += 1
        base_id = snapshot.parent_id
    return came if base_id == last.snapshot_id else None


def time_has_come(head: Snapshot, policy: Policy, looked_ms: int, now_ms: int) -> bool:
    """Whether time alone may have caused work since a pass at ``looked_ms`` (epoch milliseconds).

    It may if the partition of the newest file is at rest.  Otherwise it may after a day, or once the head is twice as
    old as at the last pass, whichever is later.
    """
    rest_ms = policy.partition_rest_ms
    is_at_rest = bool(rest_ms) and looked_ms < head.timestamp_ms + rest_ms <= now_ms
    return is_at_rest or now_ms - looked_ms >= max(_DAY_MS, looked_ms - head.timestamp_ms)
