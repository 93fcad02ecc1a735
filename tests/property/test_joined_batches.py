"""Batches that are joined on their way to the writer hold the same rows in the same order, and are few (rule 32)."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.operations.compaction.proof import joined_batches

_MIB = 1024 * 1024


def _batch(first: int, rows: int, row_bytes: int) -> pa.RecordBatch:
    """Rows that are numbered from ``first`` on, each of so many bytes."""
    numbers = pa.array(range(first, first + rows), pa.int64())
    return pa.record_batch({"n": numbers, "b": pa.array([b"x" * row_bytes] * rows, pa.binary())})


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, 1_000, 600_000])), max_size=30))
def test_rows_keep_their_order_and_batches_are_joined_until_they_have_enough(sizes: list[tuple[int, int]]) -> None:
    given_batches, first = [], 0
    for count, row_bytes in sizes:
        given_batches.append(_batch(first, count, row_bytes))
        first += count
    joined = list(joined_batches(given_batches, 4 * _MIB))
    assert [n for batch in joined for n in batch["n"].to_pylist()] == list(range(first))
    assert all(batch.num_rows for batch in joined)
    # Of two neighbours at least one has enough, or they were small until a large one came between.
    for one, other in pairwise(joined):
        assert one.nbytes + other.nbytes >= 4 * _MIB
    assert all(batch.nbytes < 8 * _MIB for batch in joined)


def test_a_batch_that_is_large_enough_is_not_copied() -> None:
    small, large = _batch(0, 2, 10), _batch(2, 8, _MIB)
    first, second, third = joined_batches([small, large, small], 4 * _MIB)
    assert first is small
    assert second is large
    assert third is small
