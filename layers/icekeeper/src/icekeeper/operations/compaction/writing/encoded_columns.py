"""Encodes some columns of a row group as a small Parquet file in memory, and takes it apart.

What Arrow writes of a column does not depend on the columns beside it, but for the places of pages (platform 67).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.chunk_checks import Piece, bloom_filter, column_index, data_pages, offset_index
from icekeeper.row_group_copy.footer import FRAME, MAGIC, Footer
from icekeeper.row_group_copy.footer_structs import ColumnChunk
from icekeeper.row_group_copy.page_structs import OffsetIndex
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.thrift_bytes import read_exactly, write_struct

__all__ = ["ChunkFacts", "EncodedColumns", "PlacedChunk", "chunk_facts", "encoded_columns"]

ChunkFacts = tuple[Any, ...]
"""What Arrow says of a column chunk; places come first: those of its data pages and of its dictionary page, if any."""


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """A column chunk at its place in a file, and what the end of the file will have of it, as bytes.

    The chunk does not say yet where they lie; an offset index has the places of pages in the file.
    """

    chunk: ColumnChunk
    facts: ChunkFacts
    bloom_filter: bytes | None
    column_index: bytes | None
    offset_index: bytes | None


@dataclass(frozen=True, slots=True)
class EncodedColumns:
    """The column chunks of some columns of a row group, as they lie in a small file."""

    data: memoryview
    """The small file."""
    footer: Footer
    chunks: tuple[ColumnChunk, ...]
    facts: tuple[ChunkFacts, ...]

    @property
    def pages(self) -> memoryview:
        """The bytes of the column chunks, one after the other."""
        return self.data[len(MAGIC) : data_pages(self.chunks[-1].meta_data).end]

    def placed(self, start: int) -> list[PlacedChunk]:
        """The column chunks in a file in which :attr:`pages` begin at byte ``start``.

        Raises:
            CannotCopy: the small file's indexes or footer contradict themselves.
        """
        by = start - len(MAGIC)
        return [_placed(chunk, facts, by, self.data) for chunk, facts in zip(self.chunks, self.facts, strict=True)]


def encoded_columns(table: pa.Table, options: Mapping[str, Any]) -> EncodedColumns:
    """The columns of a table, as one row group; ``options`` are those of ``ParquetWriter``.

    Raises:
        CannotCopy: Arrow wrote what this version does not know, or more than one row group.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=table.num_rows, **options)
    data = memoryview(sink.getvalue())
    footer = _footer_in(data)
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


def _footer_in(data: memoryview) -> Footer:
    """The footer of a Parquet file in memory."""
    start = len(data) - FRAME - int.from_bytes(data[-FRAME:-4], "little")
    return Footer("what Arrow wrote", len(data), start, bytes(data[start:-FRAME]))


def chunk_facts(footer: pq.FileMetaData) -> Iterator[list[ChunkFacts]]:
    """What Arrow says of the column chunks of one row group after the other."""
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


def _placed(chunk: ColumnChunk, facts: ChunkFacts, by: int, data: memoryview) -> PlacedChunk:
    meta = chunk.meta_data
    places = _bytes(offset_index(chunk), data)
    if places is not None:
        places = _moved_index(places, Piece(meta.data_page_offset, data_pages(meta).end), by)
    dictionary = meta.dictionary_page_offset and meta.dictionary_page_offset + by
    moved = replace(
        meta, data_page_offset=meta.data_page_offset + by, dictionary_page_offset=dictionary, bloom_filter_offset=None
    )
    first, second, *others = facts
    return PlacedChunk(
        ColumnChunk(chunk.file_path, chunk.file_offset, moved),
        (first + by, None if second is None else second + by, *others),
        _bytes(bloom_filter(meta), data),
        _bytes(column_index(chunk), data),
        places,
    )


def _bytes(piece: Piece | None, data: memoryview) -> bytes | None:
    return None if piece is None else bytes(data[piece.start : piece.end])


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
