"""The work unit that samples sort keys: it reads the key columns of some files and takes every n-th row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from icekeeper.errors import FileUnreadable, MaintenanceError
from icekeeper.operations.compaction.clustering.row_order import RowOrder
from icekeeper.operations.compaction.clustering.task import Sample, SampleTask
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read import unreadable_files
from icekeeper.storage.storage import Storage

__all__ = ["sample_keys"]


def sample_keys(work: SampleTask) -> Sample:
    """Sample the values that rows are compared by, also of deleted rows.

    Never raises for what concerns only this group: the sample carries the error.
    """
    task, recipe = work.task, work.task.recipe
    assert recipe is not None
    storage = Storage(task.io_properties)
    key_schema = {**task.schema, "fields": [f for f in task.schema["fields"] if _holds(f, recipe)]}
    order = RowOrder(recipe, key_schema)
    values: list[list[pa.Array]] = []
    rows: list[int] = []
    try:
        for source, first_row in zip(task.inputs, work.first_rows, strict=True):
            offset = 0
            for batch in projected_rows(task.readable(source), key_schema, storage):
                # Steps count through the whole file, not from the start of each batch.
                some = pa.arange(-offset % work.step, max(-offset % work.step, batch.num_rows), work.step)
                values.append([array.take(some) for array in order.keys(batch)])
                rows.extend(first_row + offset + i for i in some.to_pylist())
                offset += batch.num_rows
        row_bytes = _row_bytes(task, storage)
    except FileUnreadable as problem:
        return Sample((), (), 0.0, str(problem), unreadable_files(task, storage))
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        return Sample((), (), 0.0, f"{type(error).__name__}: {error}")
    columns = [pa.concat_arrays(parts) for parts in zip(*values, strict=True)]
    return Sample(tuple(columns), tuple(rows), row_bytes)


def _holds(field: Mapping[str, Any], recipe: ClusterRecipe) -> bool:
    """Whether a top-level column is or contains one of the recipe's."""
    wanted = {column.field_id for column in recipe.columns}
    stack = [field]
    while stack:
        current = stack.pop()
        if current["id"] in wanted:
            return True
        if isinstance(current["type"], dict) and current["type"]["type"] == "struct":
            stack.extend(current["type"]["fields"])
    return False


def _row_bytes(task: RewriteTask, storage: Storage) -> float:
    """Arrow bytes per row with all columns, measured on the first batch that has rows."""
    for source in task.inputs:
        for batch in projected_rows(task.readable(source), task.schema, storage):
            if batch.num_rows:
                return float(batch.nbytes / batch.num_rows)
    return 0.0
