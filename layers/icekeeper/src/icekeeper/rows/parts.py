"""Batches of input files on their way to the lookup of their deletes, several of them at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from icekeeper.rows.read_task import InputFile

__all__ = ["Part", "portions"]

# Arrow bytes that may wait at once.
_HELD_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of an input file."""

    source: InputFile
    first_row: int
    """The position of the first row in the file."""
    batch: pa.RecordBatch


def portions(parts: Iterable[Part], rows: int) -> Iterator[list[Part]]:
    """The parts in their order, so many at a time that they have ``rows`` rows or fill the memory that they may.

    Whoever gets a list may empty it.
    """
    held: list[Part] = []
    held_rows = held_bytes = 0
    for part in parts:
        held.append(part)
        held_rows += part.batch.num_rows
        if held_rows < rows:
            held_bytes += part.batch.nbytes
        if held_rows >= rows or held_bytes >= _HELD_BYTES:
            yield held
            held, held_rows, held_bytes = [], 0, 0
    if held:
        yield held
