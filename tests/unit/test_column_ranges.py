"""What statistics of a row group do not say is not believed (rule 151)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.operations.compaction.copy_row_groups import column_ranges
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.equality_deletes import ColumnRange, EqualityLookup, keys_within
from support.rewrites import struct


def row_group(**told: Any) -> Any:
    """A row group of one column with these statistics."""
    usual = {"has_null_count": True, "null_count": 0, "has_min_max": True, "min_raw": 3, "max_raw": 7, "num_values": 5}
    return SimpleNamespace(column=lambda number: SimpleNamespace(statistics=SimpleNamespace(**{**usual, **told})))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, ColumnRange(3, 7, may_be_null=False)),
        ({"null_count": 1}, ColumnRange(3, 7)),
        ({"has_null_count": False}, ColumnRange(3, 7)),
        ({"has_min_max": False}, ColumnRange(may_be_null=False)),
        ({"has_min_max": False, "null_count": 5, "num_values": 0}, ColumnRange(may_have_values=False)),
        ({"has_min_max": False, "has_null_count": False, "num_values": 0}, ColumnRange()),
    ],
)
def test_only_what_is_told_is_known(told: dict[str, Any], expected: ColumnRange) -> None:
    assert column_ranges(row_group(**told), leaf_columns(struct((1, "id", "long")))) == {1: expected}


def test_texts_too_long_for_statistics_may_be_anything() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"name": ["x" * 100_000]}), sink)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    assert not footer.row_group(0).column(0).statistics.has_min_max
    found = column_ranges(footer.row_group(0), leaf_columns(struct((1, "name", "string"))))
    assert found == {1: ColumnRange(may_be_null=False)}


def lookup(*values: Any, kind: pa.DataType) -> EqualityLookup:
    return EqualityLookup.build([1], [pa.array(values, kind)], pa.array([2] * len(values), pa.int64()))


def test_a_bound_holds_in_its_direction_only() -> None:
    """A lower bound that was cut is below every value, and says nothing of the greatest."""
    keys = lookup("aa", "ab", "zz", kind=pa.string())
    assert keys_within(keys, {1: ColumnRange(least=b"ab")}, 1) == 2
    assert keys_within(keys, {1: ColumnRange(most=b"ab")}, 1) == 2
    assert keys_within(keys, {1: ColumnRange(b"ab", b"ab")}, 1) == 1


@pytest.mark.parametrize(
    ("bound", "kind"), [(float("nan"), pa.float64()), (10**9, pa.decimal128(5, 2)), (2**40, pa.int32())], ids=str
)
def test_what_is_no_value_of_the_type_bounds_nothing(bound: Any, kind: pa.DataType) -> None:
    keys = lookup(1, 2, kind=kind)
    assert keys_within(keys, {1: ColumnRange(bound, bound)}, 1) == 2


def test_a_column_that_is_not_told_of_may_hold_every_key() -> None:
    assert keys_within(lookup(1, None, kind=pa.int64()), {2: ColumnRange(5, 6, may_be_null=False)}, 1) == 2
