"""The ``expire_partitions`` operation: partitions past their retention leave the table in one ``delete`` commit.

Only metadata changes: the bytes are freed when the snapshots that still hold the files expire.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.clock import stopwatch
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.metadata.delete_scope import PartitionKey, is_unpartitioned, partition_key
from icekeeper.metadata.format_versions import require_writable
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.single_value import decode
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, FileContent, FileKey, ManifestContent, ManifestFile, Nothing
from icekeeper.operations.partitions.plan import (
    NO_RETENTION,
    NOTHING_TO_EXPIRE,
    ExpiryPlan,
    LivePartitions,
    goes_with,
    partitions_sharing_files,
)
from icekeeper.partition_time import PartitionTimes, partition_times
from icekeeper.pass_context.branch import branch_head
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded

__all__ = ["expire_partitions"]

_OPERATION = Operation.EXPIRE_PARTITIONS


@dataclass(frozen=True, slots=True)
class _Drop:
    """The files that leave the table on one head."""

    metadata_location: str
    plan: ExpiryPlan
    manifests: Sequence[ManifestFile]
    affected: frozenset[str]
    files: tuple[DataFile, ...]
    """Data files and the delete files that go with them."""


def expire_partitions(context: OperationContext) -> OperationOutcome:
    """Drop the partitions that ended longer than ``partition_retention_hours`` ago.

    Planned anew on every head, so that only files of expired partitions go, and all of them.  The commit deletes no
    file, so that ``gc.enabled=false`` does not forbid it.

    Raises:
        OperationRefused: no partition would stay; nothing was committed.
        MaintenanceError: nothing was committed.
    """
    retention_ms = context.policy.partition_retention_ms
    if retention_ms is None:
        return skipped(_OPERATION, NO_RETENTION)
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        cutoff_ms = context.stores.trusted_now_ms(loaded, retention_ms, "partition_retention_hours") - retention_ms
        planned = _plan(context, loaded, cutoff_ms)
        if context.dry_run or isinstance(planned, Nothing):
            return _outcome(planned, "would expire", "drop", (), elapsed_ms())
        attempts = _Attempts(context, cutoff_ms, planned)
        committed = context.commit(loaded, attempts.prepare)
        if isinstance(committed, Nothing):
            return _outcome(committed, "", "", (), elapsed_ms())
        return _outcome(attempts.last, "expired", "dropped", (committed.prepared.snapshot_id or 0,), elapsed_ms())


@dataclass(slots=True)
class _Attempts:
    """The attempts to commit: the table is planned anew on every head but the first."""

    context: OperationContext
    cutoff_ms: int
    last: _Drop

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        """The commit for this head."""
        if head.metadata_location != self.last.metadata_location:
            found = _plan(self.context, head, self.cutoff_ms)
            if isinstance(found, Nothing):
                return found
            self.last = found
        removed: frozenset[FileKey] = frozenset(file.key for file in self.last.files)
        return self.context.snapshot_writer(head).drop_files(removed, self.last.manifests, self.last.affected)


def _plan(context: OperationContext, head: LoadedTable, cutoff_ms: int) -> _Drop | Nothing:
    metadata, policy = head.metadata, context.policy
    require_writable(metadata)
    snapshot = branch_head(metadata, policy.branch)
    if snapshot is None:
        return Nothing(NOTHING_TO_EXPIRE)
    times = partition_times(metadata, policy)
    if isinstance(times, Nothing):
        return times
    reader = context.reader(head)
    manifests = reader.manifests(snapshot)
    partitions = LivePartitions(times)
    old = [m for m in manifests if m.content is ManifestContent.DATA and m.may_have_live_files]
    young = {m.manifest_path for m in old if _is_young(reader, times, m, cutoff_ms)}
    partitions.has_younger = any(m.manifest_path in young and m.deleted_files_count == 0 for m in old)
    old = [m for m in old if m.manifest_path not in young]
    for manifest, entry in reader.live_entries(old):
        partitions.add(manifest.partition_spec_id, entry.file.partition)
    plan = partitions.plan(cutoff_ms, policy.partition_expire_limit, policy.partition_retention_hours)
    if isinstance(plan, Nothing):
        return plan
    expired: list[tuple[ManifestFile, PartitionKey, DataFile]] = []
    staying = array("q")
    for manifest, entry in reader.live_entries(old):
        file = entry.file
        key = partition_key(manifest.partition_spec_id, file.partition)
        if key in plan.partitions:
            expired.append((manifest, key, file))
        else:
            staying.append(hash(file.file_path))
    spared = partitions_sharing_files(((key, file.file_path) for _, key, file in expired), staying)
    plan = replace(plan, partitions=plan.partitions - spared)
    if not plan.partitions:
        return Nothing(NOTHING_TO_EXPIRE)
    affected = {manifest.manifest_path for manifest, key, _ in expired if key not in spared}
    data = [file for _, key, file in expired if key not in spared]
    paths = frozenset(file.file_path for file in data)
    deletes: list[DataFile] = []
    for manifest, entry in reader.live_entries(manifests, ManifestContent.DELETES):
        file = entry.file
        spec_id = manifest.partition_spec_id
        is_global = is_unpartitioned(metadata.specs[spec_id])
        if goes_with(file, spec_id, is_global=is_global, partitions=plan.partitions, dropped=paths):
            deletes.append(file)
            affected.add(manifest.manifest_path)
    return _Drop(head.metadata_location, plan, manifests, frozenset(affected), (*data, *deletes))


def _is_young(reader: TableReader, times: PartitionTimes, manifest: ManifestFile, cutoff_ms: int) -> bool:
    """Whether the summaries say that no partition in a manifest has expired: then it need not be read."""
    fields = times.judged(manifest.partition_spec_id)
    if not fields or manifest.partitions is None:
        return False
    types = partition_types(reader.metadata, manifest.partition_spec_id)
    for time_field in fields:
        bound = manifest.partitions[time_field.position].lower_bound
        try:
            end = None if bound is None else time_field.end_ms(decode(types[time_field.position], bound))
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
    rows, partitions = sum(file.record_count for file in data), len(drop.plan.partitions)
    unparsed = drop.plan.unparsed
    left = f"; {unparsed} partition(s) do not match partition_time_pattern" if unparsed else ""
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
