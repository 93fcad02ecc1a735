"""The unit of work of compaction, run by local processes or by Spark: it takes a task and returns written files or an
error.

Rows of an old partition spec may be divided among partitions of the current spec (rule: rows-match-their-partition;
specification, "Partition Evolution").  Java's ``rewrite_data_files`` does so with every file of another spec.
Icekeeper does so only if that makes fewer files (iceberg 16189, 16514), and first reads the source columns to find
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import FileUnreadable, MaintenanceError, OutputUnproved, RowsNotKept, TableUnsupported
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.delete_scope import partition_key
from icekeeper.metadata.types import encode
from icekeeper.model import DataFile, PartitionValue
from icekeeper.operations.compaction.terms.output_names import partition_path
from icekeeper.operations.compaction.terms.output_partition import TargetField, target_fields
from icekeeper.operations.compaction.terms.recipe import KeyColumn
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult, RewriteTask, Routing
from icekeeper.operations.compaction.work.proof import write_proven
from icekeeper.operations.compaction.work.sort_files import write_clustered
from icekeeper.operations.compaction.work.sort_keys import SortKeys, column_values, holds_column
from icekeeper.operations.compaction.work.write_file import write_data_file, write_evenly
from icekeeper.rows.apply_deletes import deleted_rows_of
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.storage.local_files import scratch_folder
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage


def rewrite_group(task: RewriteTask, storage: Storage | None = None) -> RewriteResult:
    """Rewrite the live rows of a task's inputs: copied, in their order, sorted, or divided among partitions.

    The outputs are proven before the result reports them.  Errors that affect only this group are in the result, not
    raised.  ``storage`` may be shared with other tasks; ``None``: the task opens its own.
    """
    storage = storage or Storage(task.io_properties)
    result = RewriteResult(group_id=task.group_id, has_row_maps=task.keeps_row_maps)
    try:
        deletes = deleted_rows_of(task, storage)
        if task.copying is not None:
            # Imported here, so that workers that only decode start without it and without Thrift.
            from icekeeper.operations.compaction.work.copy_row_groups import write_copied

            copied = write_copied(task, task.copying, deletes, storage)
            if copied is not None:
                return copied
        write: Callable[[Iterator[pa.RecordBatch]], tuple[DataFile, ...] | None]
        write = partial(write_evenly, task=task, storage=storage)
        if task.routing is not None and makes_fewer_files(task, task.routing, storage):
            result.spec_id = task.routing.spec_id
            write = partial(write_partitions, task=task, routing=task.routing, storage=storage)
        if task.recipe is not None:
            write = partial(write_clustered, task=task, recipe=task.recipe, storage=storage)
        files = write_proven(task, storage, result, write, deletes)
        result.written, result.too_large = files or (), files is None
    except (RowsNotKept, OutputUnproved) as problem:
        result.error = str(problem)
    except FileUnreadable as problem:
        result.error, result.unreadable = str(problem), unreadable_files(task, storage)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as problem:
        result.error = f"{type(problem).__name__}: {problem}"
    return result


# A table may have thousands of partitions of tiny files.  If each group were a task of its own, each would open its own
# client of the object store and make its requests one after another.  A batch shares the client.  On an object store
# several groups of a batch are rewritten at once, because they spend nearly all of their time waiting for responses.

# Groups of a batch that are rewritten at once on an object store.
_AT_ONCE = 8
# Bytes of data files whose rows are in memory at once; in memory they are several times larger
# (rule: bounded-worker-memory).
_AT_ONCE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RewriteBatch:
    """One or more groups of a table that a worker rewrites."""

    tasks: tuple[RewriteTask, ...]

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadsBytes`."""
        return sum(task.input_bytes for task in self.tasks)

    def in_attempt(self, attempt: int) -> RewriteBatch:
        """The same groups with the file names of that attempt."""
        return RewriteBatch(tuple(task.in_attempt(attempt) for task in self.tasks))


def rewrite_batch(batch: RewriteBatch) -> list[RewriteResult]:
    """Rewrite all groups of a batch; an error of a group is in its result, as with :func:`.rewrite_group`."""
    storage = Storage(batch.tasks[0].io_properties)
    paths = (path for task in batch.tasks for path in (task.outputs.folder, *(source.path for source in task.inputs)))
    if len(batch.tasks) == 1 or all(is_local(path) for path in paths):
        return [rewrite_group(task, storage) for task in batch.tasks]
    # As many groups at once as fit into memory, even if they are the largest groups of the batch.
    largest = max(task.file_bytes for task in batch.tasks)
    at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // max(1, largest)))
    with WorkThreads(at_once, thread_name_prefix="small-groups") as pool:
        running = [pool.submit(rewrite_group, task, storage) for task in batch.tasks]
        return [future.result() for future in running]


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
        # Rows of a partition have equal keys, so partition values are computed once per key and batch.
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
            first = rows.slice(0, 1)
            values: list[PartitionValue] = []
            for transform in self._fields:
                raw = None
                if transform.name != "void":
                    raw = _raw_value(column_values(transform.source_id, self._schema, first), transform.kind)
                values.append(None if raw is None else transform.apply(raw))
            yield tuple(values), rows
            start = end


def makes_fewer_files(task: RewriteTask, routing: Routing, storage: Storage) -> bool:
    """Whether the rows have fewer partitions than the task has inputs; only the source columns are read.

    Always false if text that is not UTF-8 would name a partition, or if a file cannot be
    read or differs from its own partition (rule: leave-identity-only-with-equal-values).
    """
    sources = {int(field["source-id"]) for field in routing.spec["fields"]}
    sources.update(*(source.identity_values for source in task.inputs))
    tops = [field for field in task.schema["fields"] if holds_column(field, sources)]
    narrow = {**task.schema, "fields": tops}
    router = PartitionRouter(routing, narrow)
    seen: set[object] = set()
    # Deleted rows count too, because their deletes may need columns that are not read here.
    inputs = tuple(replace(source, deletes=(), must_agree=True) for source in task.inputs)
    looking = replace(task, schema=narrow, inputs=inputs, deletes=(), key_fields=())
    try:
        for batch in read_rows(looking, storage, Tally()):
            seen.update(partition_key(routing.spec_id, partition) for partition, _ in router.split(batch))
            if len(seen) > task.most_partitions:
                return False
    except (UnicodeDecodeError, FileUnreadable):
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
    waiting: dict[object, tuple[tuple[PartitionValue, ...], Path, pa.ipc.RecordBatchStreamWriter]] = {}
    written: list[DataFile] = []
    paths: list[str] = []
    with scratch_folder("icekeeper-partitions-") as folder, ExitStack() as streams:
        for batch in batches:
            for partition, rows in router.split(batch):
                key = partition_key(0, partition)
                if key not in waiting:
                    stored = folder / str(len(waiting))
                    stream = streams.enter_context(pa.ipc.new_stream(str(stored), rows.schema, options=_IPC))
                    waiting[key] = partition, stored, stream
                waiting[key][2].write_batch(rows)
        streams.close()
        try:
            for number, (partition, stored, _) in enumerate(waiting.values()):
                names = replace(task.outputs, partition_path=partition_path(routing.spec, partition, routing.schemas))
                there = replace(task, partition=partition, outputs=names)
                paths.append(names.path(number))
                file = write_data_file(paths[-1], _stored_rows(stored), there, storage)
                written += [] if file is None else [file]
                stored.unlink()
        except BaseException:
            storage.delete(paths)
            raise
    return tuple(written)


def _stored_rows(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


def _raw_value(values: pa.Array, kind: str) -> PartitionValue:
    """The first value as a raw value; ``None`` for null."""
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
