"""Sort rows by key columns in Iceberg's order, or by cells on a z-order curve."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import TableUnsupported
from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import task_cores
from icekeeper.metadata.transforms import parse_transform
from icekeeper.metadata.types import PRIMITIVES
from icekeeper.operations.compaction.terms.output_partition import pyiceberg_type
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn
from icekeeper.policy import Strategy

# The number of rows to which a curve is fitted: a thousand or more for each file that a worker writes.
_SAMPLED_ROWS = 32_768
RowTaker: TypeAlias = Callable[[pa.RecordBatch, pa.Array], pa.RecordBatch]
"""Returns the rows of a batch with the given numbers, in the order of the numbers."""


class RowOrder:
    """The order of rows of a schema: by a recipe's columns, or along a z-order curve."""

    def __init__(self, recipe: ClusterRecipe, schema: Mapping[str, Any], curve: ZOrderCurve | None = None) -> None:
        """Raises TableUnsupported if a column is not in the schema."""
        self._values = SortKeys(recipe.columns, schema)
        self._curve = curve
        self.is_curve = curve is not None
        self.columns: Sequence[KeyColumn] = recipe.columns if curve is None else curve.columns

    def keys(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The values by which rows are compared: one array for each of ``columns``."""
        values = self._values.of(batch)
        return values if self._curve is None else [self._curve.keys(values)]

    def indices(self, keys: Sequence[pa.Array]) -> pa.Array:
        """The indexes of the rows in sorted order; rows of equal keys keep their order."""
        return sorted_indices(keys, self.columns)


def fitted_curve(recipe: ClusterRecipe, schema: Mapping[str, Any], batch: pa.RecordBatch) -> ZOrderCurve | None:
    """A curve fitted to the rows of ``batch``; ``None`` for recipes without z-order."""
    if recipe.strategy is not Strategy.ZORDER:
        return None
    values = SortKeys(recipe.columns, schema).of(batch)
    some = pa.arange(0, batch.num_rows, max(1, batch.num_rows // _SAMPLED_ROWS))
    return fit_curve([array.take(some) for array in values])


@contextmanager
def row_taker() -> Iterator[RowTaker]:
    """A function that takes rows of a batch on all cores of the task.

    Arrow itself takes one column after another.
    """
    cores = task_cores()
    if cores == 1:
        yield pa.RecordBatch.take
        return
    with WorkThreads(cores, thread_name_prefix="take") as pool:

        def taken(batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
            columns = pool.map(lambda column: column.take(numbers), batch.columns)
            return pa.RecordBatch.from_arrays(list(columns), schema=batch.schema)

        yield taken


# Keys have types whose order in Arrow is Iceberg's order (specification, "Sorting" and "Partition Transforms"; Java's
# ``Comparators``).  Floats become integers of the same order: -0.0 below 0.0, NaN above all numbers.  A transform's
# result may be replaced by any number that rises with it (truncated numbers, years of dates).

_KeyFunction: TypeAlias = Callable[[pa.Array], pa.Array]
_HOUR_S, _DAY_S = 3600, 86_400


class SortKeys:
    """Computes the key columns of batches of an Iceberg schema."""

    def __init__(self, columns: Sequence[KeyColumn], table_schema: Mapping[str, Any]) -> None:
        """Raises TableUnsupported if a column is not in the schema or its transform is unknown."""
        self._sources: list[tuple[list[int], _KeyFunction]] = []
        for column in columns:
            path, kind = _find(column.field_id, table_schema["fields"])
            self._sources.append((path, _key_function(column.transform, kind)))

    def of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The key columns of a batch."""
        return [to_key(_child(batch.column(path[0]), path[1:])) for path, to_key in self._sources]


def sorted_indices(keys: Sequence[pa.Array | pa.ChunkedArray], columns: Sequence[KeyColumn]) -> pa.Array:
    """The indexes of the rows in the order of the key columns; rows of equal keys keep their order.

    Raises:
        ValueError: there are no keys.
    """
    if not keys:
        raise ValueError("a sort order needs at least one column")
    order = integer_order(keys, columns)
    if order is not None:
        return order
    names = [str(number) for number in range(len(keys))]
    directions = [
        (name, "descending" if column.descending else "ascending", "at_start" if column.nulls_first else "at_end")
        for name, column in zip(names, columns, strict=True)
    ]
    return pc.sort_indices(pa.table(list(keys), names=names), sort_keys=directions)


def column_values(field_id: int, schema: Mapping[str, Any], batch: pa.RecordBatch) -> pa.Array:
    """The values of a column of the batch, which may be inside structs.

    Raises:
        TableUnsupported: the column is not in the schema.
    """
    path, _ = _find(field_id, schema["fields"])
    return _child(batch.column(path[0]), path[1:])


def holds_column(field: Mapping[str, Any], ids: Container[int]) -> bool:
    """Whether a field of a schema is one of these columns, or a struct that contains such a column."""
    if int(field["id"]) in ids:
        return True
    kind = field["type"]
    return isinstance(kind, Mapping) and kind["type"] == "struct" and any(holds_column(f, ids) for f in kind["fields"])


def _find(field_id: int, fields: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
    """The path to a column, as positions from the top through structs, and its Iceberg type."""
    stack: list[tuple[list[int], Sequence[Mapping[str, Any]]]] = [([], fields)]
    while stack:
        path, level = stack.pop()
        for index, field in enumerate(level):
            if int(field["id"]) == field_id and isinstance(field["type"], str):
                return [*path, index], field["type"]
            if isinstance(field["type"], Mapping) and field["type"]["type"] == "struct":
                stack.append(([*path, index], field["type"]["fields"]))
    raise TableUnsupported(f"the sort order needs column {field_id}, which is not in the schema")


def _child(array: pa.Array, path: Sequence[int]) -> pa.Array:
    for index in path:
        array = pc.struct_field(array, [index])  # nulls of the parent are nulls here
    return array


def _key_function(transform: str, kind: str) -> _KeyFunction:
    name, number = parse_transform(transform)
    if name == "identity":
        return _ordered
    if name == "bucket" and number is not None:
        from pyiceberg.transforms import BucketTransform
        from pyiceberg.types import BinaryType

        # Texts and bytes have the same hash, and text need not be UTF-8.
        hashed = BinaryType() if kind == "string" else pyiceberg_type(kind)
        return _by_value(BucketTransform(number).transform(hashed), pa.int32())
    if name == "truncate" and number is not None:
        return _truncation(number, kind)
    if name in ("year", "month"):
        return lambda array: _months(array, whole_years=name == "year")
    if name in ("day", "hour"):
        seconds = _DAY_S if name == "day" else _HOUR_S
        if kind == "date":
            return _ordered
        return lambda array: _floor_divided(_ordered(array), seconds * PRIMITIVES[kind].per_second)
    raise TableUnsupported(f"this version of Icekeeper does not know the sort transform {transform}")


def _ordered(array: pa.Array) -> pa.Array:
    """The values in a type that Arrow sorts as Iceberg does."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_float32(kind):
        return _float_order(array, pa.int32(), 2**31 - 1)
    if pa.types.is_float64(kind):
        return _float_order(array, pa.int64(), 2**63 - 1)
    if pa.types.is_date32(kind):
        return array.view(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return array.view(pa.int64())
    if pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    # As bytes, which have the same order, because some writers write text that is not UTF-8.
    return array.view(pa.binary()) if pa.types.is_string(kind) else array


def _float_order(array: pa.Array, bits_type: pa.DataType, mask: int) -> pa.Array:
    """Floats as integers of the same order: all bits of negative floats except the sign are inverted."""
    one_nan = pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)
    bits = one_nan.view(bits_type)
    return pc.if_else(pc.less(bits, pa.scalar(0, bits_type)), pc.bit_wise_xor(bits, pa.scalar(mask, bits_type)), bits)


def _months(array: pa.Array, *, whole_years: bool) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp(array.type.unit))  # without its zone, because transforms use UTC
    years = pc.year(array)
    return years if whole_years else pc.add(pc.multiply(years, 12), pc.month(array))


def _floor_divided(array: pa.Array, divisor: int) -> pa.Array:
    """The quotients rounded down, as in transforms; Arrow rounds towards zero."""
    wide = array.cast(pa.int64())
    quotient = pc.divide(wide, divisor)
    is_below = pc.and_(pc.less(wide, 0), pc.not_equal(pc.multiply(quotient, divisor), wide))
    return pc.subtract(quotient, is_below.cast(pa.int64()))


def _truncation(width: int, kind: str) -> _KeyFunction:
    if kind in ("int", "long"):
        return lambda array: _floor_divided(array, width)
    if kind == "string":
        return lambda array: _first_characters(array, width)
    if kind == "binary":
        return lambda array: pc.binary_slice(array, 0, width)
    from pyiceberg.transforms import TruncateTransform
    from pyiceberg.types import DecimalType

    decimal = pyiceberg_type(kind)
    assert isinstance(decimal, DecimalType)
    # Truncating downwards may need one digit more than the type has.
    target = pa.decimal256(decimal.precision + 1, decimal.scale)
    return _by_value(TruncateTransform(width).transform(decimal), target)


def _first_characters(array: pa.Array, width: int) -> pa.Array:
    """The first ``width`` characters of texts, as bytes; an invalid byte counts as a character."""
    try:
        return pc.utf8_slice_codeunits(array, 0, width).view(pa.binary())
    except pa.ArrowInvalid:
        ways = ("utf-8", "surrogateescape")
        return _by_value(lambda value: value and value.decode(*ways)[:width].encode(*ways), pa.binary())(array)


def _by_value(function: Callable[[Any], Any], result: pa.DataType) -> _KeyFunction:
    """A key function that applies a Python function once per distinct value."""

    def to_key(array: pa.Array) -> pa.Array:
        is_decimal = pa.types.is_decimal(array.type)
        plain = (array if is_decimal else _ordered(array)).dictionary_encode()
        values = pa.array([function(value) for value in plain.dictionary.to_pylist()], result)
        return values.take(plain.indices)

    return to_key


# Arrow compares rows key by key, unless a single key has few different values: then it counts them, which is several
# times faster.  So the integer keys of a row are packed into one number, each with as many bits as its values need.
# That number is sorted digit by digit, the lowest digit first (radix sort; every pass keeps the order of the pass
# before).

# Arrow counts up to 4,096 different values, and compares if there may be more.
_DIGIT_BITS = 12
# A signed 64-bit number without its sign.
_MAX_BITS = 63
# With more bits, Arrow sorts a single key as fast.
_MAX_BITS_OF_ONE = 48


def integer_order(keys: Sequence[pa.Array | pa.ChunkedArray], columns: Sequence[KeyColumn]) -> pa.Array | None:
    """As :func:`sorted_indices`; ``None``: a key is not an integer, or all keys together need too many bits."""
    if not all(isinstance(key, pa.Array) and pa.types.is_signed_integer(key.type) for key in keys):
        return None
    fields = []
    for key in keys:
        found = pc.min_max(key).as_py()
        low, high = found["min"] or 0, found["max"] or 0
        # One more value, for null.
        fields.append((low, high, 0 if found["min"] is None else (high - low + bool(key.null_count)).bit_length()))
    bits = sum(width for *_, width in fields)
    if bits > (_MAX_BITS if len(keys) > 1 else _MAX_BITS_OF_ONE):
        return None
    packed: pa.Array | None = None
    for key, column, (low, high, width) in zip(keys, columns, fields, strict=True):
        number = _number(key, column, low, high)
        packed = number if packed is None else pc.bit_wise_or(pc.shift_left(packed, width), number)
    order: pa.Array | None = None
    for shift in range(0, max(1, bits), _DIGIT_BITS):
        digit = pc.bit_wise_and(pc.shift_right(packed, shift), (1 << _DIGIT_BITS) - 1).cast(pa.uint16())
        order = pc.array_sort_indices(digit) if order is None else order.take(pc.array_sort_indices(digit.take(order)))
    return order


def _number(key: pa.Array, column: KeyColumn, low: int, high: int) -> pa.Array:
    """The key as a number from 0 upwards, in the order of the column."""
    wide = key.cast(pa.int64())
    number = pc.subtract(high, wide) if column.descending else pc.subtract(wide, low)
    if not key.null_count:
        return number
    if column.nulls_first:
        return pc.fill_null(pc.add(number, 1), 0)
    return pc.fill_null(number, 0 if key.null_count == len(key) else high - low + 1)


# A z-order curve alternates between the bits of its columns (Morton 1966), so rows with similar values get near cells.
# Here every bit is fitted to a sample: it halves the rows with the same preceding bits at their median in the column
# whose turn it is (a k-d tree, Bentley 1975).  So cells are not empty, even with skewed values or columns that depend
# on each other.  If a power of two of files divides the curve evenly, their bounds do not overlap.  Iceberg-Java
# interleaves the leading bytes of the values instead, which is useless for a skewed column or a common string prefix.

CURVE_BITS = 12
"""Bits of a cell: Arrow sorts this many by counting, and a sample of 100,000 rows has 24 rows in each of 4,096
cells."""
# A value is replaced by its rank among this many quantiles of a sample, which Arrow compares faster than text.
_QUANTILES = 1023
_RANKS = _QUANTILES + 1
# If the larger half has a larger share, another column is tried.
_EVEN_ENOUGH = 0.55


@dataclass(frozen=True, slots=True)
class ZOrderCurve:
    """A curve through columns of sort keys."""

    quantiles: tuple[pa.Array, ...]
    """Per column: ascending values (of :class:`.SortKeys`), nulls first."""
    levels: tuple[tuple[pa.Array, pa.Array], ...] = ()
    """For each bit, the highest first, and for each combination of the preceding bits: the column whose rank is
    compared, and the least rank for which the bit is set."""

    @property
    def columns(self) -> tuple[KeyColumn, ...]:
        """The cell as the only column to sort by."""
        return (KeyColumn(0),)

    def keys(self, arrays: Sequence[pa.Array]) -> pa.Array:
        """The cell of each row, below ``2 ** CURVE_BITS``, never null."""
        ranks = [_ranks(quantiles, array) for quantiles, array in zip(self.quantiles, arrays, strict=True)]
        cells = pa.repeat(pa.scalar(0, pa.int16()), len(ranks[0]))
        for columns, medians in self.levels:
            cells = _with_bit(cells, ranks, columns, medians)
        # A small sample has only the first bits.
        return pc.shift_left(cells, pa.scalar(CURVE_BITS - len(self.levels), pa.int16()))


def _with_bit(cells: pa.Array, ranks: Sequence[pa.Array], columns: pa.Array, medians: pa.Array) -> pa.Array:
    """Append the bit of a level to the cells of rows."""
    of_all = columns[0].as_py()
    is_one = pc.all(pc.equal(columns, of_all)).as_py()  # several times faster than a choice per row
    compared = ranks[of_all] if is_one else pc.choose(columns.take(cells), *ranks)
    bits = pc.greater_equal(compared, medians.take(cells)).cast(pa.int16())
    return pc.add(pc.add(cells, cells), bits)


def fit_curve(sample: Sequence[pa.Array]) -> ZOrderCurve:
    """Fit a curve to a sample: one array per column, the rows in any order."""
    quantiles = tuple(_quantiles(_searchable(array)) for array in sample)
    levels: list[tuple[pa.Array, pa.Array]] = []
    ranks = [_ranks(some, array) for some, array in zip(quantiles, sample, strict=True)]
    cells = pa.repeat(pa.scalar(0, pa.int16()), len(ranks[0]))
    turns = [0]
    while len(levels) < min(CURVE_BITS, len(cells).bit_length() - 1):
        halvings = [_halvings(column, cells, len(turns)) for column in ranks]
        chosen = [_choose(turn, of_columns) for turn, *of_columns in zip(turns, *halvings, strict=True)]
        columns = pa.array([column for column, _ in chosen], pa.int64())
        levels.append((columns, pa.array([median for _, median in chosen], pa.int16())))
        cells = _with_bit(cells, ranks, *levels[-1])
        turns = [(column + 1) % len(ranks) for column, _ in chosen for _ in range(2)]
    return ZOrderCurve(quantiles, tuple(levels))


_Halving: TypeAlias = tuple[int, float]
"""How a column divides the rows that have the same bits so far: the least rank of the upper half, and the share of the
larger half."""
# All ranks are in the lower half.
_UNDIVIDED: _Halving = (_RANKS, 1.0)


def _halvings(ranks: pa.Array, cells: pa.Array, count: int) -> list[_Halving]:
    """How a column divides the rows of each of ``count`` cells."""
    keys = pc.add(pc.multiply(cells.cast(pa.int64()), _RANKS), ranks.cast(pa.int64()))
    keys = keys.take(pc.array_sort_indices(keys))
    starts = pc.search_sorted(keys, pa.array(range(0, (count + 1) * _RANKS, _RANKS), pa.int64())).to_pylist()
    middles = [(start + end) // 2 for start, end in pairwise(starts)]
    found = keys.take(pa.array([min(middle, len(keys) - 1) for middle in middles if len(keys)], pa.int64()))
    below = pc.search_sorted(keys, found).to_pylist()
    up_to = pc.search_sorted(keys, found, side="right").to_pylist()
    halvings = []
    for cell, key, low, high in zip(range(count), found.to_pylist(), below, up_to, strict=False):
        start, rows = starts[cell], starts[cell + 1] - starts[cell]
        is_low = abs(2 * (low - start) - rows) <= abs(2 * (high - start) - rows)
        part = (low if is_low else high) - start
        if not 0 < part < rows:
            halvings.append(_UNDIVIDED)
        else:
            halvings.append((key % _RANKS + (not is_low), max(part, rows - part) / rows))
    return halvings or [_UNDIVIDED] * count


def _choose(turn: int, halvings: Sequence[_Halving]) -> tuple[int, int]:
    """The column to halve by, and its median: the first column that divides evenly, starting with the column whose turn
    it is; otherwise the column that divides most evenly."""
    in_turn = [n % len(halvings) for n in range(turn, turn + len(halvings))]
    even = (column for column in in_turn if halvings[column][1] <= _EVEN_ENOUGH)
    chosen = next(even, None)
    if chosen is None:
        chosen = min(in_turn, key=lambda column: halvings[column][1])
    return chosen, halvings[chosen][0]


def _quantiles(values: pa.Array) -> pa.Array:
    """Values that divide the sample into equal parts, ascending; a frequent value is repeated."""
    ordered = values.take(pc.array_sort_indices(values, null_placement="at_start"))
    positions = [len(ordered) * (i + 1) // (_QUANTILES + 1) for i in range(_QUANTILES)]
    return ordered.take(pa.array(positions if len(ordered) else [], pa.int64()))


def _ranks(quantiles: pa.Array, array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The number of quantiles at or below each value; nulls are below all quantiles."""
    return pc.fill_null(pc.search_sorted(quantiles, _searchable(array), side="right"), 0).cast(pa.int16())


def _searchable(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Decimals as the nearest doubles, because Arrow cannot search decimals; their order is the same."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array


# The rows of a group are cut into *ranges* of the sort key, each small enough to be sorted in memory.

# A bound may move by this fraction (1 / N) of a range.
_EVEN_PART = 4


Bound: TypeAlias = tuple[tuple[Any, ...], int]
"""The start of a range: a key, and a row number within the group for rows of that key.

With row numbers, rows of equal keys can be cut, too.  Even a group whose rows all have the same key becomes ranges that
fit into memory, in the order of its rows.
"""


def choose_bounds(
    keys: Sequence[pa.Array | pa.ChunkedArray], rows: Sequence[int], order: pa.Array, ranges: int
) -> tuple[Bound, ...]:
    """``ranges - 1`` bounds that cut a sample into equal parts.

    ``rows`` are the numbers of the sampled rows within the group, ``order`` the indexes of the sample in sorted order.
    """
    count = len(order)
    positions = [order[count * i // ranges].as_py() for i in range(1, ranges)] if count else []
    return tuple((tuple(key[p].as_py() for key in keys), rows[p]) for p in positions)


def at_cells(bounds: Sequence[Bound], cells: pa.Array) -> tuple[Bound, ...]:
    """Move the bounds of a sample to cells that divide the curve evenly.

    ``cells`` are the cells of the sample, sorted.  A bound stays if the share of rows before such a cell differs from
    the share of cells, because many rows with equal values are in a single cell.
    """
    ranges, rows = len(bounds) + 1, len(cells)
    moved = []
    for number, bound in enumerate(bounds, start=1):
        cell = (number << CURVE_BITS) // ranges
        before = pc.sum(pc.less(cells, cell)).as_py() or 0
        is_even = abs(before - rows * number // ranges) <= rows // ranges // _EVEN_PART
        moved.append(((cell,), 0) if is_even else bound)
    return tuple(moved)


def cut(
    keys: Sequence[pa.Array], order: pa.Array, first_row: int, bounds: Sequence[Bound], columns: Sequence[KeyColumn]
) -> Iterator[tuple[int, pa.Array]]:
    """Yield ``(range, indexes)`` for every range that has rows of a batch: indexes into the batch, sorted.

    ``order`` are all indexes of the batch, sorted; ``first_row`` is the number of its first row within the group.
    """

    def key_at(position: int) -> tuple[_Place, ...]:
        index = order[position].as_py()
        return _places([key[index].as_py() for key in keys], columns)

    start = 0
    for number, (key, row) in enumerate(bounds):
        wanted = _places(key, columns)
        low = bisect_left(range(len(order)), wanted, lo=start, key=key_at)
        high = bisect_right(range(len(order)), wanted, lo=low, key=key_at)
        # Rows of equal keys keep their order, so these numbers rise.
        end = bisect_left(range(len(order)), row - first_row, lo=low, hi=high, key=lambda p: order[p].as_py())
        if end > start:
            yield number, order.slice(start, end - start)
        start = end
    if start < len(order):
        yield len(bounds), order.slice(start)


class _Place:
    """A value with the order of its key column: direction, nulls first or last."""

    __slots__ = ("_descending", "_null_side", "_value")

    def __init__(self, value: Any, column: KeyColumn) -> None:
        self._value = value
        self._descending = column.descending
        self._null_side = 0 if value is not None else (-1 if column.nulls_first else 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and (self._null_side, self._value) == (other._null_side, other._value)

    def __lt__(self, other: _Place) -> bool:
        if self._null_side or other._null_side:
            return self._null_side < other._null_side
        return bool(other._value < self._value if self._descending else self._value < other._value)

    __hash__ = None  # type: ignore[assignment]


def _places(values: Sequence[Any], columns: Sequence[KeyColumn]) -> tuple[_Place, ...]:
    return tuple(_Place(value, column) for value, column in zip(values, columns, strict=True))
