"""What is known of the lineage columns of a row group, to be compared with what a new file decodes to (pure)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icekeeper.row_group_copy.evidence import checksum
from icekeeper.rows.lineage import InheritedLineage

__all__ = ["NOTHING", "LineageFacts", "values_checksum"]

NOTHING = (0, 0)
"""The checksums of no values."""


@dataclass(frozen=True, slots=True)
class LineageFacts:
    """What ``_row_id`` and ``_last_updated_sequence_number`` of a row group hold: a value for every row."""

    bounds: tuple[tuple[int, int], ...]
    """The least and the greatest value of each."""
    inherited: InheritedLineage | None = None
    """Known where all values are what the rows inherit."""
    checksums: tuple[int, int] | None = None
    """Of all values of each, where both were encoded of stored values."""


def values_checksum(batch: pa.RecordBatch, before: tuple[int, int]) -> tuple[int, int]:
    """The checksums of the values of both columns, which are not null, after those of the rows before."""
    first, second = (checksum(_bytes(column), crc) for column, crc in zip(batch.columns, before, strict=True))
    return first, second


def _bytes(column: pa.Array) -> memoryview:
    start, end = column.offset * 8, (column.offset + len(column)) * 8
    return memoryview(column.buffers()[1])[start:end]
