"""Picks rows of a batch by their numbers, on all cores of the task: Arrow takes one column after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeAlias

import pyarrow as pa

from icekeeper.task_cores import task_cores

__all__ = ["RowTaker", "row_taker"]

RowTaker: TypeAlias = Callable[[pa.RecordBatch, pa.Array], pa.RecordBatch]
"""Gives the rows of a batch that have these numbers, in their order."""


@contextmanager
def row_taker() -> Iterator[RowTaker]:
    """What takes rows, for as long as the context lasts (rule 134)."""
    cores = task_cores()
    if cores == 1:
        yield _taken
        return
    with ThreadPoolExecutor(cores, thread_name_prefix="take") as pool:

        def taken(batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
            columns = pool.map(lambda column: column.take(numbers), batch.columns)
            return pa.RecordBatch.from_arrays(list(columns), schema=batch.schema)

        yield taken


def _taken(batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
    return batch.take(numbers)
