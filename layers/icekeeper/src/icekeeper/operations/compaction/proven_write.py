"""Writes the live rows of a task's inputs, and proves that all of them are in what was written (rule 32)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from icekeeper.errors import MaintenanceError, OutputUnproved, RowsNotKept
from icekeeper.model import DataFile
from icekeeper.operations.compaction.proof import Evidence, RowProof, disproof, proof_of_file
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.operations.compaction.writing.parquet_options import row_group_bytes
from icekeeper.rows.apply_deletes import DeletedRows
from icekeeper.rows.joined_batches import joined_batches
from icekeeper.rows.read import Tally, read_rows
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.storage import Storage

__all__ = ["write_proven"]

# A column of so many bytes takes longer to look at than to ask for; a copy of them is soon made.
_MOST_BATCH_BYTES = 4 * 1024 * 1024
_BATCHES_PER_ROW_GROUP = 32


def write_proven(
    task: RewriteTask,
    storage: Storage,
    tally: Tally,
    write: Callable[[Iterator[pa.RecordBatch]], tuple[DataFile, ...] | None],
    deletes: DeletedRows | None = None,
) -> tuple[DataFile, ...] | None:
    """What ``write`` made of the live rows, as it gave it; ``None`` is passed on and proves nothing.

    ``tally`` counts what was read, added to what it counted before; ``deletes`` is as for :func:`.read_rows`.

    Raises:
        StorageError: an input cannot be read or an output not written.
        RowsNotKept: the files do not hold the rows that were read.
        OutputUnproved: the store failed before that was known; it was asked to delete the files (rule 183).
    """
    counted = Tally()
    proof = RowProof(task.schema, task.proof)
    try:
        with closing(read_rows(task, storage, counted, deletes)) as rows:  # which ends its threads (rule 190)
            files = write(proof.watch(joined_batches(rows, _batch_bytes(task))))
    finally:
        tally.read += counted.read
        tally.deleted += counted.deleted
    problem = None if files is None else _disproof(task, counted, proof, files, storage)
    if problem is not None:
        raise RowsNotKept(problem, [file.file_path for file in files or ()])
    return files


def _batch_bytes(task: RewriteTask) -> int:
    """A small part of what a row group is made of, for it ends where a batch ends."""
    row_group = min(row_group_bytes(task.table_properties), task.row_group_memory_bytes)
    return min(_MOST_BATCH_BYTES, row_group // _BATCHES_PER_ROW_GROUP)


def _disproof(
    task: RewriteTask, tally: Tally, proof: RowProof, files: Sequence[DataFile], storage: Storage
) -> str | None:
    """Why the written files do not hold the rows that were read, in words; ``None`` when they do."""
    try:
        found = [proof_of_file(file.file_path, task.schema, storage, task.proof) for file in files]
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        if failed_by_store(error):
            storage.delete([file.file_path for file in files])
            raise OutputUnproved(error) from error
        return f"what was written cannot be read back: {error}"
    return disproof(
        proof.evidence,
        sum(found, Evidence()),
        proof.names,
        promised=sum(source.record_count for source in task.inputs),
        rows_read=tally.read,
        rows_deleted=tally.deleted,
    )
