"""Writes the row groups of a file, on all cores of the task where that pays: the bytes are the same (rule 160)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.machine.resources import task_cores
from icekeeper.storage.uploads import WriteOnly

__all__ = ["RowGroupWriter", "row_group_writer"]

_WORTH_CORES = 3
"""Decoding keeps two cores busy beside the encoding (platform 67)."""
_WORTH_THREADS_BYTES = 4 * 1024 * 1024
"""Below so many bytes in memory a row group is encoded in the time that it takes to divide the work."""
_WORTH_RELEASE_BYTES = 64 * 1024 * 1024
"""Of so many bytes the row group, decoding has freed enough to give it back."""


class RowGroupWriter(Protocol):
    """What writes the row groups of a file."""

    def write_row_group(self, rows: list[pa.Table]) -> None:
        """Write the only table in ``rows`` as one row group, or several where it has too many rows for one.

        It is taken out of the list, so that its memory may be free before all of it is written.
        """

    def close(self) -> pq.FileMetaData | None:
        """Write the end of the file; the footer.  After an error there may be none."""


def row_group_writer(sink: Any, first: pa.Table, options: Mapping[str, Any]) -> RowGroupWriter:
    """A writer of tables like ``first``, which will be the first one; ``options`` are those of ``ParquetWriter``."""
    cores = task_cores()
    if cores >= _WORTH_CORES and first.num_columns > 1 and first.nbytes >= _WORTH_THREADS_BYTES:
        # Work that is small, or has few cores, starts without it, and without Thrift.
        from icekeeper.operations.compaction.writing.side_by_side import side_by_side_writer

        writer = side_by_side_writer(sink, first, options, cores)
        if writer is not None:
            return writer
    return _ColumnByColumn(sink, first.schema, options)


class _HeldBack(WriteOnly):
    """A sink that can keep what is written last, so that it may be changed."""

    closed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._kept: bytearray | None = None

    def write(self, data: Any) -> int:
        """Pass bytes on, or keep them."""
        if self._kept is None:
            self._sink.write(data)
        else:
            self._kept += memoryview(data)
        return len(data)

    def tell(self) -> int:
        """How many bytes were written, those that are kept included."""
        return int(self._sink.tell()) + len(self._kept or b"")

    def flush(self) -> None:
        """Nothing: what is passed on is the sink's."""

    def keep(self) -> bytearray:
        """What is written from now on."""
        self._kept = bytearray()
        return self._kept


class _ColumnByColumn:
    """Arrow's own writer."""

    def __init__(self, sink: Any, schema: pa.Schema, options: Mapping[str, Any]) -> None:
        self._sink, self._held_back = sink, _HeldBack(sink)
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(self._held_back, schema, metadata_collector=self._footers, **options)

    def write_row_group(self, rows: list[pa.Table]) -> None:
        table = rows.pop()
        if table.nbytes >= _WORTH_RELEASE_BYTES:
            pa.default_memory_pool().release_unused()  # what decoding has freed (platform 67)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> pq.FileMetaData | None:
        end = self._held_back.keep()
        self._writer.close()
        (footer,) = self._footers
        self._sink.write(_with_one_voice(end, footer))
        return footer


def _with_one_voice(end: bytearray, footer: pq.FileMetaData) -> bytearray:
    """The end of a file, in which a footer does not state bounds of some row groups only (rule 200)."""
    if footer.num_row_groups > 1:
        from icekeeper.row_group_copy.footer import FRAME, framed
        from icekeeper.row_group_copy.new_footer import with_one_voice

        start = len(end) - FRAME - int.from_bytes(end[-FRAME:-4], "little")
        thrift = bytes(end[start:-FRAME])
        end[start:] = framed(with_one_voice(thrift, footer))
    return end
