"""Signals that a table needs work, from its snapshots and the head's summary, without reading a manifest (pure).

A counter that is missing or not a number (:mod:`icekeeper.health.counters`) gives no signal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from icekeeper.health.counters import average_file_bytes, listed_manifests, summary_counter, summary_counters
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.operations.compaction.large_files import large_from
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.values import text_of
from icekeeper.text import counted, size_text

__all__ = [
    "Signal",
    "expiry_signals",
    "large_file_signals",
    "load_signals",
    "ref_signals",
    "rewrites_are_blocked",
    "summary_signals",
]

# A table that has a tenth of its rows deleted needs as much as one at another sign's threshold.
DELETED_ROWS_WEIGHT = 10


@dataclass(frozen=True, slots=True)
class Signal:
    """One reason why a table needs work: in words, and as a weight that is about 1 at the threshold and grows."""

    reason: str
    weight: float


def expiry_signals(metadata: TableMetadata, policy: Policy, *, now_ms: int, expirable: int) -> Iterable[Signal]:
    """The two heuristics of the SeaweedFS worker, silent unless a plan would really expire snapshots.

    ``expirable`` is how many that plan holds.  A table may exceed both thresholds for good without one to expire
    (tags, pins, a count that exceeds the minimum kept within the retention), and must not come back every hour.
    """
    if expirable == 0:
        return
    weight = expirable / policy.max_snapshots_to_keep
    count = len(metadata.snapshots)
    oldest_kept_ms = now_ms - policy.snapshot_retention_ms
    old = sum(time_ms < oldest_kept_ms for time_ms in metadata.snapshot_times_ms)
    reasons = []
    if count > policy.max_snapshots_to_keep:
        reasons.append(f"{count} snapshots exceed max_snapshots_to_keep {policy.max_snapshots_to_keep}")
    if old:
        verb = "is" if old == 1 else "are"
        hours = text_of(policy.snapshot_retention_hours)
        reasons.append(f"{counted(old, 'snapshot')} {verb} older than snapshot_retention_hours {hours}")
    # Two views of one need: only the first carries its weight.
    for index, reason in enumerate(reasons or [f"{counted(expirable, 'snapshot')} can expire"]):
        yield Signal(reason, 0.0 if index else weight)


def ref_signals(expirable_refs: int) -> Iterable[Signal]:
    """A signal when branches or tags are past their ``max-ref-age-ms``."""
    if expirable_refs:
        verb = "is" if expirable_refs == 1 else "are"
        yield Signal(f"{counted(expirable_refs, 'branch or tag', 'branches or tags')} {verb} past max-ref-age-ms", 1.0)


def load_signals(failed_loads: int) -> Iterable[Signal]:
    """A signal when files of failed loads are past the grace period and can be deleted."""
    if failed_loads:
        yield Signal(f"files of {counted(failed_loads, 'failed load')} can be cleaned", 0.1)


def summary_signals(
    head: Snapshot, resolved: ResolvedPolicy, manifest_count: int | None, settled: Collection[Operation] = ()
) -> Iterable[Signal]:
    """Signals for small files, many deletes and many manifests, as the head's summary counts them.

    ``manifest_count`` is the number of entries in the manifest list, where the caller has read it; ``settled`` are
    operations that surely find nothing to do.
    """
    counters = summary_counters(head)
    policy = resolved.policy
    delete_files = summary_counter(counters, "total-delete-files") or 0
    compacts = resolved.runs(Operation.COMPACT) and Operation.COMPACT not in settled
    merges = (
        resolved.runs(Operation.REWRITE_POSITION_DELETES)
        and Operation.REWRITE_POSITION_DELETES not in settled
        and delete_files >= policy.min_input_files
    )
    if compacts and policy.rewrite_enabled and not rewrites_are_blocked(counters, policy):
        yield from _small_files(counters, policy)
    if merges or (compacts and policy.delete_compaction_enabled and policy.apply_deletes):
        yield from _delete_debt(counters, delete_files, policy)
    if resolved.runs(Operation.REWRITE_MANIFESTS) and Operation.REWRITE_MANIFESTS not in settled:
        yield from _manifests(counters, manifest_count, policy)


def large_file_signals(head: Snapshot, resolved: ResolvedPolicy) -> Iterable[Signal]:
    """A signal when files are much larger than a target that somebody has set, on average, so that they may be cut."""
    counters, policy = summary_counters(head), resolved.policy
    count, average = summary_counter(counters, "total-data-files"), average_file_bytes(counters)
    is_asked = resolved.is_set("target_file_size_mb") and policy.min_row_group_copy_bytes is not None
    if not is_asked or not count or average is None or average < large_from(policy):
        return
    target = policy.target_file_size_bytes
    yield Signal(f"{counted(count, 'data file')} of {size_text(average)} on average are far above target_file_size_mb "
                 f"{text_of(policy.target_file_size_mb)}", average / target - 1)  # fmt: skip


def rewrites_are_blocked(counters: Mapping[object, object], policy: Policy) -> bool:
    """Whether there are delete files that compaction must not apply, so that it leaves the table alone."""
    return not policy.apply_deletes and (summary_counter(counters, "total-delete-files") or 0) > 0


def _small_files(counters: Mapping[object, object], policy: Policy) -> Iterable[Signal]:
    count, average = summary_counter(counters, "total-data-files"), average_file_bytes(counters)
    if count is None or average is None or count < policy.min_input_files:
        return
    if average < policy.min_file_size_bytes:
        threshold = policy.min_file_size_bytes
        yield Signal(
            f"{count} data files of {size_text(average)} on average are below {size_text(threshold)}",
            count / policy.min_input_files * (1 - average / threshold),
        )


def _delete_debt(counters: Mapping[object, object], delete_files: int, policy: Policy) -> Iterable[Signal]:
    positions, equalities = (
        summary_counter(counters, f"total-{kind}-deletes") or 0 for kind in ("position", "equality")
    )
    deletes = positions + equalities
    if delete_files == 0 and deletes == 0:
        return
    records = summary_counter(counters, "total-records") or 0
    share = min(1.0, deletes / records) if records else 0.0
    of_records = f", {share * 100:.3g} % of {records} records" if records else ""
    yield Signal(
        f"{counted(delete_files, 'delete file')} with {counted(deletes, 'delete')}{of_records}",
        delete_files / policy.min_input_files + DELETED_ROWS_WEIGHT * share,
    )


def _manifests(counters: Mapping[object, object], manifest_count: int | None, policy: Policy) -> Iterable[Signal]:
    count = listed_manifests(counters) if manifest_count is None else manifest_count
    if count is not None and count >= policy.min_manifests_to_rewrite:
        yield Signal(
            f"{count} manifests reach min_manifests_to_rewrite {policy.min_manifests_to_rewrite}",
            count / policy.min_manifests_to_rewrite,
        )
