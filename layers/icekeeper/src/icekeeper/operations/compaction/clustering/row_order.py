"""Orders rows of one Iceberg schema as a recipe asks for, and puts them into that order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import pyarrow as pa

from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import task_cores
from icekeeper.operations.compaction.clustering.sort_keys import SortKeys, sorted_indices
from icekeeper.operations.compaction.clustering.zorder import ZOrderCurve, fit_curve
from icekeeper.operations.compaction.recipe import ClusterRecipe, KeyColumn
from icekeeper.policy import Strategy

__all__ = ["RowOrder", "RowTaker", "fitted_curve", "row_taker"]

# Rows that a curve is fitted to: a thousand or more for each file that one worker writes of them.
_SAMPLED_ROWS = 32_768
RowTaker: TypeAlias = Callable[[pa.RecordBatch, pa.Array], pa.RecordBatch]
"""Gives the rows of a batch that have these numbers, in their order."""


class RowOrder:
    """Finds the order of rows: by the recipe's columns, or along a z-order curve fitted to a sample of the rows."""

    def __init__(self, recipe: ClusterRecipe, schema: Mapping[str, Any], curve: ZOrderCurve | None = None) -> None:
        """Raises TableUnsupported when a column is not in the schema."""
        self._values = SortKeys(recipe.columns, schema)
        self._curve = curve
        self.is_curve = curve is not None
        self.columns: Sequence[KeyColumn] = recipe.columns if curve is None else curve.columns

    def keys(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The values that rows are compared by: one array for each of ``columns``."""
        values = self._values.of(batch)
        return values if self._curve is None else [self._curve.keys(values)]

    def indices(self, keys: Sequence[pa.Array]) -> pa.Array:
        """The indexes of the rows in sorted order; rows of equal keys keep their order."""
        return sorted_indices(keys, self.columns)


def fitted_curve(recipe: ClusterRecipe, schema: Mapping[str, Any], batch: pa.RecordBatch) -> ZOrderCurve | None:
    """A curve fitted to these rows; ``None`` for recipes without z-order."""
    if recipe.strategy is not Strategy.ZORDER:
        return None
    values = SortKeys(recipe.columns, schema).of(batch)
    some = pa.arange(0, batch.num_rows, max(1, batch.num_rows // _SAMPLED_ROWS))
    return fit_curve([array.take(some) for array in values])


@contextmanager
def row_taker() -> Iterator[RowTaker]:
    """What takes rows, for as long as the context lasts, on all cores of the task (rule 134).

    Arrow takes one column after the other.
    """
    cores = task_cores()
    if cores == 1:
        yield _taken
        return
    with WorkThreads(cores, thread_name_prefix="take") as pool:

        def taken(batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
            columns = pool.map(lambda column: column.take(numbers), batch.columns)
            return pa.RecordBatch.from_arrays(list(columns), schema=batch.schema)

        yield taken


def _taken(batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
    return batch.take(numbers)
