"""Streams the rows of input files in the table's current schema, one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.errors import MaintenanceError, StorageError
from icekeeper.operations.compaction.project import Projection
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.storage import Storage

__all__ = ["BATCH_ROWS", "read_rows"]

# Measured: 128 Ki rows keep a worker's memory flat at full speed (PLATFORM facts, streaming merge).
BATCH_ROWS = 128 * 1024


def read_rows(task: RewriteTask, table_schema: dict[str, object], storage: Storage) -> Iterator[pa.RecordBatch]:
    """Batches of every input in order; memory is bounded by one row group of one input.

    Raises:
        StorageError: an input is missing, damaged, or holds another number of rows than its manifest says.
        TableUnsupported: an input cannot be read as the current schema.
    """
    for source in task.inputs:
        rows = 0
        try:
            with storage.open_input(source.path) as stream:
                file = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us", pre_buffer=False)
                projection = Projection(file.schema_arrow, table_schema, task.identity_values, task.name_mapping_json)
                for batch in _batches(file, projection.file_columns):
                    rows += batch.num_rows
                    yield projection.apply(batch)
        except MaintenanceError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StorageError(f"data file {source.path} cannot be read: {error}") from error
        if rows != source.record_count:
            raise StorageError(
                f"data file {source.path} holds {rows} rows, its manifest says {source.record_count}; "
                "run 'icekeeper verify' on this table"
            )


def _batches(file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    if not columns:  # every column of the table is newer than the file: only its row count matters
        for start in range(0, file.metadata.num_rows, BATCH_ROWS):
            rows = min(BATCH_ROWS, file.metadata.num_rows - start)
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return
    # A dot in a column name means a path to pyarrow, so such files are read whole.
    wanted = None if any("." in name for name in columns) else columns
    yield from file.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False)
