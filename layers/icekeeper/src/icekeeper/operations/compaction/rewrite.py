"""The work unit of compaction, run by local processes or by Spark: a task in, written files or an error out.

Rows of an old partition spec may be divided among partitions of the current one (rule: rows-match-their-partition;
specification, "Partition Evolution").  Java's ``rewrite_data_files`` does so with every file of another spec.
Icekeeper does so only if fewer files come out than go in (iceberg 16189, 16514), and reads the source columns first to
find out (rule: old-specs-move-only-to-fewer-files).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import FileUnreadable, MaintenanceError, OutputUnproved, RowsNotKept, TableUnsupported
from icekeeper.metadata.delete_scope import partition_key
from icekeeper.metadata.single_value import encode
from icekeeper.model import DataFile, PartitionValue
from icekeeper.operations.compaction.clustering.sort_keys import SortKeys, column_values, holds_column
from icekeeper.operations.compaction.clustering.work import write_clustered
from icekeeper.operations.compaction.output_partition import TargetField, target_fields
from icekeeper.operations.compaction.proof import write_proven
from icekeeper.operations.compaction.recipe import KeyColumn
from icekeeper.operations.compaction.rewrite_task import RewriteResult, RewriteTask, Routing
from icekeeper.operations.compaction.write_file import write_data_file, write_evenly
from icekeeper.operations.compaction.write_properties import partition_path
from icekeeper.rows.apply_deletes import deleted_rows_of
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.storage.local_files import scratch_folder
from icekeeper.storage.storage import Storage


def rewrite_group(task: RewriteTask, storage: Storage | None = None) -> RewriteResult:
    """Rewrite the live rows of a task's inputs: copied, in their order, sorted, or divided among partitions.

    The outputs are proven before the result reports them.  Errors of this group alone are in the result, not raised.
    ``storage`` may be shared with other tasks; ``None``: the task opens its own.
    """
    started = time.perf_counter()
    work = _Work(task, storage or Storage(task.io_properties))
    error: str | None = None
    unreadable: Mapping[str, str] = {}
    try:
        work.run()
    except (RowsNotKept, OutputUnproved) as problem:
        error = str(problem)
    except FileUnreadable as problem:
        error, unreadable = str(problem), unreadable_files(task, work.storage)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    return RewriteResult(
        group_id=task.group_id,
        written=() if error or work.files is None else work.files,
        rows_read=work.tally.read,
        rows_deleted=work.tally.deleted,
        bytes_copied=work.bytes_copied,
        bytes_unread=work.bytes_unread,
        spec_id=None if work.routing is None else work.routing.spec_id,
        seconds=time.perf_counter() - started,
        error=error,
        unreadable=unreadable,
        too_large=work.files is None and error is None,
    )


@dataclass(slots=True)
class _Work:
    """One attempt at a task, and its results so far."""

    task: RewriteTask
    storage: Storage
    tally: Tally = field(default_factory=Tally)
    routing: Routing | None = None
    bytes_copied: int = 0
    bytes_unread: int = 0
    files: tuple[DataFile, ...] | None = ()
    """``None``: the rows must be sorted and do not fit into this worker."""

    def run(self) -> None:
        task = self.task
        deletes = deleted_rows_of(task, self.storage)
        if task.copying is not None:
            # Imported here, so that workers that only decode start without it and without Thrift.
            from icekeeper.operations.compaction.copy_row_groups import write_copied

            copied = write_copied(task, task.copying, deletes, self.storage)
            if copied is not None:
                self.files, self.tally, self.bytes_copied = tuple(copied.files), copied.tally, copied.bytes_copied
                self.bytes_unread = copied.bytes_unread
                return
        if task.routing is not None and makes_fewer_files(task, task.routing, self.storage):
            self.routing = task.routing
        self.files = write_proven(task, self.storage, self.tally, self._write, deletes)

    def _write(self, rows: Iterator[pa.RecordBatch]) -> tuple[DataFile, ...] | None:
        if self.task.recipe is not None:
            return write_clustered(rows, self.task, self.task.recipe, self.storage)
        if self.routing is not None:
            return write_partitions(rows, self.task, self.routing, self.storage)
        return write_evenly(rows, self.task, self.storage)


_IPC = pa.ipc.IpcWriteOptions(compression="lz4")


class PartitionRouter:
    """Splits rows by their partition under a spec."""

    def __init__(self, routing: Routing, schema: Mapping[str, Any]) -> None:
        """``schema`` is the Iceberg schema of the rows.

        Raises:
            TableUnsupported: the spec cannot be written with this schema.
        """
        types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(schema) if not leaf.repeated}
        fields = target_fields(routing.spec, types)
        if fields is None:
            raise TableUnsupported(f"partition spec {routing.spec_id} has an unknown transform or source column")
        self._fields: list[TargetField] = fields
        self._schema = schema
        self._live = [field for field in fields if field.name != "void"]
        # Rows of one partition have equal keys, so partition values are computed once per key and batch.
        self._keys = SortKeys([KeyColumn(field.source_id, field.name) for field in self._live], schema)

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[PartitionValue, ...], pa.RecordBatch]]:
        """Yield each partition of the batch (raw values) with its rows, in their order."""
        if not batch.num_rows:
            return
        code = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
        for key in self._keys.of(batch):
            encoded = key.dictionary_encode(null_encoding="encode")
            combined = pc.add(pc.multiply(code, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
            code = combined.dictionary_encode().indices.cast(pa.int64())  # codes stay below the number of rows
        order = pc.sort_indices(code, sort_keys=[("", "ascending")])
        ends = pc.run_end_encode(code.take(order)).run_ends.to_pylist()
        start = 0
        for end in ends:
            rows = batch.take(order.slice(start, end - start))
            yield self._partition(rows), rows
            start = end

    def _partition(self, rows: pa.RecordBatch) -> tuple[PartitionValue, ...]:
        first = rows.slice(0, 1)
        values: list[PartitionValue] = []
        for transform in self._fields:
            if transform.name == "void":
                values.append(None)
                continue
            raw = _raw_value(column_values(transform.source_id, self._schema, first), transform.kind)
            values.append(None if raw is None else transform.apply(raw))
        return tuple(values)


def makes_fewer_files(task: RewriteTask, routing: Routing, storage: Storage) -> bool:
    """Whether the rows have fewer partitions than the task has inputs; only the source columns are read.

    Always false if text that is not UTF-8 would name a partition (rule: text-byte-for-byte).
    """
    sources = {int(field["source-id"]) for field in routing.spec["fields"]}
    tops = [field for field in task.schema["fields"] if holds_column(field, sources)]
    narrow = {**task.schema, "fields": tops}
    router = PartitionRouter(routing, narrow)
    seen: set[object] = set()
    # Deleted rows count too, because their deletes may need columns that are not read here.
    inputs = tuple(replace(source, deletes=()) for source in task.inputs)
    looking = replace(task, schema=narrow, inputs=inputs, deletes=(), key_fields=())
    try:
        for batch in read_rows(looking, storage, Tally()):
            seen.update(partition_key(routing.spec_id, partition) for partition, _ in router.split(batch))
            if len(seen) > task.most_partitions:
                return False
    except UnicodeDecodeError:
        return False
    return True


def write_partitions(
    batches: Iterable[pa.RecordBatch], task: RewriteTask, routing: Routing, storage: Storage
) -> tuple[DataFile, ...]:
    """Write one file per partition; rows wait in a temporary directory until all are read.

    Raises:
        StorageError: an input cannot be read or an output cannot be written; no output of this attempt remains.
    """
    router = PartitionRouter(routing, task.schema)
    written: list[DataFile] = []
    paths: list[str] = []
    with scratch_folder("icekeeper-partitions-") as folder, _WaitingRows(folder) as waiting:
        for batch in batches:
            for partition, rows in router.split(batch):
                waiting.add(partition, rows)
        try:
            for number, (partition, rows_again) in enumerate(waiting.partitions()):
                names = replace(task.outputs, partition_path=partition_path(routing.spec, partition, routing.schemas))
                there = replace(task, partition=partition, outputs=names)
                paths.append(names.path(number))
                file = write_data_file(paths[-1], rows_again, there, storage)
                written += [] if file is None else [file]
        except BaseException:
            storage.delete(paths)
            raise
    return tuple(written)


class _WaitingRows:
    """Rows in a folder, one Arrow IPC stream per partition."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[object, int] = {}
        self._partitions: list[tuple[PartitionValue, ...]] = []
        self._streams: list[pa.ipc.RecordBatchStreamWriter] = []

    def __enter__(self) -> _WaitingRows:
        return self

    def __exit__(self, *reason: object) -> None:
        self._close()

    def add(self, partition: tuple[PartitionValue, ...], rows: pa.RecordBatch) -> None:
        key = partition_key(0, partition)
        if key not in self._numbers:
            self._numbers[key] = len(self._partitions)
            self._partitions.append(partition)
            path = str(self._path(self._numbers[key]))
            self._streams.append(pa.ipc.new_stream(path, rows.schema, options=_IPC))
        self._streams[self._numbers[key]].write_batch(rows)

    def partitions(self) -> Iterator[tuple[tuple[PartitionValue, ...], Iterator[pa.RecordBatch]]]:
        """Yield each partition with its rows, which can be read once."""
        self._close()
        for number, partition in enumerate(self._partitions):
            yield partition, self._read(number)
            self._path(number).unlink()

    def _read(self, number: int) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(str(self._path(number))) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def _close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def _path(self, number: int) -> Path:
        return self._folder / str(number)


def _raw_value(values: pa.Array, kind: str) -> PartitionValue:
    """The first value, raw as in manifests; ``None``: null."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if not values[0].is_valid:
        return None
    if pa.types.is_decimal(values.type):
        value = values[0].as_py()
        digits = int("".join(map(str, value.as_tuple().digits)))
        return encode(kind, -digits if value.is_signed() else digits)
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    raw: PartitionValue = values[0].as_py()
    return raw
