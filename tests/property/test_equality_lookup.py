"""Equality deletes against an oracle that compares every row with every deleted key."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.rows.equality_deletes import EqualityLookup, deleted_rows

NUMBERS = st.sampled_from([None, 1.0, 2.0, 0.0, -0.0, float("nan")])
TEXTS = st.sampled_from([None, "", "a", "b", "ü"])
LONGS = st.sampled_from([None, 0, 1, -1, 2**62])
ROWS = st.lists(st.tuples(NUMBERS, TEXTS, LONGS), max_size=25)
KEYS = st.lists(st.tuples(NUMBERS, TEXTS, LONGS, st.integers(1, 4)), min_size=1, max_size=25)
TYPES = (pa.float64(), pa.string(), pa.int64())


def same(left: Any, right: Any) -> bool:
    """Null equals null, NaN equals NaN, 0.0 differs from -0.0."""
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


@given(rows=ROWS, keys=KEYS, start=st.integers(0, 2), width=st.integers(1, 3), number=st.integers(0, 4))
def test_exactly_the_rows_that_a_newer_key_equals_are_deleted(
    rows: list[tuple[Any, ...]], keys: list[tuple[Any, ...]], start: int, width: int, number: int
) -> None:
    """By one column, which is sorted where it has an order, or by several."""
    chosen = range(start, min(start + width, 3))

    def columns(tuples: list[tuple[Any, ...]]) -> list[pa.Array]:
        return [pa.array([values[i] for values in tuples], TYPES[i]) for i in chosen]

    newest = pa.array([key[3] for key in keys], pa.int64())
    lookup = EqualityLookup.build(chosen, columns(keys), newest)
    found = deleted_rows([(lookup, columns(rows))], number, len(rows)).to_pylist()
    assert found == [any(key[3] > number and all(same(row[i], key[i]) for i in chosen) for key in keys) for row in rows]
