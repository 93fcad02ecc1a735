"""Streams the live rows of a read task's inputs; small inputs are fetched and decoded ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from icekeeper.errors import FileUnreadable, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import on_cores, task_cores
from icekeeper.rows.apply_deletes import DeletedRows, Part, deleted_rows_of, portions, read_schema
from icekeeper.rows.arrow_schema import leaf_columns, likely_row_bytes
from icekeeper.rows.file_rows import BATCH_ROWS, projected_rows, reading
from icekeeper.rows.read_task import InputFile, ReadTask, resolved_lineage
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

ROW_NUMBER = "_row_number"
"""The column of :attr:`.InputFile.number_from`."""


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
    """The live rows of every input, in order, as batches of ``task.schema``; ``tally`` counts them.

    If inputs number their rows, the numbers are in a last column.

    ``deletes``: the result of :func:`.deleted_rows_of` for at least these inputs; with ``None``, this function calls
    it.  Threads that read ahead end with the iterator.  Close the iterator if you may stop early.

    Raises:
        FileUnreadable: an input or delete file is missing, damaged, of another schema, or its number of rows differs
            from its manifest entry.
        StorageError: the store failed.
    """
    deletes = deletes or deleted_rows_of(task, storage)
    if deletes is None:
        for part in _parts(task, task.schema, storage, tally):
            yield part.batch
        return
    # Columns that only equality deletes need are dropped once the deletes are applied.
    columns = len(task.schema["fields"])
    for held in portions(_parts(task, read_schema(task), storage, tally), deletes.portion_rows):
        for mask in deletes.live_masks(held):
            batch = held.pop(0).batch
            if mask is not None:
                rows = batch.num_rows
                batch = batch.filter(mask)
                tally.deleted += rows - batch.num_rows
            if task.key_fields:
                batch = batch.select([*range(columns), *range(columns + len(task.key_fields), batch.num_columns)])
            yield batch


def unreadable_files(task: ReadTask, storage: Storage) -> dict[str, str]:
    """All inputs and delete files of a task that cannot be read: path → a sentence that names the file.

    It reads everything again.  Call it after an unreadable file was found, so that the next attempt can leave out all
    unreadable files.  The result is empty if the store fails.
    """
    found: dict[str, str] = {}
    while True:
        try:
            deletes = deleted_rows_of(task, storage)
            break
        except FileUnreadable as problem:
            found[problem.path] = str(problem)
        except StorageError:
            return {}
        # Inputs that need an unreadable delete file are left out, too (rule: unreadable-delete-blocks-its-files).
        bad = {number for number, delete in enumerate(task.deletes) if delete.path in found}
        left = tuple(s for s in task.inputs if s.path not in found and bad.isdisjoint(s.deletes))
        if len(left) == len(task.inputs):
            return found
        task = replace(task, inputs=left)
    for source in task.inputs:
        try:
            with closing(read_rows(replace(task, inputs=(source,)), storage, Tally(), deletes)) as rows:
                for _ in rows:
                    pass
        except FileUnreadable as problem:
            found[problem.path] = str(problem)
        except StorageError:
            return {}
    return found


def _parts(task: ReadTask, schema: Mapping[str, Any], storage: Storage, tally: Tally) -> Iterator[Part]:
    """All rows of the inputs in ``schema``, with their lineage."""
    ids = [int(field["id"]) for field in schema["fields"]]
    inputs = (
        (source, projected_rows(task.readable(source), schema, storage, opened=stream))
        for source, stream in opened_inputs(task.inputs, storage)
    )
    for source, batches in inputs if task_cores() == 1 else decoded_ahead(inputs, task, schema):
        first_row = source.first_row
        for batch in batches:
            tally.read += batch.num_rows
            batch = resolved_lineage(batch, ids, source, first_row)
            if source.number_from is not None:
                number = source.number_from + first_row
                batch = batch.append_column(ROW_NUMBER, pa.arange(number, number + batch.num_rows))
            yield Part(source, first_row, batch)
            first_row += batch.num_rows
        found = first_row - source.first_row
        if found != source.record_count:
            raise FileUnreadable(
                f"data file {source.path} has {found} rows, but its manifest says {source.record_count}; "
                "run 'icekeeper verify' on this table",
                path=source.path,
            )


# Small files of an object store are fetched whole, several at the same time, before they are needed.  Read column by
# column, a small file of ten columns would take a dozen consecutive requests of several milliseconds each.

_OPENED_AHEAD_BYTES = 16 * 1024 * 1024
_AHEAD_FILES = 64
_THREADS = 8


def opened_inputs(inputs: Sequence[InputFile], storage: Storage) -> Iterator[tuple[InputFile, pa.NativeFile | None]]:
    """Each input in order with its bytes; ``None``: the caller opens it.

    Raises:
        FileUnreadable: the next input is missing.
        StorageError: the store failed.
    """
    waiting = deque(inputs)
    ahead: deque[tuple[InputFile, Future[pa.NativeFile | None] | None]] = deque()
    held = 0
    with WorkThreads(_THREADS, thread_name_prefix="icekeeper-fetch") as pool:
        try:
            while ahead or waiting:
                while waiting and (not ahead or (held < _OPENED_AHEAD_BYTES and len(ahead) < _AHEAD_FILES)):
                    source = waiting.popleft()
                    ahead.append((source, pool.submit(_whole, source, storage) if _fits_ahead(source) else None))
                    held += _held_bytes(source)
                source, fetched = ahead.popleft()
                yield source, None if fetched is None else fetched.result()
                del fetched
                held -= _held_bytes(source)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _fits_ahead(source: InputFile) -> bool:
    return source.file_size_in_bytes <= _SMALL_BYTES and not is_local(source.path)


def _held_bytes(source: InputFile) -> int:
    return source.file_size_in_bytes if _fits_ahead(source) else 0


def _whole(source: InputFile, storage: Storage) -> pa.NativeFile | None:
    """The bytes of a file; ``None`` if it is larger than its manifest entry says and does not fit."""
    with (
        reading(source.path, storage),
        storage.translated(source.path),
        storage.open_input(source.path, source.file_size_in_bytes) as stream,
    ):
        return pa.BufferReader(stream.read_buffer()) if stream.size() <= _SMALL_BYTES else None


# Small inputs are decoded ahead in threads, while the caller works on the rows before them.
#
# Arrow decodes the columns of a file in parallel.  For a small file this is slower, because decoding a column takes
# less time than passing it to a thread.  So a thread decodes several small files whole, within a memory limit.

InputRows = tuple[InputFile, Iterator[pa.RecordBatch]]
"""An input and its rows, which may already be decoded."""

_SMALL_BYTES = 4 * 1024 * 1024
"""The largest file that is fetched and decoded whole."""
_PORTION_BYTES = 1024 * 1024
"""Bytes of rows that a thread decodes at a time, because passing a single tiny file takes as long as decoding it."""
_MOST_OF_PORTION_BYTES = 2 * _PORTION_BYTES
"""Once the decoded rows of a portion reach this, the caller decodes the rest; estimates may be too low."""
_WORTH_THREADS_BYTES = 2 * _PORTION_BYTES
"""Bytes of rows of small files from which threads are used: fewer rows are decoded before a thread has started."""
_AHEAD_BYTES = 8 * 1024 * 1024
"""Bytes of rows that are decoded before they are needed."""


def decoded_ahead(inputs: Iterator[InputRows], task: ReadTask, schema: Mapping[str, Any]) -> Generator[InputRows]:
    """The inputs of a task in their order; read all rows of an input before you request the next input.

    ``inputs`` have their rows in ``schema``, not yet decoded.  Tiny files are decoded on all cores of the task, other
    files on all cores but one.  With a single core or few rows, the caller decodes.  Closing the iterator ends the
    threads.  A decoding error is raised when the rows of that input are read.
    """
    # An estimate, used until some rows are decoded.
    row_bytes = float(max(1, likely_row_bytes(leaf.iceberg_type for leaf in leaf_columns(schema))))
    small = [source.record_count for source in task.inputs if _is_small(source)]
    small_bytes, threads = sum(small) * row_bytes, task_cores()
    if threads == 1 or small_bytes <= _WORTH_THREADS_BYTES:
        yield from inputs
        return
    if small_bytes >= _PORTION_BYTES * len(small):
        threads -= 1  # a core for the caller, which mostly waits only if files are tiny
    portions: deque[tuple[float, Future[tuple[list[InputRows], float | None]]]] = deque()
    with WorkThreads(threads, thread_name_prefix="icekeeper-decode") as pool:
        try:
            while True:
                while not portions or sum(size for size, _ in portions) < _AHEAD_BYTES:
                    portion, size = _portion(inputs, row_bytes)
                    if not portion:
                        break
                    portions.append((size, pool.submit(_decoded, portion)))
                if not portions:
                    return
                decoded, measured = portions[0][1].result()
                row_bytes = measured or row_bytes
                yield from decoded
                del decoded
                portions.popleft()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _portion(inputs: Iterator[InputRows], row_bytes: float) -> tuple[list[InputRows], float]:
    """The next inputs for a thread, and about how many bytes their rows take in memory."""
    portion: list[InputRows] = []
    size = 0.0
    for source, batches in inputs:
        portion.append((source, batches))
        size += source.record_count * row_bytes
        if size >= _PORTION_BYTES:
            break
    return portion, size


def _decoded(portion: list[InputRows]) -> tuple[list[InputRows], float | None]:
    """The inputs, with small files decoded within the memory limit; an error is raised when its file is read.

    Also returns the measured bytes of a row in memory; ``None``: no row was decoded.
    """
    found: list[InputRows] = []
    rows = size = 0
    with on_cores(1):  # Arrow's threads would wait for one another
        for source, batches in portion:
            if not _is_small(source) or size >= _MOST_OF_PORTION_BYTES:
                found.append((source, batches))
                continue
            try:
                held = _first_rows(batches, source.record_count)
            except Exception as error:
                found.append((source, _failing(error)))
                break
            rows += sum(batch.num_rows for batch in held)
            size += sum(batch.nbytes for batch in held)
            found.append((source, chain(held, batches)))
    return found, size / rows if rows else None


def _is_small(source: InputFile) -> bool:
    return source.file_size_in_bytes <= _SMALL_BYTES and source.record_count <= BATCH_ROWS


def _first_rows(batches: Iterator[pa.RecordBatch], expected: int) -> list[pa.RecordBatch]:
    """All batches; if they have more rows than expected, the rest is not decoded."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows > expected:
            break
    return held


def _failing(error: Exception) -> Iterator[pa.RecordBatch]:
    yield from ()
    raise error
