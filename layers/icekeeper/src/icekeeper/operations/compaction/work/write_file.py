"""Write Parquet data files with the options in the table's properties, and return their manifest entries.

Sources: Iceberg table properties ``write.parquet.*``; specification, "Parquet".  A file is written row group by row
group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.machine.resources import task_cores
from icekeeper.model import DataFile
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask
from icekeeper.operations.compaction.terms.write_properties import (
    dictionary_bytes,
    metrics_modes,
    row_group_bytes,
    writer_options,
)
from icekeeper.operations.compaction.work.dictionaries import columns_without_dictionary
from icekeeper.operations.compaction.work.file_entry import PassingCounts, entry_of_file
from icekeeper.operations.compaction.work.row_maps import RowMapWriter
from icekeeper.rows.arrow_schema import arrow_schema, is_annotated
from icekeeper.storage.arrow_files import WriteOnly
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage


def write_evenly(rows: Iterator[pa.RecordBatch], task: RewriteTask, storage: Storage) -> tuple[DataFile, ...]:
    """Write rows in their order into ``task.output_count`` files of equal numbers of rows; fewer files if few rows are
    live.

    Raises:
        StorageError: an input cannot be read or an output cannot be written; no output of this attempt remains.
    """
    per_file = max(1, math.ceil(task.record_count / task.output_count))
    source = rows

    def rows_of_one_file() -> Iterator[pa.RecordBatch]:
        """The next rows; ``rows`` then has the remaining rows, beginning with the rest of the last batch."""
        nonlocal rows
        wanted = per_file
        while wanted > 0 and (batch := next(rows, None)) is not None:
            if batch.num_rows > wanted:
                rows = chain([batch.slice(wanted)], source)
                batch = batch.slice(0, wanted)
            wanted -= batch.num_rows
            yield batch

    paths = [task.outputs.path(number) for number in range(task.output_count)]
    files: list[DataFile] = []
    try:
        for path in paths:
            # The last file takes all remaining rows, in case the counts in manifest entries are too small.
            file = write_data_file(path, rows if path == paths[-1] else rows_of_one_file(), task, storage)
            files += [] if file is None else [file]
    except BaseException:
        storage.delete(paths)
        raise
    return tuple(files)


# Bytes of memory besides the rows of a row group.  First, data of the file that waits for its upload: less than Arrow's
# own streams keep.
_ROOM = 40 * 1024 * 1024
# Sorted rows, which stay in memory while row groups are made from them.
_SORTED_BYTES = 64 * 1024 * 1024
# The batch from which live rows are copied.
_FILTERED_BYTES = 32 * 1024 * 1024
# Keys of equality deletes, and the rows that are compared with them at once.
_LOOKUP_BYTES = 24 * 1024 * 1024
# A file has at most about this many row groups, however small the table's setting for them is.
_MOST_ROW_GROUPS = 1000


def write_data_file(
    path: str,
    batches: Iterable[pa.RecordBatch],
    task: RewriteTask,
    storage: Storage,
    on_row_group: Callable[[int], None] | None = None,
) -> DataFile | None:
    """Write batches of ``task.schema`` to ``path`` and return the entry; ``None`` and no file if there are no rows.

    ``on_row_group`` is called with the file's size so far, each time all batches read so far are written.

    Raises:
        StorageError: the file cannot be written.
        PolicyError: a ``write.parquet.*`` property is malformed.
    """
    counts = PassingCounts(task.schema)

    def options(first: pa.Table) -> dict[str, Any]:
        # The first row group has been counted; for later row groups only the entries of the inputs are known.
        unmeasured = task.misread_columns | counts.misread_columns
        plain = columns_without_dictionary(first, counts.leaves, dictionary_bytes(task.table_properties))
        return writer_options(task.table_properties, counts.leaves, first.num_rows, unmeasured, plain)

    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    row_maps = RowMapWriter(path, task, storage) if task.keeps_row_maps else nullcontext()
    with _Output(path, task, options, storage) as output, row_maps as row_map:
        for batch in batches:
            if not batch.num_rows:
                continue
            if row_map is not None:
                batch = row_map.taken_from(batch)
            counts.add(batch)
            pending.append(batch)
            pending_bytes += batch.nbytes
            if pending_bytes >= output.row_group_arrow_bytes:
                output.write(pending)
                pending, pending_bytes = [], 0
                if on_row_group is not None:
                    on_row_group(output.size)
        if pending:
            output.write(pending)
    if output.footer is None:
        return None
    modes = metrics_modes(task.schema, task.table_properties)
    return entry_of_file(path, output.size, task.partition, output.footer, counts, modes)


def _row_group_memory(path: str, task: RewriteTask, storage: Storage) -> int:
    """Bytes for the rows of a row group: the task's memory minus its other needs (rule: bounded-worker-memory)."""
    besides = 0 if task.recipe is None else _SORTED_BYTES
    if task.deletes:
        besides += _FILTERED_BYTES
    if any(delete.equality_ids for delete in task.deletes):
        besides += _LOOKUP_BYTES
    if storage.uses_boto3(path):
        besides += _ROOM
    return max(task.row_group_memory_bytes // 2, task.row_group_memory_bytes - besides)


class _Output:
    """The file being written; it is opened with the first row group, so that no file exists without rows."""

    def __init__(
        self, path: str, task: RewriteTask, options: Callable[[pa.Table], Mapping[str, Any]], storage: Storage
    ) -> None:
        """``options`` returns the writer's options for the rows of the first row group."""
        self.size = 0
        self.footer: pq.FileMetaData | None = None
        self._path = path
        self._schema = arrow_schema(task.schema)
        self._options = options
        self._storage = storage
        # The target size in the file, and the largest size in memory, in which rows are several times larger.
        self._row_group_bytes = row_group_bytes(task.table_properties)
        self._row_group_memory = _row_group_memory(path, task, storage)
        self._arrow_bytes = 0
        self._opened = ExitStack()
        self._sink: Any = None
        self._writer: RowGroupWriter | None = None

    @property
    def row_group_arrow_bytes(self) -> int:
        """Arrow bytes to collect for a row group of the target size, estimated from the row groups so far."""
        wanted = self._row_group_bytes
        if self._arrow_bytes:
            # More row groups would make the footer too large for readers.
            wanted = max(wanted, self._sink.tell() // _MOST_ROW_GROUPS)
            wanted = self._arrow_bytes * wanted // max(1, self._sink.tell())
        return min(wanted, self._row_group_memory)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Write the batches as a row group; the list is emptied."""
        table = pa.Table.from_batches(batches, self._schema)
        batches.clear()
        with self._storage.translated(self._path):
            if self._writer is None:
                options = self._options(table)
                self._sink = self._opened.enter_context(bounded_output(self._storage, self._path, _ROOM))
                self._writer = row_group_writer(self._sink, table, options)
            self._arrow_bytes += table.nbytes
            rows = [table]
            del table
            self._writer.write_row_group(rows)
            self.size = self._sink.tell()

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *error: Any) -> None:
        """Complete the file; after an error, remove it."""
        if error[1] is not None:
            self._opened.__exit__(*error)
            return
        with self._storage.translated(self._path), self._opened:
            if self._writer is not None:
                self.footer = self._writer.close()
                self.size = self._sink.tell()


# All cores of the task encode a row group; the bytes are the same.

# Encoding a smaller row group takes no longer than dividing the work.
_WORTH_THREADS_BYTES = 4 * 1024 * 1024
# After a row group of this size, decoding has freed enough memory to release it.
_WORTH_RELEASE_BYTES = 64 * 1024 * 1024


class RowGroupWriter(Protocol):
    """Writes the row groups of a file."""

    def write_row_group(self, rows: list[pa.Table]) -> None:
        """Write the only table in ``rows`` as a row group, or as several if it has too many rows.

        The table is removed from the list, so that its memory can be freed before all of it is written.
        """

    def close(self) -> pq.FileMetaData | None:
        """Write the end of the file and return the footer, which may be missing after an error."""


def row_group_writer(sink: Any, first: pa.Table, options: Mapping[str, Any]) -> RowGroupWriter:
    """A writer whose first table will be ``first``; ``options`` are those of ``ParquetWriter``."""
    cores = task_cores()
    if cores > 1 and first.num_columns > 1 and first.nbytes >= _WORTH_THREADS_BYTES:
        # Imported here, so that tasks with small files or a single core start without it and without Thrift.
        from icekeeper.operations.compaction.work.side_by_side import side_by_side_writer

        writer = side_by_side_writer(sink, first, options, cores)
        if writer is not None:
            return writer
    return _ColumnByColumn(sink, first.schema, options)


class _HeldBack(WriteOnly):
    """A sink that can keep the last bytes in memory, so that they can be changed."""

    closed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._kept: bytearray | None = None

    def write(self, data: Any) -> int:
        if self._kept is None:
            self._sink.write(data)
        else:
            self._kept += memoryview(data)
        return len(data)

    def tell(self) -> int:
        """The number of bytes written, including kept bytes."""
        return int(self._sink.tell()) + len(self._kept or b"")

    def flush(self) -> None:
        """Do nothing; the sink itself is flushed when it is closed."""

    def keep(self) -> bytearray:
        """Keep all bytes from now on, in the returned array."""
        self._kept = bytearray()
        return self._kept


class _ColumnByColumn:
    """Arrow's own writer."""

    def __init__(self, sink: Any, schema: pa.Schema, options: Mapping[str, Any]) -> None:
        self._sink, self._held_back = sink, _HeldBack(sink)
        self._footers: list[pq.FileMetaData] = []
        self._schema = schema
        self._writer = pq.ParquetWriter(self._held_back, schema, metadata_collector=self._footers, **options)

    def write_row_group(self, rows: list[pa.Table]) -> None:
        table = rows.pop()
        if table.nbytes >= _WORTH_RELEASE_BYTES:
            # Release the memory that decoding has freed.
            pa.default_memory_pool().release_unused()
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> pq.FileMetaData | None:
        end = self._held_back.keep()
        self._writer.close()
        (footer,) = self._footers
        if footer.num_row_groups > 1 or is_annotated(self._schema):
            from icekeeper.row_group_copy.annotations import annotated
            from icekeeper.row_group_copy.footer import FRAME, framed
            from icekeeper.row_group_copy.new_footer import without_partial_bounds

            start = len(end) - FRAME - int.from_bytes(end[-FRAME:-4], "little")
            # A column has bounds in all row groups or in none.
            thrift = without_partial_bounds(bytes(end[start:-FRAME]), footer)
            end[start:] = framed(annotated(thrift, self._schema) if is_annotated(self._schema) else thrift)
        self._sink.write(end)
        return footer
