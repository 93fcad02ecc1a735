"""Puts new lineage columns into the row groups of an input, as if they had been in the input (pure).

The column chunks of a small file (:mod:`.new_lineage`) get places behind the end of the input, where nothing lies; the
input's placement then says where these places come to lie in the new file, as it does for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from icekeeper.row_group_copy.chunk_checks import Piece, column_index, data_pages, offset_index
from icekeeper.row_group_copy.footer_structs import ColumnChunk, RowGroup
from icekeeper.row_group_copy.layout import Placement
from icekeeper.row_group_copy.new_lineage import LineageChunks
from icekeeper.row_group_copy.page_structs import OffsetIndex
from icekeeper.row_group_copy.thrift_bytes import read_exactly, write_struct

__all__ = ["WrittenLineage", "spliced"]


@dataclass(frozen=True, slots=True)
class WrittenLineage:
    """The new column chunks of a row group, and where in the new file they begin."""

    chunks: LineageChunks
    start: int


def spliced(
    placement: Placement, groups: Sequence[RowGroup], written: Sequence[WrittenLineage | None]
) -> tuple[Placement, dict[Piece, bytes], dict[Piece, list[Piece]]]:
    """Give the row groups that are copied of an input their new lineage columns.

    Returns:
        The placement of the input with these columns, their page indexes and their pages, each by its place.

    ``written`` has the new columns of each of them, ``None`` where the row group is copied whole.
    """
    ranges, starts = list(placement.file.ranges), list(placement.starts)
    indexes: dict[Piece, bytes] = {}
    pages: dict[Piece, list[Piece]] = {}
    base = placement.file.footer.file_size
    for group, one in zip(groups, written, strict=True):
        if one is None:
            continue
        new = one.chunks
        columns = new.columns()
        for chunk, found in zip(columns, new.pages, strict=True):
            _shift(chunk, base)
            pages[data_pages(chunk.meta_data)] = [_moved(piece, base) for piece in found]
        indexes.update((_moved(piece, base), data) for piece, data in new.column_indexes)
        indexes.update((_moved(piece, base), _moved_index(data, base)) for piece, data in new.offset_indexes)
        ranges.append(_moved(new.place, base))
        starts.append(one.start)
        _add(group, columns)
        base += new.footer.file_size
    file = replace(placement.file, ranges=tuple(ranges))
    return replace(placement, file=file, starts=tuple(starts)), indexes, pages


def _moved(piece: Piece, by: int) -> Piece:
    return Piece(piece.start + by, piece.end + by)


def _moved_index(data: bytes, by: int) -> bytes:
    index = read_exactly(OffsetIndex, data)
    moved = [replace(place, offset=place.offset + by) for place in index.page_locations]
    return write_struct(replace(index, page_locations=moved))


def _shift(chunk: ColumnChunk, by: int) -> None:
    meta = chunk.meta_data
    meta.data_page_offset += by
    if meta.dictionary_page_offset:
        meta.dictionary_page_offset += by
    if column_index(chunk) is not None:
        chunk.column_index_offset = (chunk.column_index_offset or 0) + by
    if offset_index(chunk) is not None:
        chunk.offset_index_offset = (chunk.offset_index_offset or 0) + by


def _add(group: RowGroup, columns: list[ColumnChunk]) -> None:
    group.columns = [*group.columns, *columns]
    group.total_byte_size += sum(chunk.meta_data.total_uncompressed_size for chunk in columns)
