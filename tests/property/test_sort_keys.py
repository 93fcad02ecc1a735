"""Rows are sorted by the specification's rules."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    LongType,
    StringType,
    TimestampType,
    TimeType,
    UUIDType,
)

from icekeeper.operations.compaction.terms.recipe import KeyColumn
from icekeeper.operations.compaction.work.sort_keys import SortKeys, choose_bounds, cut, integer_order, sorted_indices
from icekeeper.rows.arrow_schema import arrow_schema
from support.examples import examples

# Every way to sort yields the order of a plain Python sort by the specification's rules.

DAY_US = 86_400_000_000
TYPES: Mapping[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1) | st.integers(-12, 12),
    "long": st.integers(-(2**63), 2**63 - 1) | st.integers(-12, 12),
    "float": st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf]),
    "double": st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf]),
    "decimal(9, 2)": st.decimals(-9_999_999, 9_999_999, places=2),
    "decimal(38, 3)": st.decimals(-(10**34), 10**34, places=3),
    "date": st.integers(-200_000, 200_000),
    "time": st.integers(0, DAY_US - 1),
    "timestamp": st.integers(-400_000 * DAY_US // 10, 400_000 * DAY_US // 10),
    "timestamptz": st.integers(-400_000 * DAY_US // 10, 400_000 * DAY_US // 10),
    "string": st.text(max_size=6) | st.sampled_from(["", "é", "z", "\uffff", "\U0001f600", "aa", "ab"]),
    "uuid": st.binary(min_size=16, max_size=16),
    "fixed[3]": st.binary(min_size=3, max_size=3),
    "binary": st.binary(max_size=4),
}
HASHED: Mapping[str, IcebergType] = {
    "int": LongType(),
    "long": LongType(),
    "decimal(9, 2)": DecimalType(9, 2),
    "decimal(38, 3)": DecimalType(38, 3),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestampType(),
    "timestamptz": TimestampType(),
    "string": StringType(),
    "uuid": UUIDType(),
    "fixed[3]": FixedType(3),
    "binary": BinaryType(),
}
TRUNCATED = ("int", "long", "decimal(9, 2)", "string", "binary")


def transforms_of(kind: str) -> list[str]:
    found = ["identity"]
    if kind in HASHED:
        found += ["bucket[2]", "bucket[16]"]
    if kind in TRUNCATED:
        found += ["truncate[1]", "truncate[3]", "truncate[10]"]
    if kind in ("date", "timestamp", "timestamptz"):
        found += ["year", "month", "day"]
    if kind in ("timestamp", "timestamptz"):
        found += ["hour"]
    return found


@st.composite
def sorts(draw: st.DrawFn) -> tuple[list[str], list[KeyColumn], list[tuple[Any, ...]]]:
    """Types, key columns over them and rows; values repeat, so that later columns and the order of rows count."""
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3))
    columns = [
        KeyColumn(i, draw(st.sampled_from(transforms_of(kind))), draw(st.booleans()), draw(st.booleans()))
        for i, kind in enumerate(kinds, start=1)
    ]
    pools = [draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=6)) for kind in kinds]
    rows = draw(st.lists(st.tuples(*(st.sampled_from(pool) for pool in pools)), max_size=30))
    return kinds, columns, rows


def schema_of(kinds: Sequence[str]) -> dict[str, Any]:
    return {"fields": [{"id": i, "name": f"c{i}", "required": False, "type": k} for i, k in enumerate(kinds, start=1)]}


def batch_of(kinds: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = arrow_schema(schema_of(kinds))
    columns = []
    for i, field in enumerate(schema):
        values = [row[i] for row in rows]
        if field.type == pa.uuid():
            columns.append(pa.ExtensionArray.from_storage(field.type, pa.array(values, pa.binary(16))))
        elif pa.types.is_temporal(field.type):
            storage = pa.int32() if pa.types.is_date(field.type) else pa.int64()
            columns.append(pa.array(values, storage).cast(field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_key(kind: str, transform: str, value: Any) -> Any:
    """The sort key of a value by the specification."""
    name, _, number = transform.rstrip("]").partition("[")
    if name == "bucket":
        return BucketTransform(int(number)).transform(HASHED[kind])(value)
    if name == "truncate":
        width = int(number)
        if isinstance(value, str | bytes):
            return value[:width].encode() if isinstance(value, str) else value[:width]
        unscaled = int(value.scaleb(2)) if isinstance(value, decimal.Decimal) else value
        return unscaled - unscaled % width
    if name in ("year", "month", "day", "hour"):
        micros = value * DAY_US if kind == "date" else value
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)
        parts = (moment.year, moment.month, moment.day, moment.hour)
        return parts[: ("year", "month", "day", "hour").index(name) + 1]
    if kind in ("float", "double"):
        return (True, 0.0, 0.0) if math.isnan(value) else (False, value, math.copysign(1, value))
    return value.encode() if isinstance(value, str) else value


def plain_sort(kinds: Sequence[str], columns: Sequence[KeyColumn], rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """Stable sorts, the last column first."""
    order = list(range(len(rows)))
    for i in reversed(range(len(columns))):
        column, kind = columns[i], kinds[i]
        nulls = [n for n in order if rows[n][i] is None]
        others = [n for n in order if rows[n][i] is not None]

        def key(n: int, i: int = i, kind: str = kind, transform: str = column.transform) -> Any:
            return plain_key(kind, transform, rows[n][i])

        # reverse=True keeps equal rows in their order.
        others.sort(key=key, reverse=column.descending)
        order = nulls + others if column.nulls_first else others + nulls
    return order


@given(sorts())
def test_every_type_and_transform_sorts_by_the_specification(
    case: tuple[list[str], list[KeyColumn], list[tuple[Any, ...]]],
) -> None:
    """NaN above all numbers, -0.0 below 0.0, text by code points, binary unsigned; equal rows keep their order."""
    kinds, columns, rows = case
    keys = SortKeys(columns, schema_of(kinds)).of(batch_of(kinds, rows))
    assert sorted_indices(keys, columns).to_pylist() == plain_sort(kinds, columns, rows)


@given(sorts(), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_ranges_contain_every_row_once_and_in_order(
    case: tuple[list[str], list[KeyColumn], list[tuple[Any, ...]]], ranges: int, portions: int, step: int
) -> None:
    """Rows that are split by bounds of a sample and joined again are sorted like rows that were never split."""
    kinds, columns, rows = case
    batch = batch_of(kinds, rows)
    sorter = SortKeys(columns, schema_of(kinds))
    sampled = list(range(0, len(rows), step))
    keys = [array.take(pa.array(sampled, pa.int64())) for array in sorter.of(batch)]
    bounds = choose_bounds(keys, sampled, sorted_indices(keys, columns), ranges)
    found: list[tuple[int, int, list[int]]] = []
    length = -(-len(rows) // portions)
    for first in range(0, len(rows), max(1, length)):
        part = batch.slice(first, length)
        part_keys = sorter.of(part)
        for number, indices in cut(part_keys, sorted_indices(part_keys, columns), first, bounds, columns):
            found.append((number, first, [first + i for i in indices.to_pylist()]))
    found.sort(key=lambda item: item[:2])
    whole: list[int] = []
    for number in range(ranges):
        waiting = [row for n, _, some in found if n == number for row in some]
        part_keys = [array.take(pa.array(waiting, pa.int64())) for array in sorter.of(batch)]
        whole += [waiting[i] for i in sorted_indices(part_keys, columns).to_pylist()]
    assert whole == plain_sort(kinds, columns, rows)


def test_rows_of_a_single_key_are_cut_into_equal_ranges() -> None:
    """A group whose rows all have the same key is still cut into ranges that fit into memory."""
    columns = [KeyColumn(1)]
    batch = batch_of(["string"], [("same",)] * 1000)
    keys = SortKeys(columns, schema_of(["string"])).of(batch)
    sampled = list(range(0, 1000, 10))
    sample = [array.take(pa.array(sampled, pa.int64())) for array in keys]
    bounds = choose_bounds(sample, sampled, sorted_indices(sample, columns), 4)
    parts = [(n, i.to_pylist()) for n, i in cut(keys, sorted_indices(keys, columns), 0, bounds, columns)]
    assert parts == [(n, list(range(n * 250, n * 250 + 250))) for n in range(4)]


def test_a_column_inside_a_struct_orders_rows_with_the_nulls_of_its_parent() -> None:
    inner = {"type": "struct", "fields": [{"id": 2, "name": "x", "required": False, "type": "int"}]}
    schema = {"fields": [{"id": 1, "name": "s", "required": False, "type": inner}]}
    values: list[Any] = [{"x": 3}, None, {"x": None}, {"x": 1}]
    batch = pa.RecordBatch.from_arrays([pa.array(values, arrow_schema(schema).field(0).type)], names=["s"])
    columns = [KeyColumn(2, nulls_first=False)]
    keys = SortKeys(columns, schema).of(batch)
    assert sorted_indices(keys, columns).to_pylist() == [3, 0, 1, 2]


def test_nanoseconds_are_grouped_like_timestamps() -> None:
    """Nanosecond timestamps hash as microseconds and fall into the same hour (specification, appendix B)."""
    nanos = [1, 3_600_000_000_001, -1, 7_200_000_000_000]
    batch = pa.RecordBatch.from_arrays([pa.array(nanos, pa.int64()).cast(pa.timestamp("ns"))], names=["t"])
    schema = {"fields": [{"id": 1, "name": "t", "required": False, "type": "timestamp_ns"}]}

    def key(transform: str) -> list[Any]:
        values: list[Any] = SortKeys([KeyColumn(1, transform)], schema).of(batch)[0].to_pylist()
        return values

    assert key("hour") == [0, 1, -1, 2]
    bucket: Callable[[Any], Any] = BucketTransform(16).transform(TimestampType())
    assert key("bucket[16]") == [bucket(n // 1000) for n in nanos]


# Sorting integer keys digit by digit yields the order of row comparison.

KINDS = {pa.int8(): 8, pa.int32(): 32, pa.int64(): 64}
WIDTHS = st.sampled_from([1, 2, 5, 12, 13, 24, 31, 47, 62])


@st.composite
def keys(draw: st.DrawFn, rows: int) -> pa.Array:
    """Numbers from a stretch of the type's values, often repeated, with nulls."""
    kind = draw(st.sampled_from(list(KINDS)))
    low, high = -(2 ** (KINDS[kind] - 1)), 2 ** (KINDS[kind] - 1) - 1
    first = draw(st.integers(low, high) | st.sampled_from([low, 0, -1]))
    some = st.integers(first, min(high, first + 2 ** draw(WIDTHS)))
    few = draw(st.lists(some, min_size=1, max_size=5))
    return pa.array(draw(st.lists(st.none() | st.sampled_from(few), min_size=rows, max_size=rows)), kind)


@st.composite
def rows_to_sort(draw: st.DrawFn) -> tuple[list[pa.Array], list[KeyColumn]]:
    rows = draw(st.integers(0, 12))
    count = draw(st.integers(1, 3))
    columns = [
        KeyColumn(i, descending=draw(st.booleans()), nulls_first=draw(st.booleans())) for i in range(1, count + 1)
    ]
    return [draw(keys(rows)) for _ in columns], columns


def place(value: int | None, column: KeyColumn) -> tuple[int, int]:
    """The tuple that Python compares instead of the value."""
    if value is None:
        return (-1 if column.nulls_first else 1, 0)
    return (0, -value if column.descending else value)


@settings(max_examples=examples(25))
@given(rows_to_sort())
def test_rows_are_in_the_order_of_their_comparison(drawn: tuple[list[pa.Array], list[KeyColumn]]) -> None:
    """This holds for both ways to sort; rows of equal keys keep their order."""
    arrays, columns = drawn
    rows = list(zip(*(array.to_pylist() for array in arrays), strict=True))

    def by(row: int) -> Any:
        return [place(value, column) for value, column in zip(rows[row], columns, strict=True)]

    expected = sorted(range(len(rows)), key=by)
    assert sorted_indices(arrays, columns).to_pylist() == expected
    found = integer_order(arrays, columns)
    assert found is None or found.to_pylist() == expected


@pytest.mark.parametrize(
    ("arrays", "is_counted"),
    [
        ([pa.array([0, 2**47], pa.int64())], True),
        ([pa.array([0, 2**49], pa.int64())], False),
        ([pa.array([0, 2**49], pa.int64()), pa.array([0, 2**12], pa.int64())], True),
        ([pa.array([0, 2**49], pa.int64()), pa.array([0, 2**14], pa.int64())], False),
        ([pa.array([-(2**63), 2**63 - 1], pa.int64()), pa.array([1, 2], pa.int64())], False),
        ([pa.array([0, 1], pa.int32()), pa.array(["a", "b"])], False),
        ([pa.array([0.0, 1.0])], False),
    ],
)
def test_digits_are_counted_if_that_is_faster(arrays: list[pa.Array], is_counted: bool) -> None:
    columns = [KeyColumn(i) for i in range(len(arrays))]
    assert (integer_order(arrays, columns) is not None) is is_counted
