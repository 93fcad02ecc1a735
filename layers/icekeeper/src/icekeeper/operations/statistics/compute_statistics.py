"""The ``compute_statistics`` operation writes the table and partition statistics that a branch's head lacks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.errors import FileUnreadable, MaintenanceError, StorageError
from icekeeper.machine.clock import stopwatch
from icekeeper.metadata.document import (
    Snapshot,
    TableMetadata,
    branch_head,
    ref_at,
    require_writable,
    same_table,
    schema_digest,
)
from icekeeper.metadata.puffin import PuffinBlob
from icekeeper.metadata.statistics import ThetaSketch, statistics_entry
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestEntry, ManifestFile, Nothing
from icekeeper.operations.statistics.columns import StatisticsColumns, statistics_columns
from icekeeper.operations.statistics.partition_file import (
    PartitionFileFormat,
    encode_partition_file,
    partition_file_format,
)
from icekeeper.operations.statistics.partition_statistics import partition_statistics
from icekeeper.operations.statistics.plan import StatisticsPlan, StoredBlob, plan_statistics
from icekeeper.operations.statistics.row_files import appended_files, live_files
from icekeeper.operations.statistics.sketches import computed_sketches
from icekeeper.operations.statistics.staleness import staleness, why_not_yet
from icekeeper.operations.statistics.statistics_file import statistics_file
from icekeeper.operations.statistics.stored_blobs import StatisticsFileUnusable, stored_blobs, stored_sketch
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, failed, skipped, succeeded

__all__ = ["compute_statistics"]

_OPERATION = Operation.COMPUTE_STATISTICS
_WITHOUT = "{}; statistics without its rows would be wrong, so none were computed"


@dataclass(frozen=True, slots=True)
class _Work:
    """A plan, and the blobs of existing statistics files that it needs."""

    plan: StatisticsPlan
    carried: Mapping[StoredBlob, tuple[PuffinBlob, bytes]]
    bases: Mapping[StoredBlob, ThetaSketch]


@dataclass(slots=True)
class _Written:
    """Paths of the files written, path → the update that registers it, and metrics."""

    paths: list[str] = field(default_factory=list)
    updates: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)


def compute_statistics(context: OperationContext) -> OperationOutcome:
    """Write and register what the head of the branch lacks; no snapshot is made.

    Raises:
        MaintenanceError: nothing was registered.
    """
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        metadata = loaded.metadata
        require_writable(metadata)
        snapshot = branch_head(metadata, context.policy.branch)
        columns = statistics_columns(metadata, context.policy.statistics_columns)
        reader = context.reader(loaded)
        work = _work(context, loaded, reader, snapshot, columns)
        metrics = {"compute_statistics.columns_unsupported": columns.unsupported}
        if isinstance(work, Nothing):
            return skipped(_OPERATION, work.reason, metrics={**metrics, "compute_statistics.duration_ms": elapsed_ms()})
        plan = work.plan
        reason = _why_not_yet(context, metadata, plan, columns) or _why_unreadable(context, metadata, plan)
        if reason is not None:
            return skipped(_OPERATION, reason, metrics=metrics)
        files = tuple(f.file.file_path for f in plan.files)
        loaded.allowed.require(files)
        if context.dry_run:
            return succeeded(_OPERATION, _preview(plan), metrics=metrics, files_planned=files)
        try:
            with context.job(_OPERATION, loaded, plan.snapshot_id) as computing:
                written = _write(computing, loaded, reader, work)
                problem = _commit(computing, loaded, plan.snapshot_id, written)
        except FileUnreadable as error:
            return skipped(_OPERATION, _WITHOUT.format(error), metrics=metrics)
        metrics |= written.metrics | {"compute_statistics.duration_ms": elapsed_ms()}
        context.memory.forget_read(files)
        if problem is not None:
            return failed(_OPERATION, problem.reason, metrics=metrics)
        return succeeded(_OPERATION, _summary(plan, metrics), metrics=metrics, files_planned=files)


def _why_unreadable(context: OperationContext, metadata: TableMetadata, plan: StatisticsPlan) -> str | None:
    """Why the plan would fail on a file that passes could not read (rule 216); ``None``: it reads none of these."""
    known = context.memory.waiting_unreadable(schema_digest(metadata))
    paths = (path for f in plan.files for path in (f.file.file_path, *(e.file.file_path for e in f.deletes)))
    why = next((known[path] for path in paths if path in known), None) if known else None
    return None if why is None else _WITHOUT.format(why)


def _why_not_yet(
    context: OperationContext, metadata: TableMetadata, plan: StatisticsPlan, columns: StatisticsColumns
) -> str | None:
    if not context.is_proposed:
        return None
    found = staleness(metadata, metadata.snapshots[plan.snapshot_id], columns)
    return why_not_yet(plan, found, context.policy.statistics_min_changed_ratio)


def _work(
    context: OperationContext,
    loaded: LoadedTable,
    reader: TableReader,
    snapshot: Snapshot | None,
    columns: StatisticsColumns,
) -> _Work | Nothing:
    """Plan, and fetch the blobs that the plan needs; where a statistics file is unusable, plan again without it."""
    manifests = [] if snapshot is None else reader.manifests(snapshot)
    unusable: set[str] = set()
    while True:
        plan = plan_statistics(
            loaded.metadata,
            snapshot,
            columns,
            lambda: live_files(reader, manifests),
            lambda snapshots: appended_files(reader, snapshots),
            unreadable=unusable,
        )
        if isinstance(plan, Nothing):
            return plan
        bases = [stored for reading in plan.readings for stored in reading.base.values()]
        try:
            fetched = stored_blobs(context.storage(loaded), [*plan.carried, *bases])
            return _Work(plan, fetched, {stored: stored_sketch(stored, *fetched[stored]) for stored in bases})
        except StatisticsFileUnusable as error:
            unusable.add(error.path)


def _write(context: OperationContext, loaded: LoadedTable, reader: TableReader, work: _Work) -> _Written:
    written = _Written()
    try:
        # What is cheap comes first: it may fail, too.
        if work.plan.partitions:
            _write_partition_statistics(context, loaded, reader, work.plan.snapshot_id, written)
        if work.plan.blobs:
            _write_table_statistics(context, loaded, work, written)
    except MaintenanceError:
        context.discard(loaded, written.paths)
        raise
    return written


def _write_table_statistics(context: OperationContext, loaded: LoadedTable, work: _Work, written: _Written) -> None:
    plan = work.plan
    sketches, rows = computed_sketches(context, loaded, plan, work.bases)
    file = statistics_file(plan, work.carried, sketches)
    # Java's name for it; SeaweedFS takes no other ending.  This process alone writes it, once: attempts need no number.
    path = f"{loaded.metadata.metadata_directory}/{plan.snapshot_id}-{uuid.uuid4()}.stats"
    written.paths.append(path)
    context.will_write([path])
    context.storage(loaded).write(path, file.data)
    entry = statistics_entry(plan.snapshot_id, path, file)
    # Outside the entry the id is deprecated, but servers of before 1.8 know no other.
    written.updates[path] = {"action": "set-statistics", "snapshot-id": plan.snapshot_id, "statistics": entry}
    written.metrics |= {
        "compute_statistics.columns": len(sketches),
        "compute_statistics.blobs_carried": len(plan.carried),
        "compute_statistics.rows_read": rows,
        "compute_statistics.files_read": len(plan.files),
    }


def _write_partition_statistics(
    context: OperationContext, loaded: LoadedTable, reader: TableReader, snapshot_id: int, written: _Written
) -> None:
    metadata, storage = loaded.metadata, context.storage(loaded)
    rows = partition_statistics(metadata, _entries(reader, metadata.snapshots[snapshot_id]))
    file_format = partition_file_format(metadata)
    stem = f"{metadata.metadata_directory}/partition-stats-{snapshot_id}-{uuid.uuid4()}"
    path, data = f"{stem}.{file_format.value}", encode_partition_file(metadata, rows, file_format)
    written.paths.append(path)
    avro_path = f"{stem}.{PartitionFileFormat.AVRO.value}"
    context.will_write({path, avro_path})
    try:
        storage.write(path, data)
    except StorageError:
        if file_format is PartitionFileFormat.AVRO:
            raise
        # Table buckets that guard their metadata folder take Avro files only (platform 31); all readers do, too.
        path, data = avro_path, encode_partition_file(metadata, rows, PartitionFileFormat.AVRO)
        written.paths.append(path)
        storage.write(path, data)
    entry = {"snapshot-id": snapshot_id, "statistics-path": path, "file-size-in-bytes": len(data)}
    written.updates[path] = {"action": "set-partition-statistics", "partition-statistics": entry}
    written.metrics["compute_statistics.partitions"] = len(rows)


def _entries(reader: TableReader, snapshot: Snapshot) -> Iterator[tuple[ManifestFile, ManifestEntry]]:
    for manifest, entries in reader.entries(reader.manifests(snapshot)):
        yield from ((manifest, entry) for entry in entries)


def _commit(context: OperationContext, loaded: LoadedTable, snapshot_id: int, written: _Written) -> Nothing | None:
    """Register the files; returns why not.  Other commits do not matter as long as the snapshot is there."""
    branch = context.policy.branch

    def landed(metadata: TableMetadata) -> bool:
        entries: Sequence[Mapping[str, Any]] = (*metadata.statistics, *metadata.partition_statistics)
        return written.updates.keys() <= {entry["statistics-path"] for entry in entries}

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        metadata = head.metadata
        if metadata.uuid != loaded.metadata.uuid:
            return Nothing("the table was replaced by another one meanwhile")
        if snapshot_id not in metadata.snapshots:
            return Nothing(f"snapshot {snapshot_id} expired meanwhile")
        requirements = same_table(metadata)
        ref = metadata.refs.get(branch)
        if ref is not None and ref.snapshot_id == snapshot_id:
            # The head of a branch cannot expire.
            requirements.append(ref_at(branch, snapshot_id))
        return PreparedCommit(requirements=requirements, updates=list(written.updates.values()), landed=landed)

    committed = context.commit_outputs(loaded, prepare, written.paths)
    if not isinstance(committed, Nothing):
        return None
    context.discard(loaded, written.paths)
    return committed


def _preview(plan: StatisticsPlan) -> str:
    columns = sum(len(reading.types) for reading in plan.readings)
    parts = [f"would compute statistics of {columns} column(s) from {len(plan.files)} file(s)"] if columns else []
    if plan.carried and not columns:
        parts.append(f"would carry over {len(plan.carried)} statistics")
    if plan.partitions:
        parts.append("would count partitions")
    return "; ".join(parts)


def _summary(plan: StatisticsPlan, metrics: Mapping[str, int]) -> str:
    parts = []
    if plan.readings:
        columns, rows = metrics["compute_statistics.columns"], metrics["compute_statistics.rows_read"]
        parts.append(f"computed statistics of {columns:,} column(s) over {rows:,} row(s)")
    elif plan.carried:
        parts.append(f"carried over {len(plan.carried):,} statistics")
    if plan.partitions:
        parts.append(f"partition statistics of {metrics['compute_statistics.partitions']:,} partition(s)")
    return "; ".join(parts)
