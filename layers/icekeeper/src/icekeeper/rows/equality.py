"""Finds the rows of a batch that equality deletes remove, by one lookup for many delete files.

Each value of a key column is replaced by its index among the deleted values; the indexes of several columns become one
number.  For that number the lookup has the highest sequence number that deletes the key: the row is deleted if that is
higher than the data file's.  Null equals null, NaN equals NaN, 0.0 differs from -0.0 (specification, "Equality Delete
Files"; Java's ``StructLikeSet``), which is how Arrow's ``index_in`` compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["EqualityLookup", "deleted_rows"]


@dataclass(frozen=True, slots=True)
class EqualityLookup:
    """The deleted keys of one set of columns."""

    field_ids: tuple[int, ...]
    """The key columns."""
    values: tuple[pa.Array, ...]
    """Per column: the distinct deleted values."""
    combinations: tuple[pa.Array, ...]
    """Per column from the second on: the distinct combinations with the columns before it, as numbers."""
    newest: pa.Array
    """Per key: the highest sequence number that deletes it."""

    @classmethod
    def build(cls, field_ids: Sequence[int], columns: Sequence[pa.Array], sequence_numbers: pa.Array) -> EqualityLookup:
        """A lookup of rows of delete files: their key columns as in ``field_ids``, and a sequence number per row."""
        values = tuple(pc.unique(column) for column in columns)
        combinations: list[pa.Array] = []
        code = _index(columns[0], values[0])
        for column, distinct in zip(columns[1:], values[1:], strict=True):
            combined = _combine(code, _index(column, distinct), len(distinct))
            combinations.append(pc.unique(combined))
            code = _index(combined, combinations[-1])
        grouped = pa.table({"code": code, "number": sequence_numbers}).group_by("code").aggregate([("number", "max")])
        ordered = grouped.sort_by("code").combine_chunks()
        # Every code occurs, so the sorted codes are 0, 1, 2, … and are indexes into the numbers.
        return cls(tuple(field_ids), values, tuple(combinations), _one_array(ordered["number_max"]))

    def newest_delete(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Per row the highest sequence number that deletes its key, null where none does; columns as ``field_ids``."""
        code = _index(columns[0], self.values[0])
        for column, distinct, combinations in zip(columns[1:], self.values[1:], self.combinations, strict=True):
            code = _index(_combine(code, _index(column, distinct), len(distinct)), combinations, nulls_match=False)
        return self.newest.take(code)


def deleted_rows(
    lookups: Iterable[tuple[EqualityLookup, Sequence[pa.Array]]], sequence_number: int, length: int
) -> pa.Array:
    """A mask of ``length`` rows: true where a delete matches whose sequence number is higher than the data file's.

    ``lookups`` come with the key columns of the rows.
    """
    mask = pa.repeat(pa.scalar(False), length)
    for lookup, columns in lookups:
        newer = pc.greater(lookup.newest_delete(columns), sequence_number)
        mask = pc.or_(mask, pc.fill_null(newer, False))
    return mask


def _index(column: pa.Array, distinct: pa.Array, *, nulls_match: bool = True) -> pa.Array:
    """The index of each value among the distinct ones, null where it is not among them."""
    return pc.index_in(column, value_set=distinct, skip_nulls=not nulls_match).cast(pa.int64())


def _combine(code: pa.Array, place: pa.Array, count: int) -> pa.Array:
    """One number for two indexes; both are below the number of deleted keys, so that 64 bits hold the product."""
    return pc.add(pc.multiply(code, count), place)


def _one_array(chunked: pa.ChunkedArray) -> pa.Array:
    return chunked.combine_chunks() if chunked.num_chunks != 1 else chunked.chunk(0)
