"""Turns deleted positions into a mask over the rows of a batch."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["live_at"]


def live_at(deleted: pa.Array, length: int) -> pa.Array:
    """A mask of ``length`` rows: false at the deleted positions, which ascend, each of them once, at least one.

    Positions of neighbours are runs, and the mask is decoded from the ends of runs: no row is looked up.
    """
    gaps = pc.pairwise_diff(deleted)
    starts = deleted.filter(pc.fill_null(pc.not_equal(gaps, 1), True))
    ends = pc.add(deleted, 1).filter(pa.concat_arrays([pc.not_equal(gaps.slice(1), 1), pa.array([True])]))
    # Live and deleted runs take turns, so their ends are all these in order; a file may begin or end with either.
    turns = pa.concat_arrays([starts, ends])
    turns = turns.take(pc.array_sort_indices(turns)).cast(pa.int32())
    is_live = turns[0].as_py() > 0
    if not is_live:
        turns = turns.slice(1)
    if turns[-1].as_py() < length:
        turns = pa.concat_arrays([turns, pa.array([length], pa.int32())])
    odd = pc.equal(pc.bit_wise_and(pa.arange(0, len(turns)), 1), 1)
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(turns, pc.xor(odd, is_live)))
