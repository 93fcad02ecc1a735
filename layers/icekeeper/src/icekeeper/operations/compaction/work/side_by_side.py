"""Write a Parquet file on several cores, byte for byte as Arrow does.

Arrow's writer, called from Python, encodes the columns of a row group one after another.  Here a thread encodes each
run of adjacent columns as a small Parquet file in memory.  Its pages are then written to the output in the order of
columns.  What Arrow writes for a column does not depend on other columns, except for the offsets of pages.
Memory holds a single row group, and encoded columns that wait for their
turn.

    PAR1 | pages of row group 1, of row group 2, … | Bloom filters | column indexes | offset indexes | footer
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.errors import StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.row_group_copy.annotations import with_annotations
from icekeeper.row_group_copy.footer import (
    FRAME,
    MAGIC,
    Footer,
    Piece,
    bloom_filter,
    column_index,
    data_pages,
    framed,
    offset_index,
)
from icekeeper.row_group_copy.footer_structs import (
    CannotCopy,
    ColumnChunk,
    FileMetaData,
    OffsetIndex,
    RowGroup,
    read_exactly,
    write_struct,
)
from icekeeper.row_group_copy.new_footer import with_row_groups, without_partial_bounds


def column_runs(sizes: Sequence[int], parts: int) -> list[range]:
    """Divide columns, given by their bytes, into fewer than ``2 * parts`` non-empty runs of adjacent columns (pure).

    No run has more than its share of the bytes, unless it is a single column.
    """
    most = sum(sizes) / parts
    runs: list[range] = []
    start = total = 0
    for number, size in enumerate(sizes):
        if start < number and total + size > most:
            runs.append(range(start, number))
            start, total = number, 0
        total += size
    if start < len(sizes):
        runs.append(range(start, len(sizes)))
    return runs


ChunkFacts: TypeAlias = tuple[Any, ...]
"""Arrow's metadata of a column chunk; the offsets of its data pages and its dictionary page, if any, come first."""
Parts: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]
"""The Bloom filter, column index and offset index of a column chunk, which are written at the end of the file."""
PlacedChunk: TypeAlias = tuple[ColumnChunk, ChunkFacts, Parts]
"""A column chunk with its offsets in the output, except those of its parts; the parts also refer to pages by their
offsets in the output."""


@dataclass(frozen=True, slots=True)
class EncodedColumns:
    """The column chunks of some columns of a row group in a small file."""

    data: memoryview
    """The small file."""
    footer: Footer
    chunks: tuple[ColumnChunk, ...]
    facts: tuple[ChunkFacts, ...]

    @property
    def pages(self) -> memoryview:
        """The bytes of the column chunks in order."""
        return self.data[len(MAGIC) : data_pages(self.chunks[-1].meta_data).end]

    def placed(self, start: int) -> Iterator[PlacedChunk]:
        """The column chunks in an output in which :attr:`pages` begin at byte ``start``.

        Raises:
            CannotCopy: the small file's indexes or footer contradict themselves.
        """
        by = start - len(MAGIC)
        for chunk, (data_page, dictionary_page, *others) in zip(self.chunks, self.facts, strict=True):
            meta = chunk.meta_data
            places = self._bytes(offset_index(chunk))
            if places is not None:
                places = _moved_index(places, Piece(meta.data_page_offset, data_pages(meta).end), by)
            moved = replace(
                meta,
                data_page_offset=meta.data_page_offset + by,
                dictionary_page_offset=meta.dictionary_page_offset and meta.dictionary_page_offset + by,
                bloom_filter_offset=None,
            )
            facts = (data_page + by, None if dictionary_page is None else dictionary_page + by, *others)
            parts = self._bytes(bloom_filter(meta)), self._bytes(column_index(chunk)), places
            yield ColumnChunk(chunk.file_path, chunk.file_offset, moved), facts, parts

    def _bytes(self, piece: Piece | None) -> bytes | None:
        return None if piece is None else bytes(self.data[piece.start : piece.end])


def encoded_columns(table: pa.Table, options: Mapping[str, Any]) -> EncodedColumns:
    """Encode the columns of a table as a single row group; ``options`` are those of ``ParquetWriter``.

    Raises:
        CannotCopy: Arrow wrote something unknown to this version, or more than one row group.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=table.num_rows, **options)
    data = memoryview(sink.getvalue())
    start = len(data) - FRAME - int.from_bytes(data[-FRAME:-4], "little")
    footer = Footer("what Arrow wrote", len(data), start, bytes(data[start:-FRAME]))
    groups = footer.metadata().row_groups
    if len(groups) != 1:
        raise CannotCopy(f"has {table.num_rows} rows, which Arrow does not write as one row group")
    (chunks,) = (group.columns for group in groups)
    end = len(MAGIC)
    for piece in (data_pages(chunk.meta_data) for chunk in chunks):
        if piece.start != end:
            raise CannotCopy(f"has a column chunk at byte {piece.start}, where {end} was expected")
        end = piece.end
    return EncodedColumns(data, footer, tuple(chunks), tuple(next(chunk_facts(footer.seen_by_arrow()))))


def chunk_facts(footer: pq.FileMetaData) -> Iterator[list[ChunkFacts]]:
    """Arrow's metadata of the column chunks of each row group."""
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        yield [_facts(group.column(i)) for i in range(group.num_columns)]


def _facts(chunk: Any) -> ChunkFacts:
    found = chunk.statistics
    has_bounds = found is not None and found.has_min_max
    return (
        chunk.data_page_offset,
        chunk.dictionary_page_offset,
        chunk.path_in_schema,
        chunk.physical_type,
        chunk.compression,
        chunk.encodings,
        chunk.num_values,
        chunk.total_compressed_size,
        chunk.total_uncompressed_size,
        chunk.has_column_index,
        chunk.has_offset_index,
        None if found is None else (found.has_null_count, found.null_count),
        (found.min_raw, found.max_raw) if has_bounds else None,
    )


def _moved_index(found: bytes, pages: Piece, by: int) -> bytes:
    index = read_exactly(OffsetIndex, found)
    end = pages.start
    for place in index.page_locations:
        if place.offset != end:
            raise CannotCopy(f"has an offset index with a page at byte {place.offset}, where {end} was expected")
        end += place.compressed_page_size
    if end != pages.end:
        raise CannotCopy("has an offset index that does not end with its column chunk")
    moved = [replace(place, offset=place.offset + by) for place in index.page_locations]
    return write_struct(replace(index, page_locations=moved))


# Columns differ in cost: with more runs, cores wait less for the last run.
_RUNS_PER_CORE = 8
# Encoded columns wait for slower columns before them, up to this share of the row group's bytes in memory.
_WAITING = 0.2
# Arrow writes at most this many rows into a row group (``pyarrow.parquet.ParquetWriter.write_table``).
_MOST_ROWS = 64 * 1024 * 1024


def side_by_side_writer(sink: Any, table: pa.Table, options: Mapping[str, Any], cores: int) -> SideBySideWriter | None:
    """A writer of tables like ``table``, which has rows; ``None`` if Arrow writes something unknown to this version.

    ``options`` are those of ``ParquetWriter``.
    """
    try:
        model = encoded_columns(table.slice(0, 1), options).footer.metadata()
    except CannotCopy:
        return None
    model.row_groups, model.num_rows = [], 0
    model.schema = with_annotations(model.schema, table.schema)
    return SideBySideWriter(sink, options, cores, model)


@dataclass(frozen=True, slots=True)
class _Written:
    """A row group whose pages are in the output, with its parts of the end of the file."""

    row_group: bytes
    parts: tuple[Parts, ...]
    """The parts of every column chunk."""
    facts: tuple[int, ...]
    """A hash of the :data:`ChunkFacts` of every column chunk, because the facts of a large file take much memory."""


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
        """Write the only table in ``rows`` as a row group, or as several if Arrow would.

        The table is removed from the list, so that a column's memory is freed once it is encoded.

        Raises:
            StorageError: Arrow wrote something unknown to this version.
            pa.ArrowException, OSError: as Arrow raises them.
        """
        self._is_broken = True
        # Otherwise the memory that decoding has freed adds to the memory of the threads.
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
        """Write a row group; ``columns`` is emptied."""
        count = len(columns[0])
        sizes = [column.nbytes for column in columns]
        most = _WAITING * sum(sizes)
        columns.reverse()
        placed: list[PlacedChunk] = []
        under_way: deque[Future[EncodedColumns]] = deque()
        for run in column_runs(sizes, self._cores * _RUNS_PER_CORE):
            arrays = [columns.pop() for _ in run]
            part = [pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(i) for i in run]))]
            del arrays
            under_way.append(self._pool.submit(_encoded_part, part, self._options))
            # One run more than there are cores, so that no core waits for this thread.
            while len(running := [future for future in under_way if not future.done()]) > self._cores:
                wait(running, return_when=FIRST_COMPLETED)
            while under_way and (
                under_way[0].done() or sum(len(future.result().data) for future in under_way if future.done()) > most
            ):
                placed += self._appended(under_way.popleft().result())
        while under_way:
            placed += self._appended(under_way.popleft().result())
        return _as_written(count, placed)

    def _appended(self, encoded: EncodedColumns) -> list[PlacedChunk]:
        placed = list(encoded.placed(int(self._sink.tell())))
        self._sink.write(encoded.pages)
        return placed

    def close(self) -> pq.FileMetaData | None:
        """Write the end of the file and return the footer; ``None``: writing failed before.

        Raises:
            StorageError: the column chunks that Arrow reads from the new footer differ from the written column chunks.
        """
        self._pool.shutdown(cancel_futures=True)
        if self._is_broken:
            return None
        try:
            thrift = self._end()
            seen = Footer("the new file", 0, 0, thrift).seen_by_arrow()
        except CannotCopy as refused:
            raise StorageError(f"the file of columns that Arrow encoded {refused}") from refused
        if [tuple(map(hash, facts)) for facts in chunk_facts(seen)] != [group.facts for group in self._written]:
            raise StorageError("the new footer describes the column chunks differently than Arrow did")
        self._sink.write(framed(without_partial_bounds(thrift, seen)))
        return seen

    def _end(self) -> bytes:
        """Write the parts between pages and footer, and return the footer as Arrow would write it."""
        places = []
        for kind in range(3):
            places.append(int(self._sink.tell()))
            for written in self._written:
                self._sink.write(b"".join(part[kind] or b"" for part in written.parts))
        groups = []
        for written in self._written:
            group = read_exactly(RowGroup, written.row_group)
            for chunk, (bloom_part, column_part, offset_part) in zip(group.columns, written.parts, strict=True):
                meta = chunk.meta_data
                meta.bloom_filter_offset, meta.bloom_filter_length = _taken(places, 0, bloom_part)
                chunk.column_index_offset, chunk.column_index_length = _taken(places, 1, column_part)
                chunk.offset_index_offset, chunk.offset_index_length = _taken(places, 2, offset_part)
            self._model.num_rows += group.num_rows
            groups.append(write_struct(group))
        return with_row_groups(self._model, groups)


def _taken(places: list[int], kind: int, part: bytes | None) -> tuple[int | None, int | None]:
    """The offset and length of a part; ``places`` then has the offset of the next part of its kind."""
    if part is None:
        return None, None
    start = places[kind]
    places[kind] += len(part)
    return start, len(part)


def _encoded_part(part: list[pa.Table], options: Mapping[str, Any]) -> EncodedColumns:
    return encoded_columns(part.pop(), options)


def _as_written(rows: int, placed: list[PlacedChunk]) -> _Written:
    chunks = [chunk for chunk, _, _ in placed]
    group = RowGroup(
        columns=chunks,
        total_byte_size=sum(chunk.meta_data.total_uncompressed_size for chunk in chunks),
        num_rows=rows,
        file_offset=data_pages(chunks[0].meta_data).start,
        total_compressed_size=sum(chunk.meta_data.total_compressed_size for chunk in chunks),
    )
    parts = tuple(parts for _, _, parts in placed)
    return _Written(write_struct(group), parts, tuple(hash(facts) for _, facts, _ in placed))
