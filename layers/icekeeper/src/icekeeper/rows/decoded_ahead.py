"""Decodes small inputs of a task ahead, in threads, while the rows before them are looked at and written.

Arrow decodes the columns of a file side by side, which a small file is not worth: its columns are done before a thread
has taken one.  So a thread decodes small files as a whole, some neighbours at a time (platform 87).  What is decoded
ahead has a bound of memory (rule 190).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future
from itertools import chain
from typing import Any

import pyarrow as pa

from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import on_cores, task_cores
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.file_rows import BATCH_ROWS
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.rows.row_memory import likely_row_bytes

__all__ = ["InputRows", "decoded_ahead"]

InputRows = tuple[InputFile, Iterator[pa.RecordBatch]]
"""An input and its rows, which may be decoded by whoever reads them."""

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


def decoded_ahead(inputs: Iterator[InputRows], task: ReadTask, schema: Mapping[str, Any]) -> Generator[InputRows]:
    """The inputs of a task in their order, each to be read before the next one is asked for.

    ``inputs`` have their rows in ``schema``, not decoded yet.  All cores of the task but the caller's decode; without
    another core, or much to decode, each input is left to its reader.  Closing the iterator ends the threads.  What
    decoding an input raises, reading its rows raises.
    """
    row_bytes = float(max(1, likely_row_bytes(leaf.iceberg_type for leaf in leaf_columns(schema))))
    small_rows = sum(source.record_count for source in task.inputs if _is_small(source))
    others = task_cores() - 1
    if not others or small_rows * row_bytes <= _WORTH_THREADS_BYTES:
        yield from inputs
        return
    with WorkThreads(others, thread_name_prefix="icekeeper-decode") as pool:
        try:
            yield from _by_threads(inputs, row_bytes, pool)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _by_threads(inputs: Iterator[InputRows], row_bytes: float, pool: WorkThreads) -> Iterator[InputRows]:
    """``row_bytes`` is what a row is likely to take in memory, until some are decoded."""
    portions: deque[tuple[float, Future[tuple[list[InputRows], float | None]]]] = deque()
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
    """Small files with their rows, as long as these take little memory; an error waits until its file's turn.

    Also the bytes of a row in memory; ``None``: no row is in memory yet.
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
