"""Integer keys are sorted digit by digit into the order that comparing the rows gives."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.operations.compaction.clustering.sort_keys import integer_order, sorted_indices
from icekeeper.operations.compaction.recipe import KeyColumn
from support.examples import examples

KINDS = {pa.int8(): 8, pa.int32(): 32, pa.int64(): 64}
WIDTHS = st.sampled_from([1, 2, 5, 12, 13, 24, 31, 47, 62])


@st.composite
def keys(draw: st.DrawFn, rows: int) -> pa.Array:
    """Numbers from a stretch of the type's values, often the same one again; nulls among them."""
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
    """What Python compares instead of the value."""
    if value is None:
        return (-1 if column.nulls_first else 1, 0)
    return (0, -value if column.descending else value)


@settings(max_examples=examples(60))
@given(rows_to_sort())
def test_rows_lie_as_comparing_them_says(drawn: tuple[list[pa.Array], list[KeyColumn]]) -> None:
    """By both ways to sort, whichever is taken; rows of equal keys keep their order."""
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
def test_digits_are_counted_where_that_is_faster(arrays: list[pa.Array], is_counted: bool) -> None:
    columns = [KeyColumn(i) for i in range(len(arrays))]
    assert (integer_order(arrays, columns) is not None) is is_counted
