"""Signals that a table needs work: snapshots, layout, statistics, a due orphan sweep.

They come from the snapshots and the head's summary, without reading a manifest.  A counter that is missing or not a
number gives no signal (:mod:`icekeeper.health.examine`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.detection.priority import (
    EXPIRED_REFS_WEIGHT,
    FAILED_LOADS_WEIGHT,
    OLD_PARTITIONS_WEIGHT,
    SWEEP_WEIGHT,
    Signal,
    clustering_weight,
    delete_debt_weight,
    expiry_weight,
    large_files_weight,
    manifests_weight,
    small_files_weight,
    statistics_weight,
)
from icekeeper.errors import TableUnsupported
from icekeeper.health.examine import average_file_bytes, listed_manifests, summary_counter, summary_counters
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.operations.compaction.plan.large_files import large_from
from icekeeper.operations.compaction.terms.recipe import choose_recipe
from icekeeper.operations.statistics.plan_statistics import statistics_columns
from icekeeper.operations.statistics.staleness import MIN_CHANGED_SHARE, staleness
from icekeeper.policy import Operation, Policy, ResolvedPolicy, gc_enabled
from icekeeper.policy.sweep_rhythm import SweepMemory, first_sweep_ms, known_age_ms, next_proposal_ms, sweep_interval_ms
from icekeeper.policy.values import text_of
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sweeps import SweepKind, SweepRecord
from icekeeper.text import age_text, counted, size_text


def expiry_signals(metadata: TableMetadata, policy: Policy, *, now_ms: int, expirable: int) -> Iterable[Signal]:
    """The two heuristics of the SeaweedFS worker, if the plan expires snapshots; ``expirable`` is their number.

    A table may exceed both thresholds permanently without any snapshot to expire, because of tags, pins, or many young
    snapshots.  It must not be proposed every hour.
    """
    if expirable == 0:
        return
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
    # Both reasons describe the same need, so only the first has its weight.
    for index, reason in enumerate(reasons or [f"{counted(expirable, 'snapshot')} can expire"]):
        yield Signal(reason, 0.0 if index else expiry_weight(expirable, policy))


def ref_signals(expirable_refs: int) -> Iterable[Signal]:
    """A signal if branches or tags are past their ``max-ref-age-ms``."""
    if expirable_refs:
        verb = "is" if expirable_refs == 1 else "are"
        reason = f"{counted(expirable_refs, 'branch or tag', 'branches or tags')} {verb} past max-ref-age-ms"
        yield Signal(reason, EXPIRED_REFS_WEIGHT)


def load_signals(failed_loads: int) -> Iterable[Signal]:
    """A signal if files of failed loads are past the grace period and can be deleted."""
    if failed_loads:
        yield Signal(f"files of {counted(failed_loads, 'failed load')} can be cleaned", FAILED_LOADS_WEIGHT)


def summary_signals(
    head: Snapshot,
    resolved: ResolvedPolicy,
    settled: Collection[Operation],
    manifests: int | None = None,
    *,
    has_partitions: bool = False,
) -> Iterable[Signal]:
    """Signals for small files, many deletes and many manifests, from the head's summary.

    ``settled`` are operations that certainly find nothing to do.  ``manifests`` is the number of manifests where the
    summary lacks it; ``None``: unknown.
    """
    counters = summary_counters(head)
    policy = resolved.policy
    delete_files = summary_counter(counters, "total-delete-files") or 0
    compacts = resolved.runs(Operation.COMPACT) and Operation.COMPACT not in settled
    converts = policy.convert_equality_deletes and summary_counter(counters, "total-equality-deletes") != 0
    merges = (
        resolved.runs(Operation.REWRITE_POSITION_DELETES)
        and Operation.REWRITE_POSITION_DELETES not in settled
        and (delete_files >= policy.min_input_files or converts)
    )
    if compacts and policy.rewrite_enabled and not rewrites_are_blocked(counters, policy):
        yield from _small_files(counters, policy, has_partitions=has_partitions)
    if merges or (compacts and policy.delete_compaction_enabled and policy.apply_deletes):
        yield from _delete_debt(counters, delete_files, policy)
    if resolved.runs(Operation.REWRITE_MANIFESTS) and Operation.REWRITE_MANIFESTS not in settled:
        count = listed_manifests(counters)
        count = manifests if count is None else count
        if count is not None and count >= policy.min_manifests_to_rewrite:
            reason = f"{count} manifests reach min_manifests_to_rewrite {policy.min_manifests_to_rewrite}"
            yield Signal(reason, manifests_weight(count, policy))


def large_file_signals(head: Snapshot, resolved: ResolvedPolicy) -> Iterable[Signal]:
    """A signal if files are on average much larger than an explicitly set target, so that they may be split."""
    counters, policy = summary_counters(head), resolved.policy
    count, average = summary_counter(counters, "total-data-files"), average_file_bytes(counters)
    is_asked = resolved.is_set("target_file_size_mb") and policy.min_row_group_copy_bytes is not None
    if not is_asked or not count or average is None or average < large_from(policy):
        return
    yield Signal(f"{counted(count, 'data file')} of {size_text(average)} on average are far above target_file_size_mb "
                 f"{text_of(policy.target_file_size_mb)}", large_files_weight(average, policy))  # fmt: skip


def rewrites_are_blocked(counters: Mapping[object, object], policy: Policy) -> bool:
    """Whether there are delete files that compaction may not apply, so that it skips the table."""
    return not policy.apply_deletes and (summary_counter(counters, "total-delete-files") or 0) > 0


def _small_files(counters: Mapping[object, object], policy: Policy, *, has_partitions: bool) -> Iterable[Signal]:
    count, average = summary_counter(counters, "total-data-files"), average_file_bytes(counters)
    least, threshold = policy.min_input_files, policy.min_file_size_bytes
    if count is None or average is None or count < least or average >= threshold:
        return
    reason = f"{count} data files of {size_text(average)} on average are below {size_text(threshold)}"
    if has_partitions or count - (summary_counter(counters, "total-files-size") or 0) // threshold < least:
        # Only manifests show in which partitions the small files are.
        reason += f"; a partition may have {least} to merge"
    yield Signal(reason, small_files_weight(count, average, policy))


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
        delete_debt_weight(delete_files, share, policy),
    )


# Only manifests show which files are not clustered and which partitions are past their retention, so these two signals
# are guesses.  After a pass with the same policy, they are silent until enough was added, or another partition may have
# ended.


def wanted_clustering(metadata: TableMetadata, policy: Policy) -> str | None:
    """The recipe that compaction would cluster the table by, as in snapshot summaries; ``None``: it would not cluster.

    Raises:
        PolicyError: the policy names an order or columns that the table does not have.
    """
    try:
        recipe = choose_recipe(metadata, policy)
    except TableUnsupported:  # compaction reports it, if there is another reason for a pass
        return None
    return None if recipe is None else recipe.text


def clustering_signals(
    metadata: TableMetadata, head: Snapshot, policy: Policy, recipe: str, seen_idle_at: int | None
) -> Iterable[Signal]:
    """A signal if enough files were added since the last snapshot of a rewrite by this recipe.

    ``seen_idle_at`` is a snapshot at which a pass with this policy found nothing to do.  Files of other rewrites count
    like new files.
    """
    files = size = 0
    for snapshot in metadata.ancestors(head.snapshot_id):
        counters = summary_counters(snapshot)
        if snapshot.snapshot_id == seen_idle_at or counters.get(RECIPE_KEY) == recipe:
            break
        files += summary_counter(counters, "added-data-files") or 0
        size += summary_counter(counters, "added-files-size") or 0
    total = summary_counter(summary_counters(head), "total-data-files")
    if total is not None:
        files = min(files, total)
    # The condition of compaction's clustering plan: enough files, or enough bytes for one output.
    if files >= policy.min_input_files or (files and size >= policy.target_file_size_bytes):
        reason = f"{counted(files, 'data file')} came since files were last clustered"
        yield Signal(reason, clustering_weight(files, total, policy))


def partition_signals(
    metadata: TableMetadata, policy: Policy, *, now_ms: int, last_looked_ms: int | None
) -> Iterable[Signal]:
    """A signal if partitions may have passed their retention since a pass with this policy (``last_looked_ms``).

    With an ``hour`` transform that is possible every hour, otherwise every day.
    """
    if policy.partition_retention_hours is None:
        return
    transforms = {str(field.get("transform")) for field in metadata.specs[metadata.default_spec_id]["fields"]}
    if transforms <= {"void"}:
        return
    period_ms = HOUR_MS if "hour" in transforms else 24 * HOUR_MS
    if last_looked_ms is None or now_ms - last_looked_ms >= period_ms:
        hours = text_of(policy.partition_retention_hours)
        yield Signal(f"partitions may be past partition_retention_hours {hours}", OLD_PARTITIONS_WEIGHT)


def statistics_signals(metadata: TableMetadata, head: Snapshot, policy: Policy) -> Iterable[Signal]:
    """A signal if statistics are missing, or many rows changed since they were computed.

    Raises:
        PolicyError: ``statistics_columns`` names a column that the table does not have.
    """
    columns = statistics_columns(metadata, policy.statistics_columns)
    found = staleness(metadata, head, columns)
    if found.columns_missing:
        verb = "has" if found.columns_missing == 1 else "have"
        yield Signal(f"{counted(found.columns_missing, 'column')} {verb} no statistics", statistics_weight())
    elif found.partitions_missing:
        yield Signal("partitions have no statistics", statistics_weight())
    elif found.rows_changed is None or found.rows is None:
        yield Signal("it is unknown how many rows changed since statistics were computed", statistics_weight())
    elif found.rows_changed and found.share >= MIN_CHANGED_SHARE:
        yield Signal(found.sentence(), statistics_weight(float(found.share)))


SweepPlanner = Callable[[TableIdentity, SweepRecord], None]
"""Called with the record of when the first sweep of a table is due."""


def due_sweep(
    record: SweepPlanner,
    identity: TableIdentity,
    metadata: TableMetadata,
    resolved: ResolvedPolicy,
    sweeps: Mapping[SweepKind, SweepRecord],
    *,
    fleet: int,
    now_ms: int,
) -> tuple[Signal, ...]:
    """A signal if passes with this policy sweep the table, and the next sweep is due.

    If no sweep is recorded, decide when the first is due, and pass this to ``record`` unless it is due now.  ``sweeps``
    are the table's recorded sweeps; ``fleet`` is the number of tables.
    """
    policy = resolved.policy
    if not (
        sweep_interval_ms(policy)
        and resolved.runs(Operation.REMOVE_ORPHANS)
        and gc_enabled(metadata)
        and metadata.has_history
    ):
        return ()
    memory = sweep_memory(identity, metadata, policy, sweeps, fleet=fleet, now_ms=now_ms)
    first_ms = memory.first_ms
    if first_ms is not None and first_ms > now_ms and SweepMemory.of(sweeps).is_empty:
        record(identity, SweepRecord(kind=SweepKind.FIRST, counted_ms=first_ms))
    return tuple(sweep_signals(memory, policy, identity.key, now_ms))


def sweep_memory(
    identity: TableIdentity,
    metadata: TableMetadata,
    policy: Policy,
    sweeps: Mapping[SweepKind, SweepRecord],
    *,
    fleet: int,
    now_ms: int,
) -> SweepMemory:
    """The recorded sweeps; a table without any gets the time of its first sweep, as decided now."""
    memory = SweepMemory.of(sweeps)
    if not memory.is_empty:
        return memory
    age_ms = known_age_ms(metadata, now_ms)
    return SweepMemory(first_ms=first_sweep_ms(identity.key, now_ms, policy, tables=fleet, age_ms=age_ms))


def sweep_signals(memory: SweepMemory, policy: Policy, key: str, now_ms: int) -> Iterable[Signal]:
    """A signal if a sweep of the table with this identity key is due."""
    if now_ms < next_proposal_ms(memory, sweep_interval_ms(policy), key, now_ms):
        return
    if memory.swept_ms is None or memory.swept_ms > now_ms:
        yield Signal("the table was never swept for orphans", SWEEP_WEIGHT)
        return
    hours = text_of(policy.orphan_sweep_interval_hours)
    ago = age_text(now_ms - memory.swept_ms)
    yield Signal(f"the last sweep for orphans was {ago} ago; orphan_sweep_interval_hours is {hours}", SWEEP_WEIGHT)
