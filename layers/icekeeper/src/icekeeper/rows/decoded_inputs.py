"""Decodes the inputs of a task in their order; small files are decoded ahead, on all cores of the task.

Arrow decodes the columns of a file side by side, which a small file is not worth: its columns are done before a thread
has taken one.  So threads decode small files as a whole, some neighbours at a time, while the rows before them are
looked at and written; whoever waits for rows decodes, too (platform 87).  What is decoded ahead has a bound of memory
(rule 190).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from icekeeper.request_count import WorkThreads
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.file_rows import BATCH_ROWS, projected_rows
from icekeeper.rows.opened_inputs import opened_inputs
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.rows.row_memory import likely_row_bytes
from icekeeper.storage.storage import Storage
from icekeeper.task_cores import on_cores, task_cores

__all__ = ["DecodedInput", "decoded_inputs"]

DecodedInput = tuple[InputFile, Iterator[pa.RecordBatch]]
_Opened = tuple[InputFile, pa.NativeFile | None]

_SMALL_BYTES = 4 * 1024 * 1024
"""Of a file that is decoded as a whole; Arrow decodes the columns of larger ones side by side."""
_PORTION_BYTES = 1024 * 1024
"""Of rows in memory that a thread decodes at a time: to hand over a single tiny file takes as long as to decode it."""
_MOST_OF_PORTION_BYTES = 2 * _PORTION_BYTES
"""Rows that turn out larger than manifest entries let expect are decoded when their turn has come."""
_WORTH_THREADS_BYTES = 2 * _PORTION_BYTES
"""Of rows of small files: fewer are decoded before a thread has started."""
_AHEAD_BYTES = 8 * 1024 * 1024
"""Of rows in memory that are decoded, or being decoded, before their turn."""


def decoded_inputs(task: ReadTask, schema: Mapping[str, Any], storage: Storage) -> Iterator[DecodedInput]:
    """Each input in order, with its rows as batches of ``schema``, which are read before the next input is asked for.

    A task that may use one core, or has few small inputs, decodes each when its turn has come.  Closing the iterator
    ends its threads.

    Raises:
        StorageError: an input, when its turn has come, is missing or cannot be opened.  Its batches raise what
            :func:`.projected_rows` does.
    """
    work = _Decoding(task, schema, storage)
    cores = task_cores()
    if cores == 1 or work.small_bytes <= _WORTH_THREADS_BYTES:
        yield from work.in_turn()
        return
    with WorkThreads(cores - 1, thread_name_prefix="icekeeper-decode") as pool:
        try:
            yield from work.ahead(pool)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Decoded:
    inputs: list[DecodedInput]
    row_bytes: float | None
    """Of a row in memory; ``None``: no row is in memory yet."""


@dataclass(slots=True)
class _Portion:
    """Some neighbours among the inputs, and about how many bytes their rows take in memory."""

    files: list[_Opened]
    size: float
    decoding: Future[_Decoded]


class _Decoding:
    """The inputs of one task on their way."""

    def __init__(self, task: ReadTask, schema: Mapping[str, Any], storage: Storage) -> None:
        self._task = task
        self._schema = schema
        self._storage = storage
        self._inputs = opened_inputs(task.inputs, storage)
        self._row_bytes = float(max(1, likely_row_bytes(leaf.iceberg_type for leaf in leaf_columns(schema))))

    @property
    def small_bytes(self) -> float:
        """About the bytes in memory of the rows of small inputs."""
        return self._row_bytes * sum(source.record_count for source in self._task.inputs if _is_small(source))

    def in_turn(self) -> Iterator[DecodedInput]:
        """Each input is decoded while its batches are read."""
        for source, stream in self._inputs:
            yield source, self._rows(source, stream)

    def ahead(self, pool: WorkThreads) -> Iterator[DecodedInput]:
        """Small inputs are decoded by the pool, or here while the next one is not ready."""
        portions: deque[_Portion] = deque()
        while True:
            while not portions or sum(portion.size for portion in portions) < _AHEAD_BYTES:
                files, size = self._next_files()
                if not files:
                    break
                portions.append(_Portion(files, size, pool.submit(self._decoded, files)))
            if not portions:
                return
            self._help(portions)
            decoded = portions[0].decoding.result()
            self._row_bytes = decoded.row_bytes or self._row_bytes
            yield from decoded.inputs
            del decoded
            portions.popleft()

    def _next_files(self) -> tuple[list[_Opened], float]:
        """The files of the next portion, and about how many bytes their rows take in memory."""
        files: list[_Opened] = []
        size = 0.0
        for source, stream in self._inputs:
            files.append((source, stream))
            size += source.record_count * self._row_bytes
            if size >= _PORTION_BYTES:
                break
        return files, size

    def _help(self, portions: deque[_Portion]) -> None:
        """Decode portions that no thread has begun, until the first one is decoded."""
        for portion in portions:
            if portions[0].decoding.done():
                return
            if portion.decoding.cancel():
                portion.decoding = Future()
                portion.decoding.set_result(self._decoded(portion.files))

    def _decoded(self, files: list[_Opened]) -> _Decoded:
        """Small files with their rows, as long as these take little memory; an error waits until its file's turn."""
        found: list[DecodedInput] = []
        rows = size = 0
        with on_cores(1):  # Arrow's threads would wait for one another
            for source, stream in files:
                batches = self._rows(source, stream)
                if _is_small(source) and size < _MOST_OF_PORTION_BYTES:
                    try:
                        held = _first_rows(batches, source.record_count)
                    except Exception as error:
                        found.append((source, _failing(error)))
                        break
                    rows += sum(batch.num_rows for batch in held)
                    size += sum(batch.nbytes for batch in held)
                    batches = chain(held, batches)
                found.append((source, batches))
        return _Decoded(found, size / rows if rows else None)

    def _rows(self, source: InputFile, stream: pa.NativeFile | None) -> Iterator[pa.RecordBatch]:
        return projected_rows(self._task.readable(source), self._schema, self._storage, opened=stream)


def _is_small(source: InputFile) -> bool:
    return source.file_size_in_bytes <= _SMALL_BYTES and source.record_count <= BATCH_ROWS


def _first_rows(batches: Iterator[pa.RecordBatch], expected: int) -> list[pa.RecordBatch]:
    """All batches, unless they hold more rows than expected: then some are left."""
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
