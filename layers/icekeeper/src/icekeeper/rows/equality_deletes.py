"""Finds the rows that equality deletes remove, by a single lookup for many delete files.

Each value of a key column is replaced by its index among the deleted values; the indexes of several columns are
combined into a number.  For each number the lookup has the highest sequence number that deletes the key: a row is
deleted if that is higher than the sequence number of its data file.

Null equals null, NaN equals NaN, 0.0 differs from -0.0 (specification, "Equality Delete Files"; Java's
``StructLikeSet``).  Arrow's ``index_in`` compares in the same way, except for NaN values with different bits
(rule: equality-keys-by-value).

Arrow hashes the deleted values at every call, which takes longer than looking up a batch, and takes 240 bytes per
number.  So the deleted values are sorted, and only values between the smallest and the largest value of the batch are
hashed.  If these are many, the batch is sorted and found among them by binary search.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.rows.read_task import InputFile

# So few values are hashed faster than the needed values are found.
_FEW = 1000
# The most values that are hashed together.
_BLOCK = 64 * 1024
_AS_PY = methodcaller("as_py")


@dataclass(slots=True)
class Span:
    """The smallest and the largest value of a key column in some rows; ``None``: all are null."""

    least: Any = None
    most: Any = None
    has_null: bool = False

    def add(self, column: pa.Array) -> None:
        """Include more rows."""
        self.has_null |= column.null_count > 0
        column = comparable(column)
        if has_order(column.type) and column.null_count < len(column):
            found = pc.min_max(column).as_py()
            self.least = found["min"] if self.least is None else min(self.least, found["min"])
            self.most = found["max"] if self.most is None else max(self.most, found["max"])


@dataclass(frozen=True, slots=True)
class EqualityLookup:
    """The deleted keys of a set of columns."""

    field_ids: tuple[int, ...]
    values: tuple[pa.Array, ...]
    """Per column: the distinct deleted values, ascending if they have an order, null at the end."""
    combinations: tuple[pa.Array, ...]
    """Per column from the second on: the distinct combinations with the columns before it, as ascending numbers."""
    newest: pa.Array
    """Per key: the highest sequence number that deletes it."""
    deletes: frozenset[int]
    """The delete files of the keys, as indexes into a task's ``deletes``."""

    @classmethod
    def build(
        cls,
        field_ids: Sequence[int],
        columns: Iterable[pa.Array],
        sequence_numbers: pa.Array,
        deletes: Iterable[int] = (),
    ) -> EqualityLookup:
        """A lookup of delete file rows: their key columns as in ``field_ids``, and a sequence number per row.

        Pass the columns as an iterator if the caller does not need them: each is freed as soon as it is sorted.
        """
        columns = [comparable(column) for column in columns]
        if len(columns) == 1 and has_order(columns[0].type):
            # For a key of 8 bytes, a hash table takes 240 bytes and sorting takes 32.
            values, newest = _newest_in_order(columns, sequence_numbers)
            return cls(tuple(field_ids), (values,), (), newest, frozenset(deletes))
        values = tuple(_distinct(column) for column in columns)
        combinations: list[pa.Array] = []
        code = _index(columns[0], values[0])
        for column, distinct in zip(columns[1:], values[1:], strict=True):
            combined = _combine(code, _index(column, distinct), len(distinct))
            combinations.append(_distinct(combined))
            code = _index(combined, combinations[-1])
        grouped = pa.table({"code": code, "number": sequence_numbers}).group_by("code").aggregate([("number", "max")])
        # Every code occurs, so the sorted codes are 0, 1, 2, … and are indexes into the numbers.
        newest = grouped.sort_by("code").combine_chunks()["number_max"]
        newest = newest.combine_chunks() if newest.num_chunks != 1 else newest.chunk(0)
        return cls(tuple(field_ids), values, tuple(combinations), newest, frozenset(deletes))

    def applies_to(self, source: InputFile) -> bool:
        """Whether any of the delete files applies to the input.

        Then the other delete files match no wrong row: they belong to its partition or to several partitions, and apply
        to it unless they are older or their bounds exclude its rows.
        """
        return not self.deletes.isdisjoint(source.deletes)

    def within_bounds(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """A mask: false for rows with a value below or above the values of all keys; ``None``: no such row is known."""
        mask = None
        for column, values in zip(columns, self.values, strict=True):
            if has_order(values.type):
                is_near = _within_bounds(comparable(column), values)
                mask = is_near if mask is None else pc.and_(mask, is_near)
        return mask

    def may_reach(self, spans: Sequence[Span]) -> bool:
        """Whether a row of the rows with these spans is within the bounds of the keys."""
        return all(
            (span.has_null and values.null_count)
            or (
                span.least is not None
                and len(known)
                and span.least <= known[-1].as_py()
                and span.most >= known[0].as_py()
            )
            for span, values in zip(spans, self.values, strict=True)
            if has_order(values.type)
            for known in [values.slice(0, len(values) - values.null_count)]
        )

    def deleted_rows(self, columns: Sequence[pa.Array], sequence_number: int | pa.Array) -> pa.Array:
        """A mask of rows: true if a delete of the key has a higher sequence number than the data file.

        ``columns``: the columns of ``field_ids``; ``sequence_number``: that of the data file, or a number per row.
        """
        columns = [comparable(column) for column in columns]
        code = _index(columns[0], self.values[0])
        for column, distinct, combinations in zip(columns[1:], self.values[1:], self.combinations, strict=True):
            code = _index(_combine(code, _index(column, distinct), len(distinct)), combinations, nulls_match=False)
        return pc.fill_null(pc.greater(self.newest.take(code), sequence_number), False)

    def places(self) -> list[pa.Array]:
        """For each column, the index of each key's value among ``values``; keys are in the order of ``newest``."""
        code = pa.arange(0, len(self.newest))
        found: list[pa.Array] = []
        for distinct, combinations in zip(reversed(self.values[1:]), reversed(self.combinations), strict=True):
            combined = combinations.take(code)
            code = pc.divide(combined, len(distinct))
            found.append(pc.subtract(combined, pc.multiply(code, len(distinct))))
        return [code, *reversed(found)]


def comparable(column: pa.Array) -> pa.Array:
    """The values in a type of the same bits that Arrow and Python sort alike, with one NaN for all NaN values."""
    if pa.types.is_temporal(column.type):
        return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(math.nan, column.type), column)
    return column.view(pa.binary()) if pa.types.is_string(column.type) else column


def has_order(kind: pa.DataType) -> bool:
    """False for floats, because of NaN and the zeros."""
    is_bytes = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(is_bytes or pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _distinct(column: pa.Array) -> pa.Array:
    values = pc.unique(column)
    return values.take(pc.array_sort_indices(values, null_placement="at_end")) if has_order(values.type) else values


def _within_bounds(column: pa.Array, values: pa.Array) -> pa.Array:
    """Whether each value is among the distinct values, or between two of them."""
    known = len(values) - values.null_count
    if not known:
        return pc.is_null(column)
    is_near = pc.and_(pc.greater_equal(column, values[0]), pc.less_equal(column, values[known - 1]))
    return pc.fill_null(is_near, bool(values.null_count))


def _newest_in_order(columns: list[pa.Array], numbers: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The distinct values of the only column in order, null at the end, and the highest number of each.

    The list is emptied, so that the column and its copy in order are not in memory longer than necessary.
    """
    order = pc.sort_indices(
        pa.RecordBatch.from_arrays([columns[0], numbers], names=["value", "number"]),
        sort_keys=[("value", "ascending", "at_end"), ("number", "descending", "at_end")],
    )
    values, numbers = columns.pop().take(order), numbers.take(order)
    del order
    count = len(values)
    if count < 2:
        return values, numbers
    # Null equals null: neighbours also differ if exactly one of them is null.
    differ = pc.fill_null(pc.not_equal(values.slice(1), values.slice(0, count - 1)), False)
    if values.null_count:
        nulls = pc.is_null(values)
        differ = pc.or_(differ, pc.xor(nulls.slice(1), nulls.slice(0, count - 1)))
    if pc.all(differ).as_py():
        return values, numbers
    first = pa.concat_arrays([pa.array([True]), differ])
    return values.filter(first), numbers.filter(first)


def _index(column: pa.Array, distinct: pa.Array, *, nulls_match: bool = True) -> pa.Array:
    """The index of each value among the distinct values; null: it is not among them."""
    start, end = 0, len(distinct)
    null_may_match = nulls_match and column.null_count and distinct.null_count
    if end > _FEW and has_order(distinct.type) and not null_may_match:
        start, end = _between(column, distinct)
    if end - start > _BLOCK and has_order(distinct.type):
        order = pc.array_sort_indices(column)  # null at the end
        is_searchable = pa.types.is_integer(column.type) or pa.types.is_binary(column.type)
        find = _searched if is_searchable else _hashed_by_blocks
        return find(column.take(order), distinct, nulls_match).take(pc.inverse_permutation(order.cast(pa.int32())))
    found = pc.index_in(column, value_set=distinct.slice(start, end - start), skip_nulls=not nulls_match)
    return pc.add(found.cast(pa.int64()), start)


def _searched(column: pa.Array, distinct: pa.Array, nulls_match: bool) -> pa.Array:
    """The same for a sorted column, without hashing."""
    known = distinct.slice(0, len(distinct) - distinct.null_count)
    place = pc.min_element_wise(pc.search_sorted(known, column).cast(pa.int64()), len(known) - 1, skip_nulls=False)
    place = pc.if_else(pc.equal(known.take(place), column), place, pa.scalar(None, pa.int64()))
    if nulls_match and distinct.null_count:
        place = pc.if_else(pc.is_null(column), len(known), place)
    return place


def _hashed_by_blocks(column: pa.Array, distinct: pa.Array, nulls_match: bool) -> pa.Array:
    """The same for a sorted column of a type that Arrow cannot search."""
    known, done, found = len(column) - column.null_count, 0, [pa.array([], pa.int64())]
    for start in range(0, len(distinct), _BLOCK):
        block, end = distinct.slice(start, _BLOCK), len(column)
        if start + _BLOCK < len(distinct):
            end = bisect_right(column, block[-1].as_py(), lo=done, hi=known, key=_AS_PY)
        if done < end:
            place = pc.index_in(column.slice(done, end - done), value_set=block, skip_nulls=not nulls_match)
            found.append(pc.add(place.cast(pa.int64()), start))
            done = end
    return pa.concat_arrays(found)


def _between(column: pa.Array, distinct: pa.Array) -> tuple[int, int]:
    """The slice of the distinct values between the smallest and the largest value of the column."""
    bounds = pc.min_max(column)
    if not bounds["min"].is_valid:
        return 0, 0
    known = len(distinct) - distinct.null_count
    start = bisect_left(distinct, bounds["min"].as_py(), hi=known, key=_AS_PY)
    return start, bisect_right(distinct, bounds["max"].as_py(), lo=start, hi=known, key=_AS_PY)


def _combine(code: pa.Array, place: pa.Array, count: int) -> pa.Array:
    """A number for two indexes; both are below the number of deleted keys, so it fits into 64 bits."""
    return pc.add(pc.multiply(code, count), place)


# The statistics of a row group contain the ranges of its columns, which show the deleted keys that its rows may have
# (rule: copy-under-keys-only-if-none-match).  A bound need not occur as a value: it may be truncated.  Bounds are never
# NaN, and do not distinguish 0.0 from -0.0.

_EXACT = Context(prec=76)


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """The range of a column in some rows; without arguments, any value is possible.

    Bounds are raw values: dates and times as integers, decimals unscaled, texts as their bytes.
    """

    least: Any = None
    """No value is smaller; ``None``: not known."""
    most: Any = None
    """No value is larger; ``None``: not known."""
    may_be_null: bool = True
    may_have_values: bool = True
    """Whether any row may be non-null."""


_ANYTHING = ColumnRange()


def keys_within(lookup: EqualityLookup, ranges: Mapping[int, ColumnRange], sequence_number: int) -> int:
    """How many deleted keys may match rows with these ranges (by field id) in a file of that sequence number."""
    mask = pc.greater(lookup.newest, sequence_number)
    for field_id, values, places in zip(lookup.field_ids, lookup.values, lookup.places(), strict=True):
        if not pc.any(mask).as_py():
            return 0
        mask = pc.and_(mask, _may_be_among(values, ranges.get(field_id, _ANYTHING)).take(places))
    return int(pc.sum(mask).as_py() or 0)


def _may_be_among(values: pa.Array, known: ColumnRange) -> pa.Array:
    """Whether each value may be in the range."""
    among = pa.repeat(pa.scalar(known.may_have_values), len(values))
    if known.may_have_values:
        for bound, inside in ((known.least, pc.greater_equal), (known.most, pc.less_equal)):
            limit = None if bound is None else _scalar(bound, values.type)
            if limit is not None:
                among = pc.and_(among, inside(values, limit))
        if pa.types.is_floating(values.type):
            among = pc.or_(among, pc.is_nan(values))
    return pc.if_else(pc.is_null(values), known.may_be_null, among)


def _scalar(bound: Any, kind: pa.DataType) -> pa.Scalar | None:
    """A bound as a scalar of the lookup's type; ``None``: it is not a value of that type and is ignored."""
    if pa.types.is_decimal(kind):
        bound = Decimal(bound).scaleb(-kind.scale, _EXACT)
    elif pa.types.is_floating(kind) and bound != bound:
        return None
    try:
        return pa.scalar(bound, kind)
    except (pa.ArrowException, OverflowError):
        return None
