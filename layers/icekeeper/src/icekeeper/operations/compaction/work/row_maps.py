"""Row maps record which row of its group each row of a sorted or routed output is.

Deletes may land on the inputs while a group is rewritten.  To forward them to the outputs, the committing process must
know the position of each row.  If rows keep their order, it can count (:mod:`.forward_deletes`).  If they do not, each
row carries its number within the group, and the worker writes the numbers beside each output, in the order of the
output, as an Arrow IPC stream.  A map takes three to four bytes per row and exists as long as the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from icekeeper.errors import StorageError
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask, row_map_path
from icekeeper.rows.read import ROW_NUMBER
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage

_IPC = pa.ipc.IpcWriteOptions(compression="zstd")
_SCHEMA = pa.schema([(ROW_NUMBER, pa.uint64())])
_BATCH_ROWS = 256 * 1024


class RowMapWriter:
    """Takes the row numbers out of the batches of an output and writes them to its row map."""

    def __init__(self, data_file: str, task: RewriteTask, storage: Storage) -> None:
        self._path = row_map_path(data_file)
        self._columns = len(task.schema["fields"])
        self._storage = storage
        self._opened = ExitStack()
        self._held: list[pa.Array] = []
        self._rows = 0
        self._stream: Any = None

    def taken_from(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Record the batch's row numbers and return the batch without them."""
        self._held.append(batch.column(self._columns).cast(pa.uint64()))
        self._rows += batch.num_rows
        if self._rows >= _BATCH_ROWS:
            self._flush()
        return batch.select(range(self._columns))

    def _flush(self) -> None:
        with self._storage.translated(self._path):
            if self._stream is None:
                sink = self._opened.enter_context(bounded_output(self._storage, self._path))
                self._stream = self._opened.enter_context(pa.ipc.new_stream(sink, _SCHEMA, options=_IPC))
            self._stream.write_batch(pa.record_batch([pa.concat_arrays(self._held)], schema=_SCHEMA))
        self._held, self._rows = [], 0

    def __enter__(self) -> RowMapWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the map.  After an error, the map is left to the job's record, which deletes it together with its
        data file."""
        if error is not None:
            self._opened.__exit__(kind, error, trace)
            return
        if self._held:
            self._flush()
        with self._storage.translated(self._path):
            self._opened.close()


def mapped_rows(data_file: str, numbers: BitMap64, storage: Storage) -> tuple[BitMap64, int]:
    """The positions in an output of the rows with these numbers, and how many rows its map has.

    Raises:
        StorageError: the map is missing or cannot be read.
    """
    found, wanted, start = BitMap64(), pa.array(numbers.to_array(), pa.uint64()), 0
    path = row_map_path(data_file)
    for batch in _batches(path, storage):
        column = batch.column(0)
        hits = pc.indices_nonzero(pc.is_in(column, wanted))
        found.update(pc.add(hits.cast(pa.uint64()), start).to_pylist())
        start += len(column)
    return found, start


def _batches(path: str, storage: Storage) -> Iterator[pa.RecordBatch]:
    try:
        with storage.translated(path), storage.open_input(path) as stream, pa.ipc.open_stream(stream) as batches:
            yield from batches
    except (pa.ArrowException, OSError) as error:
        raise StorageError(f"cannot read row map {path}: {error}") from error
