"""Where the bytes of column chunks lie by a footer, and whether that can be true (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from icekeeper.row_group_copy.footer_structs import ColumnChunk, ColumnMetaData, RowGroup
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_fit import ParquetColumn

__all__ = [
    "Piece",
    "bloom_filter",
    "check_apart",
    "check_chunk",
    "check_statistics",
    "column_index",
    "data_pages",
    "joined",
    "offset_index",
]

# Type of the format → bytes of a value; texts and binaries have any length.
_WIDTHS = {0: 1, 1: 4, 2: 8, 4: 4, 5: 8}
_BYTE_ARRAY, _FIXED_LENGTH = 6, 7


class Piece(NamedTuple):
    """Bytes of a file from ``start`` to before ``end``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def data_pages(meta: ColumnMetaData) -> Piece:
    """The pages of a column chunk, its dictionary page included."""
    start = meta.dictionary_page_offset or meta.data_page_offset
    return Piece(start, start + meta.total_compressed_size)


def bloom_filter(meta: ColumnMetaData) -> Piece | None:
    """The Bloom filter of a column chunk."""
    return _piece(meta.bloom_filter_offset, meta.bloom_filter_length, "a Bloom filter")


def column_index(chunk: ColumnChunk) -> Piece | None:
    """The bounds of a column chunk's pages."""
    return _piece(chunk.column_index_offset, chunk.column_index_length, "a column index")


def offset_index(chunk: ColumnChunk) -> Piece | None:
    """The places of a column chunk's pages."""
    return _piece(chunk.offset_index_offset, chunk.offset_index_length, "an offset index")


def _piece(offset: int | None, length: int | None, what: str) -> Piece | None:
    if offset is None and length is None:
        return None
    if offset is None or length is None:
        raise CannotCopy(f"has {what} of which it does not say where it begins and ends")
    if length <= 0:
        raise CannotCopy(f"claims {what} of {length} bytes")
    return Piece(offset, offset + length)


def check_chunk(chunk: ColumnChunk, column: ParquetColumn, group: RowGroup, codec: int) -> None:
    """Check what a footer says of one column chunk of a row group with rows.

    Raises:
        CannotCopy: it contradicts itself, the schema or the wanted codec.
    """
    meta = chunk.meta_data
    name = column.leaf.name
    if meta.type != column.element.type or meta.path_in_schema != column.path:
        raise CannotCopy(f"has another column chunk where that of column {name} belongs")
    if meta.codec != codec:
        raise CannotCopy(f"has column {name} compressed otherwise than the table asks for")
    enough = meta.num_values >= group.num_rows if column.leaf.repeated else meta.num_values == group.num_rows
    if not enough:
        raise CannotCopy(f"claims {meta.num_values} values of column {name} in a row group of {group.num_rows} rows")
    nulls = None if meta.statistics is None else meta.statistics.null_count
    if nulls is not None and not 0 <= nulls <= meta.num_values:
        raise CannotCopy(f"claims {nulls} nulls among {meta.num_values} values of column {name}")
    if meta.total_compressed_size <= 0 or meta.total_uncompressed_size < 0:
        raise CannotCopy(f"claims a column chunk of {meta.total_compressed_size} bytes for column {name}")
    if meta.index_page_offset or (meta.dictionary_page_offset or 0) < 0:
        raise CannotCopy(f"has pages of column {name} that no reader looks for")
    if not data_pages(meta).start <= meta.data_page_offset < data_pages(meta).end:
        raise CannotCopy(f"claims data pages of column {name} outside of its column chunk")


def check_statistics(meta: ColumnMetaData, column: ParquetColumn) -> None:
    """Check that statistics have the form that their column's type asks for; Arrow ends the process over some others
    (platform 45).

    Raises:
        CannotCopy: they do not.
    """
    name, kind = column.leaf.name, column.element.type or 0
    found, sizes = meta.statistics, meta.size_statistics
    width = column.element.type_length if kind == _FIXED_LENGTH else _WIDTHS.get(kind)
    if found is not None and width is not None:
        for bound in (found.min, found.max, found.min_value, found.max_value):
            if bound is not None and len(bound) != width:
                raise CannotCopy(f"has a bound of {len(bound)} bytes for column {name}, whose values have {width}")
    if sizes is None:
        return
    levels = (
        (sizes.definition_level_histogram, column.definition),
        (sizes.repetition_level_histogram, column.repetition),
    )
    if any(histogram and len(histogram) != highest + 1 for histogram, highest in levels) or (
        sizes.unencoded_byte_array_data_bytes is not None and kind != _BYTE_ARRAY
    ):
        raise CannotCopy(f"has sizes of column {name} that its type does not have")


def joined(pieces: Iterable[Piece], gap: int = 0) -> Iterator[Piece]:
    """Ascending pieces as fewer ones: those with at most ``gap`` bytes between them become one."""
    current: Piece | None = None
    for piece in pieces:
        if current is None:
            current = piece
        elif piece.start - current.end <= gap:
            current = Piece(current.start, max(current.end, piece.end))
        else:
            yield current
            current = piece
    if current is not None:
        yield current


def check_apart(pieces: list[Piece], first: int, end: int) -> None:
    """Check that pieces, ascending, lie from ``first`` to before ``end`` and have no byte in common.

    Raises:
        CannotCopy: they do not.
    """
    if pieces and (pieces[0].start < first or pieces[-1].end > end):
        raise CannotCopy("claims column chunks outside of itself")
    for before, after in pairwise(pieces):
        if after.start < before.end:
            raise CannotCopy(f"claims two things at byte {after.start}")
