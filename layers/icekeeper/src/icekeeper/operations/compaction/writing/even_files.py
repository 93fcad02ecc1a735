"""Writes rows in the order in which they come, into one file or into several of the same number of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa

from icekeeper.model import DataFile
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.operations.compaction.writing.write import write_data_file
from icekeeper.storage.storage import Storage

__all__ = ["write_evenly"]


def write_evenly(rows: Iterator[pa.RecordBatch], task: RewriteTask, storage: Storage) -> tuple[DataFile, ...]:
    """Write ``task.output_count`` files, or fewer if deletes leave few rows.

    Raises:
        StorageError: an input cannot be read or an output not written; no output of this attempt is left.
    """
    per_file = max(1, math.ceil(sum(source.record_count for source in task.inputs) / task.output_count))
    source = _Rows(rows)
    paths = [task.outputs.path(number) for number in range(task.output_count)]
    try:
        files = [
            # The last one takes all that is left, in case manifest entries say too few rows.
            write_data_file(path, source.next_rows(None if path == paths[-1] else per_file), task, storage)
            for path in paths
        ]
    except BaseException:
        storage.delete(paths)
        raise
    return tuple(file for file in files if file is not None)


class _Rows:
    """Batches that can be cut at any row."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None

    def next_rows(self, count: int | None) -> Iterator[pa.RecordBatch]:
        """The next ``count`` rows; ``None``: all that are left."""
        while count is None or count > 0:
            batch = self._left if self._left is not None else next(self._batches, None)
            self._left = None
            if batch is None:
                return
            if count is not None and batch.num_rows > count:
                self._left = batch.slice(count)
                batch = batch.slice(0, count)
            count = None if count is None else count - batch.num_rows
            yield batch
