"""Equality deletes as one lookup: which rows of a batch does any delete file remove?

Every column's values are replaced by their place among the deleted values, the places of several columns are combined
into one number, and that number is looked up: for each key the highest sequence number that deletes it.  A row goes
when that is above its file's.  Null equals null, NaN equals NaN, 0.0 differs from -0.0 (specification, "Equality Delete
Files"; Java's ``StructLikeSet``): Arrow's ``index_in`` decides just so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["EqualityLookup", "deleted_rows"]


@dataclass(frozen=True, slots=True)
class EqualityLookup:
    """The deleted keys of one set of columns.

    ``values`` are, per column, the distinct deleted values; ``combinations``, from the second column on, the distinct
    combinations so far; ``newest`` the highest sequence number of each last combination.
    """

    field_ids: tuple[int, ...]
    values: tuple[pa.Array, ...]
    combinations: tuple[pa.Array, ...]
    newest: pa.Array

    @classmethod
    def build(cls, field_ids: Sequence[int], columns: Sequence[pa.Array], sequence_numbers: pa.Array) -> EqualityLookup:
        """From the rows of delete files: key columns in the order of ``field_ids``, and each row's sequence number."""
        values = tuple(pc.unique(column) for column in columns)
        combinations: list[pa.Array] = []
        code = _place(columns[0], values[0])
        for column, distinct in zip(columns[1:], values[1:], strict=True):
            combined = _combine(code, _place(column, distinct), len(distinct))
            combinations.append(pc.unique(combined))
            code = _place(combined, combinations[-1])
        grouped = pa.table({"code": code, "number": sequence_numbers}).group_by("code").aggregate([("number", "max")])
        ordered = grouped.sort_by("code").combine_chunks()
        # Every place occurs, so the sorted codes are 0, 1, 2, … and index the numbers.
        return cls(tuple(field_ids), values, tuple(combinations), _one_array(ordered["number_max"]))

    def newest_delete(self, columns: Sequence[pa.Array]) -> pa.Array:
        """For each row the highest sequence number that deletes its key, null where none does."""
        code = _place(columns[0], self.values[0])
        for column, distinct, combinations in zip(columns[1:], self.values[1:], self.combinations, strict=True):
            code = _place(_combine(code, _place(column, distinct), len(distinct)), combinations, nulls_match=False)
        return self.newest.take(code)


def deleted_rows(
    lookups: Iterable[tuple[EqualityLookup, Sequence[pa.Array]]], sequence_number: int, length: int
) -> pa.Array:
    """A mask of ``length`` rows, true where a delete with a higher sequence number than the file's matches."""
    mask = pa.repeat(pa.scalar(False), length)
    for lookup, columns in lookups:
        newer = pc.greater(lookup.newest_delete(columns), sequence_number)
        mask = pc.or_(mask, pc.fill_null(newer, False))
    return mask


def _place(column: pa.Array, distinct: pa.Array, *, nulls_match: bool = True) -> pa.Array:
    """Where each value is among the distinct ones, null where it is not."""
    return pc.index_in(column, value_set=distinct, skip_nulls=not nulls_match).cast(pa.int64())


def _combine(code: pa.Array, place: pa.Array, count: int) -> pa.Array:
    """One number for two places; both are below the number of delete rows, so 64 bits hold the product."""
    return pc.add(pc.multiply(code, count), place)


def _one_array(chunked: pa.ChunkedArray) -> pa.Array:
    return chunked.combine_chunks() if chunked.num_chunks != 1 else chunked.chunk(0)
