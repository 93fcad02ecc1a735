"""Writes one Parquet data file as the table asks, row group by row group, and describes it for a manifest.

Source: Iceberg table properties ``write.parquet.*``; specification, "Parquet".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.operations.compaction.writing.dictionaries import columns_without_dictionary
from icekeeper.operations.compaction.writing.metrics import PassingCounts, file_metrics
from icekeeper.operations.compaction.writing.metrics_modes import metrics_modes
from icekeeper.operations.compaction.writing.parquet_options import dictionary_bytes, row_group_bytes, writer_options
from icekeeper.operations.compaction.writing.row_group_writer import RowGroupWriter, row_group_writer
from icekeeper.rows.arrow_schema import arrow_schema, leaf_columns
from icekeeper.storage.storage import Storage

__all__ = ["write_data_file"]

# What waits to be sent of a file, beside the rows of a row group: less than Arrow's own streams keep (platform 65).
_ROOM = 40 * 1024 * 1024
# Rows that are sorted stay in memory while row groups are made of them.
_SORTED_BYTES = 64 * 1024 * 1024
# A row group has at least the thousandth part of the file before it.
_MOST_ROW_GROUPS = 1000
# Of a batch, the rows that are left are a copy; all of them stay in memory meanwhile.
_FILTERED_BYTES = 32 * 1024 * 1024
# Of equality deletes the keys, and rows that wait until many keys are looked up at once.
_LOOKUP_BYTES = 24 * 1024 * 1024


def write_data_file(
    path: str,
    batches: Iterable[pa.RecordBatch],
    task: RewriteTask,
    storage: Storage,
    on_row_group: Callable[[int], None] | None = None,
) -> DataFile | None:
    """Write batches of ``task.schema`` to ``path``; the entry of the file, or ``None`` and no file without rows.

    ``on_row_group`` is told the file's bytes so far whenever all batches taken until then are written.

    Raises:
        StorageError: the store refused the file.
        PolicyError: a ``write.parquet.*`` property is malformed.
    """
    leaves = leaf_columns(task.schema)
    schema = arrow_schema(task.schema)
    counts = PassingCounts(leaves)
    counts.prepare(schema)

    def options(first: pa.Table) -> dict[str, Any]:
        # The first row group has passed by now; of later ones only the entries of the inputs tell.
        unmeasured = task.misread_columns | counts.misread_columns
        plain = columns_without_dictionary(first, leaves, dictionary_bytes(task.table_properties))
        return writer_options(task.table_properties, leaves, first.num_rows, unmeasured, plain)

    memory = _row_group_memory(path, task, storage)
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    with _Output(path, schema, options, row_group_bytes(task.table_properties), memory, storage) as output:
        for batch in batches:
            if not batch.num_rows:
                continue
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
    return None if output.footer is None else _data_file(path, output.size, output.footer, counts, task)


def _row_group_memory(path: str, task: RewriteTask, storage: Storage) -> int:
    """Bytes for the rows of a row group: what the task has for them, less what it holds besides (rule 171)."""
    besides = 0 if task.recipe is None else _SORTED_BYTES
    if task.deletes:
        besides += _FILTERED_BYTES
    if any(delete.equality_ids for delete in task.deletes):
        besides += _LOOKUP_BYTES
    if storage.uses_boto3(path):
        besides += _ROOM
    return max(task.row_group_memory_bytes // 2, task.row_group_memory_bytes - besides)


def _data_file(path: str, size: int, footer: pq.FileMetaData, counts: PassingCounts, task: RewriteTask) -> DataFile:
    metrics = file_metrics(footer, counts, metrics_modes(task.schema, task.table_properties))
    return DataFile(
        content=FileContent.DATA,
        file_path=path,
        file_format="PARQUET",
        partition=task.partition,
        record_count=footer.num_rows,
        file_size_in_bytes=size,
        column_sizes=metrics.column_sizes,
        value_counts=metrics.value_counts,
        null_value_counts=metrics.null_value_counts,
        nan_value_counts=metrics.nan_value_counts,
        lower_bounds=metrics.lower_bounds,
        upper_bounds=metrics.upper_bounds,
        split_offsets=metrics.split_offsets,
    )


class _Output:
    """The file being written; it is opened with the first row group, so that no rows leave no file."""

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        options: Callable[[pa.Table], Mapping[str, Any]],
        row_group_bytes: int,
        row_group_memory: int,
        storage: Storage,
    ) -> None:
        """``options`` returns the writer's options, by the rows of the first row group.

        ``row_group_bytes`` of the file are what a row group aims at, ``row_group_memory`` the most bytes in memory that
        it may be made of: rows take several times as much there as in the file.
        """
        self.schema = schema
        self.size = 0
        self.footer: pq.FileMetaData | None = None
        self._path = path
        self._options = options
        self._storage = storage
        self._row_group_bytes, self._row_group_memory = row_group_bytes, row_group_memory
        self._arrow_bytes = 0
        self._opened = ExitStack()
        self._sink: Any = None
        self._writer: RowGroupWriter | None = None

    @property
    def row_group_arrow_bytes(self) -> int:
        """Arrow bytes to collect for a row group of the wanted encoded size, judged by the row groups so far."""
        wanted = self._row_group_bytes
        if self._arrow_bytes:
            # However small the table wants them, a file has some thousand row groups at most, which fit into its footer
            # and into the memory of its readers (rule 261).
            wanted = max(wanted, self._sink.tell() // _MOST_ROW_GROUPS)
            wanted = self._arrow_bytes * wanted // max(1, self._sink.tell())
        return min(wanted, self._row_group_memory)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Write the batches as one row group; the list is emptied."""
        table = pa.Table.from_batches(batches, self.schema)
        batches.clear()
        with self._storage.translated(self._path):
            if self._writer is None:
                options = self._options(table)
                self._sink = self._opened.enter_context(_opened(self._storage, self._path))
                self._writer = row_group_writer(self._sink, table, options)
            self._arrow_bytes += table.nbytes
            rows = [table]
            del table
            self._writer.write_row_group(rows)
            self.size = self._sink.tell()

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *error: Any) -> None:
        """Complete the file, or after an error leave none."""
        if error[1] is not None:
            self._opened.__exit__(*error)
            return
        with self._storage.translated(self._path), self._opened:
            if self._writer is not None:
                self.footer = self._writer.close()
                self.size = self._sink.tell()


def _opened(storage: Storage, path: str) -> AbstractContextManager[Any]:
    if storage.uses_boto3(path):
        from icekeeper.storage.part_upload import bounded_output  # for S3 alone

        return bounded_output(storage, path, _ROOM)
    stream: AbstractContextManager[Any] = storage.open_output(path)
    return stream
