"""Streams the live rows of a task's inputs in the schema of its outputs, one batch at a time."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from icekeeper.errors import FileUnreadable, StorageError
from icekeeper.machine.resources import task_cores
from icekeeper.rows.apply_deletes import DeletedRows, deleted_rows_of, read_schema
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.lineage import resolved_lineage
from icekeeper.rows.opened_inputs import opened_inputs
from icekeeper.rows.parts import Part, portions
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.storage.storage import Storage

__all__ = ["Tally", "read_rows", "unreadable_files"]


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
        FileUnreadable: an input or delete file is missing, damaged, of another schema, or holds another number of rows
            than its manifest says.
        StorageError: the store failed.
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


def unreadable_files(task: ReadTask, storage: Storage) -> dict[str, str]:
    """All inputs and delete files of a task that cannot be read, each with a sentence that names it.

    Reads everything once more: it is asked when reading has met one of them, so that the next attempt is the last.
    Empty where the store fails meanwhile.
    """
    try:
        return _unreadable(task, storage)
    except StorageError:
        return {}


def _unreadable(task: ReadTask, storage: Storage) -> dict[str, str]:
    found: dict[str, str] = {}
    rest = task
    while True:
        try:
            deletes = deleted_rows_of(rest, storage)
            break
        except FileUnreadable as problem:
            found[problem.path] = str(problem)
            left = _without(rest, found)
            if len(left.inputs) == len(rest.inputs):
                return found
            rest = left
    for source in rest.inputs:
        try:
            with closing(read_rows(replace(rest, inputs=(source,)), storage, Tally(), deletes)) as rows:
                for _ in rows:
                    pass
        except FileUnreadable as problem:
            found[problem.path] = str(problem)
    return found


def _without(task: ReadTask, unreadable: Collection[str]) -> ReadTask:
    """The task without the inputs that cannot be read, or need a delete file that cannot (rule 11)."""
    bad = {number for number, delete in enumerate(task.deletes) if delete.path in unreadable}
    left = (source for source in task.inputs if source.path not in unreadable and bad.isdisjoint(source.deletes))
    return replace(task, inputs=tuple(left))


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
            raise FileUnreadable(
                f"data file {source.path} holds {found} rows, its manifest says {source.record_count}; "
                "run 'icekeeper verify' on this table",
                path=source.path,
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
