"""Joins the small batches of small files, so that what is asked of each batch is asked less often."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

__all__ = ["joined_batches"]


def joined_batches(batches: Iterable[pa.RecordBatch], enough_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of about ``enough_bytes`` where they came in smaller ones.

    A batch that is as large already is given as it is, not copied.  Batches without rows are left out.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        size = batch.nbytes
        if held and size >= enough_bytes:
            yield _joined(held)
            held_bytes = 0
        held.append(batch)
        held_bytes += size
        if held_bytes >= enough_bytes:
            yield _joined(held)
            held_bytes = 0
    if held:
        yield _joined(held)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All of them as one batch; the list is emptied, so that the parts are freed."""
    batch = held[0] if len(held) == 1 else pa.concat_batches(held)
    held.clear()
    return batch
