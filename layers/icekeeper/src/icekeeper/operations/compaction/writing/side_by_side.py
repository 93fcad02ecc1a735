"""Writes a Parquet file as Arrow does, byte for byte, on several cores: columns are encoded side by side (rule 160).

Arrow's writer, as Python reaches it, encodes the columns of a row group one after the other.  Here each run of
neighbouring columns becomes a small file in memory (:mod:`.encoded_columns`), in a thread of its own, whose pages are
then written to the output in the order of columns.  No second row group is in memory, only the encoded columns that
wait for their turn.

    PAR1 | pages of row group 1, of row group 2, … | Bloom filters | column indexes | offset indexes | footer
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.errors import StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.operations.compaction.writing.column_runs import column_runs
from icekeeper.operations.compaction.writing.encoded_columns import (
    EncodedColumns,
    PlacedChunk,
    chunk_facts,
    encoded_columns,
)
from icekeeper.row_group_copy.chunk_checks import data_pages
from icekeeper.row_group_copy.footer import MAGIC, Footer, framed
from icekeeper.row_group_copy.footer_structs import FileMetaData, RowGroup
from icekeeper.row_group_copy.new_footer import with_one_voice, with_row_groups
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.thrift_bytes import read_exactly, write_struct

__all__ = ["SideBySideWriter", "side_by_side_writer"]

_RUNS_PER_CORE = 8
"""Columns differ in what they cost: the more runs, the less the cores wait for the last one."""
_HELD = 0.2
"""The share of a row group's bytes in memory that may be encoded, or wait, besides a run for each core."""
_MOST_ROWS = 64 * 1024 * 1024
"""Arrow writes no more rows into a row group (``pyarrow.parquet.ParquetWriter.write_table``)."""


def side_by_side_writer(sink: Any, table: pa.Table, options: Mapping[str, Any], cores: int) -> SideBySideWriter | None:
    """A writer of tables as ``table``, which has rows; ``None``: this Arrow writes what this version does not know.

    ``options`` are those of ``ParquetWriter``.
    """
    try:
        model = encoded_columns(table.slice(0, 1), options).footer.metadata()
    except CannotCopy:
        return None
    model.row_groups, model.num_rows = [], 0
    return SideBySideWriter(sink, options, cores, model)


@dataclass(frozen=True, slots=True)
class _Written:
    """A row group whose pages are in the file: what its end will have of it."""

    row_group: bytes
    parts: tuple[tuple[bytes | None, bytes | None, bytes | None], ...]
    """Of every column chunk the Bloom filter, column index and offset index."""
    facts: tuple[int, ...]
    """Of every column chunk a number for all that Arrow says of it: the facts of a large file take much memory."""


class SideBySideWriter:
    """A :class:`.RowGroupWriter`."""

    def __init__(self, sink: Any, options: Mapping[str, Any], cores: int, model: FileMetaData) -> None:
        """``model`` is the footer of a file without rows."""
        self._sink = sink
        self._options = options
        self._cores = cores
        self._model = model
        self._written: list[_Written] = []
        self._pool = WorkThreads(cores, thread_name_prefix="encode")
        self._is_broken = False
        sink.write(MAGIC)

    def write_row_group(self, rows: list[pa.Table]) -> None:
        """Write one row group, or several where Arrow does: of the only table in ``rows``, which is taken out of it, so
        that a column's memory is free once the column is encoded.

        Raises:
            StorageError: Arrow wrote what this version does not know.
            pa.ArrowException, OSError: as Arrow raises them.
        """
        self._is_broken = True
        # What decoding has freed would stay beside what the threads take (platform 67).
        pa.default_memory_pool().release_unused()
        table = rows.pop()
        parts = deque(table.slice(start, _MOST_ROWS).columns for start in range(0, table.num_rows, _MOST_ROWS))
        schema = table.schema
        del table
        try:
            while parts:
                self._written.append(self._encoded(parts.popleft(), schema))
        except CannotCopy as refused:
            raise StorageError(f"the file of columns that Arrow encoded {refused}") from refused
        self._is_broken = False

    def _encoded(self, columns: list[pa.ChunkedArray], schema: pa.Schema) -> _Written:
        """Write one row group; ``columns`` is emptied."""
        count = len(columns[0])
        sizes = [column.nbytes for column in columns]
        most = _HELD * sum(sizes)
        columns.reverse()
        placed: list[PlacedChunk] = []
        under_way: deque[tuple[int, Future[EncodedColumns]]] = deque()
        for run in column_runs(sizes, self._cores * _RUNS_PER_CORE):
            size = sum(sizes[run.start : run.stop])
            while len(under_way) >= self._cores and sum(held for held, _ in under_way) + size > most:
                placed += self._appended(under_way.popleft()[1].result())
            arrays = [columns.pop() for _ in run]
            part = [pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(i) for i in run]))]
            del arrays
            under_way.append((size, self._pool.submit(_encoded_part, part, self._options)))
        while under_way:
            placed += self._appended(under_way.popleft()[1].result())
        return _as_written(count, placed)

    def _appended(self, encoded: EncodedColumns) -> list[PlacedChunk]:
        placed = encoded.placed(int(self._sink.tell()))
        self._sink.write(encoded.pages)
        return placed

    def close(self) -> pq.FileMetaData | None:
        """Write the end of the file, unless writing it has failed; the footer.

        Raises:
            StorageError: Arrow finds other column chunks by the footer than there are.
        """
        self._pool.shutdown(cancel_futures=True)
        if self._is_broken:
            return None
        try:
            thrift = self._end()
            seen = Footer("the new file", 0, 0, thrift).seen_by_arrow()
        except CannotCopy as refused:
            raise StorageError(f"the file of columns that Arrow encoded {refused}") from refused
        if [tuple(map(hash, facts)) for facts in chunk_facts(seen)] != [one.facts for one in self._written]:
            raise StorageError("the new footer does not say of the column chunks what Arrow said of them")
        self._sink.write(framed(with_one_voice(thrift, seen)))
        return seen

    def _end(self) -> bytes:
        """Write what stands between pages and footer; the footer, as Arrow would write it."""
        places = []
        for kind in range(3):
            places.append(int(self._sink.tell()))
            for one in self._written:
                self._sink.write(b"".join(part[kind] or b"" for part in one.parts))
        groups = []
        for one in self._written:
            group = read_exactly(RowGroup, one.row_group)
            for chunk, (bloom_filter, column_index, offset_index) in zip(group.columns, one.parts, strict=True):
                meta = chunk.meta_data
                meta.bloom_filter_offset, meta.bloom_filter_length = _taken(places, 0, bloom_filter)
                chunk.column_index_offset, chunk.column_index_length = _taken(places, 1, column_index)
                chunk.offset_index_offset, chunk.offset_index_length = _taken(places, 2, offset_index)
            self._model.num_rows += group.num_rows
            groups.append(write_struct(group))
        return with_row_groups(self._model, groups)


def _taken(places: list[int], kind: int, part: bytes | None) -> tuple[int | None, int | None]:
    """Where a part of its kind begins and how many bytes it has; the next one of that kind comes after it."""
    if part is None:
        return None, None
    start = places[kind]
    places[kind] += len(part)
    return start, len(part)


def _encoded_part(part: list[pa.Table], options: Mapping[str, Any]) -> EncodedColumns:
    return encoded_columns(part.pop(), options)


def _as_written(rows: int, placed: list[PlacedChunk]) -> _Written:
    chunks = [one.chunk for one in placed]
    group = RowGroup(
        columns=chunks,
        total_byte_size=sum(chunk.meta_data.total_uncompressed_size for chunk in chunks),
        num_rows=rows,
        file_offset=data_pages(chunks[0].meta_data).start,
        total_compressed_size=sum(chunk.meta_data.total_compressed_size for chunk in chunks),
    )
    parts = tuple((one.bloom_filter, one.column_index, one.offset_index) for one in placed)
    return _Written(write_struct(group), parts, tuple(hash(one.facts) for one in placed))
