"""The ``expire_partitions`` operation: drop partitions past their retention in one ``delete`` commit.

Only metadata changes.  The files are deleted when the snapshots that still reference them expire.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.errors import OperationRefused
from icekeeper.machine.clock import HOUR_MS, stopwatch
from icekeeper.machine.interrupts import uninterrupted
from icekeeper.metadata.delete_scope import PartitionKey, is_unpartitioned, partition_key
from icekeeper.metadata.document import TableMetadata, branch_head, require_writable
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.table_reader import TableReader
from icekeeper.metadata.types import decode
from icekeeper.model import DataFile, FileContent, FileKey, ManifestContent, ManifestFile, Nothing
from icekeeper.operations.old_partitions import (
    NO_RETENTION,
    NOTHING_TO_EXPIRE,
    WHERE_ALONE,
    LivePartitions,
    PartitionChoice,
    chosen_partitions,
    goes_with,
    partitions_sharing_files,
)
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.filters import depends_on_now
from icekeeper.policy.partition_time import PartitionTimes, partition_times, unit_end_ms
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded

_OPERATION = Operation.EXPIRE_PARTITIONS

ChoiceOf: TypeAlias = Callable[[str, TableMetadata, int], PartitionChoice]
"""Filter, table metadata and time (epoch milliseconds) → a predicate for partitions of which every row matches."""


@dataclass(frozen=True, slots=True)
class _Drop:
    """The data and delete files to remove from a head."""

    metadata_location: str
    partitions: frozenset[PartitionKey]
    unparsed: int
    """The number of partitions that are kept because the time pattern does not match their value."""
    manifests: Sequence[ManifestFile]
    affected: frozenset[str]
    files: tuple[DataFile, ...]


def expire_partitions(context: OperationContext, matching: ChoiceOf | None = None) -> OperationOutcome:
    """Drop the partitions that ended longer than ``partition_retention_hours`` ago and match ``where`` completely.

    ``where`` without a retention drops partitions only if it was set for this operation, not as the scope of a rewrite
    (rule: drop-only-fully-matched-partitions).  ``matching`` evaluates the filter; without it, a filter is refused.

    The plan is made again for every head, so that exactly the files of expired partitions are dropped.  The commit
    deletes no file, so ``gc.enabled=false`` does not forbid it.

    Raises:
        OperationRefused: no partition would remain; nothing was committed.
        MaintenanceError: nothing was committed.
    """
    policy = context.policy
    retention_ms = policy.partition_retention_ms
    if retention_ms is None and policy.where is None:
        return skipped(_OPERATION, NO_RETENTION)
    if retention_ms is None and not _is_meant_by(context.resolved):
        return skipped(_OPERATION, WHERE_ALONE)
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        cutoff_ms = None
        if retention_ms is not None:
            now_ms = context.stores.trusted_now_ms(loaded, retention_ms, "partition_retention_hours")
            cutoff_ms = now_ms - retention_ms
        attempts = _Attempts(context, cutoff_ms, matching, _moment_ms(context, loaded))
        planned = attempts.plan(loaded)
        if isinstance(planned, Nothing):
            return _outcome(planned, "", "", (), elapsed_ms())
        attempts.last = planned
        if context.dry_run:
            context.would_commit(_OPERATION, lambda: context.commit(loaded, attempts.prepare))
            return _outcome(planned, "would expire", "drop", (), elapsed_ms())
        with uninterrupted():
            committed = context.commit(context.load(), attempts.prepare)
        if isinstance(committed, Nothing):
            return _outcome(committed, "", "", (), elapsed_ms())
        return _outcome(attempts.last, "expired", "dropped", (committed.prepared.snapshot_id or 0,), elapsed_ms())


def _moment_ms(context: OperationContext, loaded: LoadedTable) -> int:
    """The value of ``now()``: the beginning of the pass, but not later than the store's clock.

    Raises:
        OperationRefused: the filter uses ``now()``, and our clock and the store's differ by more than an hour.
    """
    where = context.policy.where
    if where is None or not depends_on_now(where):
        return context.started_ms
    return min(context.started_ms, context.stores.trusted_now_ms(loaded, HOUR_MS, "the tolerance of where"))


def _is_meant_by(resolved: ResolvedPolicy) -> bool:
    """Whether the filter was set for this operation: filter and operation come from the same source, and it is the only
    operation."""
    return resolved.policy.operations == (_OPERATION,) and resolved.sources["where"] == resolved.sources["operations"]


@dataclass(slots=True)
class _Attempts:
    """The attempts to commit; each new head gets a new plan."""

    context: OperationContext
    cutoff_ms: int | None
    """Partitions that ended before this time are past the retention; ``None``: age does not matter."""
    matching: ChoiceOf | None
    now_ms: int
    """The value of ``now()`` in a filter."""
    last: _Drop | None = None

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        if self.last is None or head.metadata_location != self.last.metadata_location:
            found = self.plan(head)
            if isinstance(found, Nothing):
                return found
            self.last = found
        self.context.require_reviewed(head, (file.file_path for file in self.last.files))
        removed: frozenset[FileKey] = frozenset(file.key for file in self.last.files)
        return self.context.snapshot_writer(head).drop_files(removed, self.last.manifests, self.last.affected)

    def plan(self, head: LoadedTable) -> _Drop | Nothing:
        metadata, policy = head.metadata, self.context.policy
        require_writable(metadata)
        snapshot = branch_head(metadata, policy.branch)
        if snapshot is None:
            return Nothing(NOTHING_TO_EXPIRE)
        reader = self.context.reader(head)
        manifests = reader.manifests(snapshot)
        old = [m for m in manifests if m.content is ManifestContent.DATA and m.may_have_live_files]
        is_chosen: PartitionChoice | None = None
        if policy.where is not None:
            if self.matching is None:
                raise OperationRefused("where cannot be evaluated here, so no partition was dropped; unset it")
            is_chosen = self.matching(policy.where, metadata, self.now_ms)
        partitions: frozenset[PartitionKey] | Nothing = Nothing(NO_RETENTION)
        unparsed = 0
        if self.cutoff_ms is not None:
            partitions, old, unparsed = _plan_by_age(policy, reader, old, self.cutoff_ms, is_chosen)
        elif is_chosen is not None:
            live = ((manifest.partition_spec_id, entry.file.partition) for manifest, entry in reader.live_entries(old))
            partitions = chosen_partitions(live, is_chosen, policy.where or "")
        if isinstance(partitions, Nothing):
            return partitions
        return _files_to_drop(head, reader, manifests, old, partitions, unparsed)


def _files_to_drop(
    head: LoadedTable,
    reader: TableReader,
    manifests: Sequence[ManifestFile],
    old: Sequence[ManifestFile],
    partitions: frozenset[PartitionKey],
    unparsed: int,
) -> _Drop | Nothing:
    """``old``: the manifests that may hold data files of expired partitions."""
    metadata = head.metadata
    expired: list[tuple[ManifestFile, PartitionKey, DataFile]] = []
    staying = array("q")
    for manifest, entry in reader.live_entries(old):
        file = entry.file
        key = partition_key(manifest.partition_spec_id, file.partition)
        if key in partitions:
            expired.append((manifest, key, file))
        else:
            staying.append(hash(file.file_path))
    spared = partitions_sharing_files(((key, file.file_path) for _, key, file in expired), staying)
    partitions -= spared
    if not partitions:
        return Nothing(NOTHING_TO_EXPIRE)
    affected = {manifest.manifest_path for manifest, key, _ in expired if key not in spared}
    data = [file for _, key, file in expired if key not in spared]
    paths = frozenset(file.file_path for file in data)
    deletes: list[DataFile] = []
    for manifest, entry in reader.live_entries(manifests, ManifestContent.DELETES):
        file = entry.file
        spec_id = manifest.partition_spec_id
        is_global = is_unpartitioned(metadata.specs[spec_id])
        if goes_with(file, spec_id, is_global=is_global, partitions=partitions, dropped=paths):
            deletes.append(file)
            affected.add(manifest.manifest_path)
    return _Drop(head.metadata_location, partitions, unparsed, manifests, frozenset(affected), (*data, *deletes))


def _plan_by_age(
    policy: Policy,
    reader: TableReader,
    manifests: Sequence[ManifestFile],
    cutoff_ms: int,
    is_chosen: PartitionChoice | None,
) -> tuple[frozenset[PartitionKey] | Nothing, list[ManifestFile], int]:
    """The partitions, the manifests that may list their files, and the number of unparsed partitions."""
    times = partition_times(reader.metadata, policy)
    if isinstance(times, Nothing):
        return times, [], 0
    partitions = LivePartitions(times, is_chosen=is_chosen)
    young = {m.manifest_path for m in manifests if _is_young(reader, times, m, cutoff_ms)}
    partitions.has_younger = any(m.manifest_path in young and m.deleted_files_count == 0 for m in manifests)
    old = [m for m in manifests if m.manifest_path not in young]
    for manifest, entry in reader.live_entries(old):
        partitions.add(manifest.partition_spec_id, entry.file.partition)
    plan = partitions.plan(cutoff_ms, policy.partition_retention_hours)
    return plan, old, len(partitions.unparsed)


def _is_young(reader: TableReader, times: PartitionTimes, manifest: ManifestFile, cutoff_ms: int) -> bool:
    """Whether the manifest's partition summaries show that none of its partitions has expired, so that it need not be
    read."""
    fields = times.fields.get(manifest.partition_spec_id)
    if not fields or manifest.partitions is None:
        return False
    types = partition_types(reader.metadata, manifest.partition_spec_id)
    for position, unit in fields:
        bound = manifest.partitions[position].lower_bound
        try:
            end = None if bound is None else unit_end_ms(unit, decode(types[position], bound))
        except ValueError:
            return False
        if end is None or end < cutoff_ms:
            return False
    return True


def _outcome(
    drop: _Drop | Nothing, expired: str, dropped: str, snapshot_ids: tuple[int, ...], duration_ms: int
) -> OperationOutcome:
    if isinstance(drop, Nothing):
        return skipped(_OPERATION, drop.reason, metrics={"expire_partitions.duration_ms": duration_ms})
    data = [file for file in drop.files if file.content is FileContent.DATA]
    rows, partitions = sum(file.record_count for file in data), len(drop.partitions)
    unparsed = drop.unparsed
    left = f"; {unparsed} partition(s) do not match partition_time" if unparsed else ""
    return succeeded(
        _OPERATION,
        f"{expired} {partitions} partition(s): {dropped} {len(data)} data file(s) with {rows} row(s){left}",
        snapshot_ids=snapshot_ids,
        metrics={
            "expire_partitions.partitions_expired": partitions,
            "expire_partitions.partitions_unparsed": unparsed,
            "expire_partitions.files_removed": len(data),
            "expire_partitions.delete_files_removed": len(drop.files) - len(data),
            "expire_partitions.rows_removed": rows,
            "expire_partitions.bytes_removed": sum(file.content_bytes for file in drop.files),
            "expire_partitions.duration_ms": duration_ms,
        },
        files_planned=[file.file_path for file in drop.files],
    )
