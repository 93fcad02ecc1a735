"""The ``compute_statistics`` operation: write the table and partition statistics that a branch's head lacks.

A Puffin file has one theta sketch per column.  Sketches are stored uncompressed, because hashes do not compress.
Source: Puffin specification, blob type ``apache-datasketches-theta-v1``; Spark and Trino read the property ``ndv``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.errors import FileUnreadable, MaintenanceError, MetadataUnreadable, StorageError, TableUnsupported
from icekeeper.machine.clock import stopwatch
from icekeeper.machine.foreign_bytes import FileLimits
from icekeeper.metadata.document import Snapshot, TableMetadata, branch_head, require_writable, schema_digest
from icekeeper.metadata.puffin import THETA_SKETCH, PuffinBlob, decode_footer, encode_blobs
from icekeeper.metadata.statistics import (
    ThetaSketch,
    blob_metadata,
    decode_theta,
    encode_theta,
    statistics_entry,
    union,
)
from icekeeper.metadata.table_reader import TableReader, delete_index
from icekeeper.metadata.updates import ref_at, same_table
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile, Nothing
from icekeeper.operations.statistics.partition_statistics import (
    PartitionFileFormat,
    encode_partition_file,
    partition_file_format,
    partition_statistics,
)
from icekeeper.operations.statistics.plan_statistics import (
    TYPE_KEY,
    RowFile,
    StatisticsPlan,
    StoredBlob,
    plan_statistics,
    statistics_columns,
)
from icekeeper.operations.statistics.sketch_task import sketch_rows, sketch_tasks
from icekeeper.operations.statistics.staleness import staleness, why_not_yet
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, failed, skipped, succeeded
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.file_rows import why_unreadable
from icekeeper.storage.storage import Storage

_OPERATION = Operation.COMPUTE_STATISTICS
_WITHOUT = "{}; statistics without its rows would be wrong, so none were computed"

_Blobs: TypeAlias = Mapping[StoredBlob, tuple[PuffinBlob, bytes]]
_Sketches: TypeAlias = Mapping[StoredBlob, ThetaSketch]


@dataclass(slots=True)
class _Written:
    """Paths of the written files, path → the update that registers it, and metrics."""

    paths: list[str] = field(default_factory=list)
    updates: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)


def compute_statistics(context: OperationContext) -> OperationOutcome:
    """Write and register the statistics that the branch's head lacks, without a new snapshot.

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
        planned = _plan(context, loaded, reader, snapshot, columns)
        is_chosen = bool(context.policy.statistics_columns)
        unsupported = 0 if is_chosen else len(metadata.current_schema["fields"]) - len(columns)
        metrics = {"compute_statistics.columns_unsupported": unsupported}
        if isinstance(planned, Nothing):
            metrics["compute_statistics.duration_ms"] = elapsed_ms()
            return skipped(_OPERATION, planned.reason, metrics=metrics)
        plan, fetched, bases = planned
        reason = _why_not(context, metadata, plan, columns)
        if reason is not None:
            return skipped(_OPERATION, reason, metrics=metrics)
        files = tuple(f.file_path for f in plan.files)
        loaded.allowed.require(files)
        if context.dry_run:
            return succeeded(_OPERATION, _preview(plan), metrics=metrics, files_planned=files)
        try:
            with context.job(_OPERATION, loaded, plan.snapshot_id) as computing:
                written = _write(computing, loaded, reader, plan, fetched, bases)
                problem = _commit(computing, loaded, plan.snapshot_id, written)
        except FileUnreadable as error:
            return skipped(_OPERATION, _WITHOUT.format(error), metrics=metrics)
        metrics |= written.metrics | {"compute_statistics.duration_ms": elapsed_ms()}
        context.memory.forget_read(files)
        if problem is not None:
            return failed(_OPERATION, problem.reason, metrics=metrics)
        return succeeded(_OPERATION, _summary(plan, metrics), metrics=metrics, files_planned=files)


def _why_not(
    context: OperationContext, metadata: TableMetadata, plan: StatisticsPlan, columns: Mapping[int, str]
) -> str | None:
    """Why the plan waits: too few rows changed, or it needs a file that passes could not read
    (rule: leave-out-unreadable-files)."""
    if context.is_proposed:
        found = staleness(metadata, metadata.snapshots[plan.snapshot_id], columns)
        if reason := why_not_yet(plan, found):
            return reason
    known = context.memory.waiting_unreadable(schema_digest(metadata))
    paths = (path for f in plan.files for path in (f.file_path, *(e.file.file_path for e in f.deletes)))
    why = next((known[path] for path in paths if path in known), None) if known else None
    return None if why is None else _WITHOUT.format(why)


def _plan(
    context: OperationContext,
    loaded: LoadedTable,
    reader: TableReader,
    snapshot: Snapshot | None,
    columns: Mapping[int, str],
) -> tuple[StatisticsPlan, _Blobs, _Sketches] | Nothing:
    """The plan, the blobs of existing files that it needs, and the sketches in the blobs that it completes.

    If a statistics file cannot be used, plan again without it.
    """
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
            fetched = stored_blobs(context.stores.storage(loaded), [*plan.carried, *bases])
            return plan, fetched, {stored: stored_sketch(stored, *fetched[stored]) for stored in bases}
        except StatisticsFileUnusable as error:
            unusable.add(error.path)


def _write(
    context: OperationContext,
    loaded: LoadedTable,
    reader: TableReader,
    plan: StatisticsPlan,
    fetched: _Blobs,
    bases: _Sketches,
) -> _Written:
    written = _Written()
    try:
        # Do the cheap part first, because it may also fail.
        if plan.partitions:
            _write_partition_statistics(context, loaded, reader, plan.snapshot_id, written)
        if plan.blobs:
            _write_table_statistics(context, loaded, plan, fetched, bases, written)
    except (MaintenanceError, KeyboardInterrupt):
        context.discard(loaded, written.paths)
        raise
    return written


def _write_table_statistics(
    context: OperationContext,
    loaded: LoadedTable,
    plan: StatisticsPlan,
    fetched: _Blobs,
    bases: _Sketches,
    written: _Written,
) -> None:
    sketches, rows = computed_sketches(context, loaded, plan, bases)
    data, blobs = statistics_file(plan, fetched, sketches)
    # Java's name; SeaweedFS accepts no other ending.  Only this process writes it, so the name needs no attempt number.
    path = f"{loaded.metadata.metadata_directory}/{plan.snapshot_id}-{uuid.uuid4()}.stats"
    written.paths.append(path)
    context.will_write([path])
    context.stores.storage(loaded).write(path, data)
    entry = statistics_entry(plan.snapshot_id, path, data, blobs)
    # The id outside the entry is deprecated, but servers before 1.8 need it.
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
    metadata, storage = loaded.metadata, context.stores.storage(loaded)
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
        # Some table buckets accept only Avro files in the metadata folder (platform: seaweedfs-file-names), and all
        # readers can read Avro.
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
    """Register the files, or return why that is not possible.  Other commits do not matter as long as the snapshot
    exists."""
    branch = context.policy.branch

    def landed(metadata: TableMetadata) -> bool:
        entries: Sequence[Mapping[str, Any]] = (*metadata.statistics, *metadata.partition_statistics)
        return written.updates.keys() <= {entry["statistics-path"] for entry in entries}

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        metadata = head.metadata
        if metadata.uuid != loaded.metadata.uuid:
            return Nothing("the table was replaced by another table meanwhile")
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


def live_files(reader: TableReader, manifests: Sequence[ManifestFile]) -> list[RowFile]:
    """Every live data file of a snapshot, with the deletes that apply to it.

    Raises:
        MetadataUnreadable: a manifest is missing or damaged.
        TableUnsupported: this version cannot read a file, so its rows would be missing.
    """
    index = delete_index(reader, manifests)
    types = _column_types(reader)
    return [
        _row_file(manifest, entry, tuple(index.needed_by(entry, manifest.partition_spec_id, types)), types)
        for manifest, entry in reader.live_entries(manifests, ManifestContent.DATA)
    ]


def appended_files(reader: TableReader, snapshots: Sequence[Snapshot]) -> list[RowFile] | None:
    """The data files that append snapshots added; ``None``: a snapshot removed files or added deletes.

    Raises:
        MetadataUnreadable: a manifest list or manifest is missing or damaged.
        TableUnsupported: this version cannot read a file.
    """
    files: list[RowFile] = []
    types = _column_types(reader)
    for snapshot in snapshots:
        # The entries that a snapshot added or removed are in the manifests that it wrote.
        written = [m for m in reader.manifests(snapshot) if m.added_snapshot_id == snapshot.snapshot_id]
        for manifest, entries in reader.entries(written):
            for entry in entries:
                if entry.status is EntryStatus.EXISTING or entry.snapshot_id != snapshot.snapshot_id:
                    continue
                if entry.status is not EntryStatus.ADDED or manifest.content is not ManifestContent.DATA:
                    return None
                files.append(_row_file(manifest, entry, (), types))
    return files


def _column_types(reader: TableReader) -> dict[int, str]:
    return {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(reader.metadata.current_schema)}


def _row_file(
    manifest: ManifestFile, entry: ManifestEntry, deletes: tuple[ManifestEntry, ...], types: Mapping[int, str]
) -> RowFile:
    if why := why_unreadable(entry.file, deletes, types):
        raise TableUnsupported(_WITHOUT.format(f"file {entry.file.file_path} {why}"))
    file = entry.file
    return RowFile(
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        first_row_id=file.first_row_id,
        spec_id=manifest.partition_spec_id,
        sequence_number=entry.sequence_number or 0,
        deletes=deletes,
    )


_WHAT = "compute_statistics: file groups"
# Results in memory at once: with a hundred columns of 32 KB each these are 200 MB.
_WAVE = 64


def computed_sketches(
    context: OperationContext, loaded: LoadedTable, plan: StatisticsPlan, bases: _Sketches
) -> tuple[dict[int, tuple[str, ThetaSketch]], int]:
    """Sketch all files on the engine, and unite the sketches with the sketches that they complete (``bases``).

    Returns:
        Field id → type and sketch; and the number of rows read.

    Raises:
        FileUnreadable: a file cannot be read, so that the statistics would be wrong; the file is recorded.
        StorageError: a store or the engine failed.
        TableUnsupported: this version cannot apply an equality delete.
    """
    tasks = sketch_tasks(loaded.metadata, plan.readings, loaded.io_properties)
    merged: dict[int, ThetaSketch] = {}
    for reading in plan.readings:
        for field_id in reading.types:
            stored = reading.base.get(field_id)
            merged[field_id] = ThetaSketch() if stored is None else bases[stored]
    rows = 0

    def report(before: int, done: int) -> None:
        context.progress(_WHAT, before + done, len(tasks))

    report(0, 0)
    for start in range(0, len(tasks), _WAVE):
        wave = tasks[start : start + _WAVE]
        for result in context.engine.map(sketch_rows, wave, partial(report, start)):
            if result.unreadable:
                context.memory.remember_unreadable(result.unreadable, schema_digest(loaded.metadata))
                raise FileUnreadable(str(result.error), path=next(iter(result.unreadable)))
            if result.error is not None:
                raise StorageError(f"no statistics were computed: {result.error}")
            rows += result.rows
            for field_id, data in result.sketches.items():
                merged[field_id] = union((merged[field_id], decode_theta(data, "a result")))
    types = {field_id: kind for reading in plan.readings for field_id, kind in reading.types.items()}
    return {field_id: (types[field_id], sketch) for field_id, sketch in merged.items()}, rows


def statistics_file(
    plan: StatisticsPlan, fetched: _Blobs, computed: Mapping[int, tuple[str, ThetaSketch]]
) -> tuple[bytes, tuple[PuffinBlob, ...]]:
    """The Puffin file of a plan, and its blobs.  Carried blobs keep their snapshot; computed blobs get the plan's
    snapshot."""
    contents = [fetched[stored] for stored in plan.carried]
    for field_id, (kind, sketch) in computed.items():
        blob = PuffinBlob(
            THETA_SKETCH,
            (field_id,),
            0,
            0,
            {"ndv": str(int(sketch.estimate)), TYPE_KEY: kind},
            snapshot_id=plan.snapshot_id,
            sequence_number=plan.sequence_number,
        )
        contents.append((blob, encode_theta(sketch)))
    return encode_blobs(contents, {"created-by": f"icekeeper {version('icekeeper')}"})


class StatisticsFileUnusable(MetadataUnreadable):
    """A statistics file is missing, damaged, or differs from its entry, so that its columns must be read again."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"statistics file {path} cannot be used: {why}")
        self.path = path


def stored_blobs(storage: Storage, wanted: Iterable[StoredBlob]) -> dict[StoredBlob, tuple[PuffinBlob, bytes]]:
    """The footer's entry for each blob, and the blob's stored bytes; every file is read once.

    Raises:
        StatisticsFileUnusable: a file cannot be read, or lacks a blob.
    """
    by_path: dict[str, list[StoredBlob]] = {}
    for stored in wanted:
        by_path.setdefault(stored.path, []).append(stored)
    found = {}
    for path, blobs in by_path.items():
        try:
            data = storage.read(path)
            held = {blob_metadata(blob): blob for blob in decode_footer(data, path)}
        except StorageError as error:
            raise StatisticsFileUnusable(path, str(error)) from error
        for stored in blobs:
            blob = held.get(stored.blob)
            if blob is None or blob.offset + blob.length > len(data):
                raise StatisticsFileUnusable(path, "it lacks a blob that the table's metadata lists")
            found[stored] = blob, data[blob.offset : blob.offset + blob.length]
    return found


def stored_sketch(stored: StoredBlob, blob: PuffinBlob, data: bytes) -> ThetaSketch:
    """The sketch in a fetched blob.

    Raises:
        StatisticsFileUnusable: the blob is damaged, or has an unknown compression.
    """
    try:
        plain = FileLimits(stored.path, len(data)).unpack(blob.compression_codec or "null", data)
        return decode_theta(plain, stored.path)
    except (MetadataUnreadable, ValueError) as error:
        raise StatisticsFileUnusable(stored.path, str(error)) from error
