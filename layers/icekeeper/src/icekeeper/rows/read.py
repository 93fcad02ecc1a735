"""Streams the live rows of a task's inputs in the schema of its outputs, one batch at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from icekeeper.errors import StorageError
from icekeeper.rows.apply_deletes import DeletedRows, deleted_rows_of, read_schema
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.lineage import resolved_lineage
from icekeeper.rows.opened_inputs import opened_inputs
from icekeeper.rows.parts import Part, portions
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.storage.storage import Storage
from icekeeper.task_cores import task_cores

__all__ = ["Tally", "read_rows"]


@dataclass(slots=True)
class Tally:
    """Counts the rows that were read, and how many of them are deleted."""

    read: int = 0
    deleted: int = 0

    @property
    def live(self) -> int:
        return self.read - self.deleted


def read_rows(
    task: ReadTask, storage: Storage, tally: Tally, deletes: DeletedRows | None = None
) -> Generator[pa.RecordBatch]:
    """The live rows of every input, in order, as batches of ``task.schema``; ``tally`` counts what was read.

    ``deletes`` is what :func:`.deleted_rows_of` found for these inputs, or for more; ``None``: it is found now.
    Threads that read ahead end with the iterator: close it where it may be left before its end (rule 190).

    Raises:
        StorageError: an input is missing, damaged, or holds another number of rows than its manifest says.
        MetadataUnreadable: a delete file is damaged.
        TableUnsupported: an input cannot be read as that schema.
    """
    outputs = task.schema["fields"]
    # Columns that only equality deletes still need are read, and dropped once they have been applied.
    wanted = read_schema(task)
    deletes = deletes or deleted_rows_of(task, storage)
    for held in portions(_parts(task, wanted, storage, tally), 0 if deletes is None else deletes.portion_rows):
        masks = [None] * len(held) if deletes is None else deletes.live_masks(held)
        for mask in masks:
            batch = held.pop(0).batch
            if mask is not None:
                rows = batch.num_rows
                batch = batch.filter(mask)
                tally.deleted += rows - batch.num_rows
            yield batch if batch.num_columns == len(outputs) else batch.select(range(len(outputs)))


def _parts(task: ReadTask, schema: Mapping[str, Any], storage: Storage, tally: Tally) -> Iterator[Part]:
    """All rows of the inputs in that schema, with their lineage."""
    ids = [int(field["id"]) for field in schema["fields"]]
    for source, batches in _inputs(task, schema, storage):
        first_row = source.first_row
        for batch in batches:
            tally.read += batch.num_rows
            yield Part(source, first_row, resolved_lineage(batch, ids, source, first_row))
            first_row += batch.num_rows
        found = first_row - source.first_row
        if found != source.record_count:
            raise StorageError(
                f"data file {source.path} holds {found} rows, its manifest says {source.record_count}; "
                "run 'icekeeper verify' on this table"
            )


def _inputs(
    task: ReadTask, schema: Mapping[str, Any], storage: Storage
) -> Iterator[tuple[InputFile, Iterator[pa.RecordBatch]]]:
    """Each input in order with its rows, on several cores decoded ahead."""
    inputs = (
        (source, projected_rows(task.readable(source), schema, storage, opened=stream))
        for source, stream in opened_inputs(task.inputs, storage)
    )
    if task_cores() == 1:
        return inputs
    # Work on one core starts without it.
    from icekeeper.rows.decoded_ahead import decoded_ahead

    return decoded_ahead(inputs, task, schema)
