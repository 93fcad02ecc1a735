"""Describes copied row groups in their new place: every offset that a footer or page index holds (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from icekeeper.row_group_copy.bounds_to_hide import hides_bounds, without_bounds
from icekeeper.row_group_copy.chunk_checks import Piece, bloom_filter, column_index, data_pages, offset_index
from icekeeper.row_group_copy.footer_structs import ColumnChunk, RowGroup
from icekeeper.row_group_copy.layout import Placement
from icekeeper.row_group_copy.page_structs import OffsetIndex, PageLocation
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.thrift_bytes import read_exactly, write_struct

__all__ = ["MovedRowGroups", "indexes_of", "move_row_groups"]


@dataclass(frozen=True, slots=True)
class MovedRowGroups:
    """The row groups of one input for the new footer, and their page indexes, as bytes."""

    row_groups: tuple[bytes, ...]
    column_indexes: bytes
    offset_indexes: bytes
    split_offsets: tuple[int, ...]
    """Where each row group begins in the new file."""


def indexes_of(group: RowGroup, schema: ParquetSchema) -> list[Piece]:
    """The page indexes to read for a row group, of which lineage columns may be missing."""
    found = []
    for chunk, column in zip(group.columns, schema.columns, strict=False):
        if not hides_bounds(chunk.meta_data, column.leaf):
            found.append(column_index(chunk))
        found.append(offset_index(chunk))
    return [piece for piece in found if piece is not None]


def move_row_groups(
    groups: list[RowGroup],
    placement: Placement,
    offset_indexes_start: int,
    schema: ParquetSchema,
    indexes: Mapping[Piece, bytes],
    pages: Mapping[Piece, list[Piece]],
) -> MovedRowGroups:
    """The row groups of one input as they are in the new file; ``groups`` are changed.

    ``indexes`` are the bytes of their page indexes, ``pages`` the data pages that were found in each column chunk.

    Raises:
        CannotCopy: an offset index contradicts the footer or the pages.
    """
    mover = _Mover(placement, offset_indexes_start, indexes, pages)
    encoded, starts = [], []
    for number, group in enumerate(groups, placement.first_row_group):
        for chunk, column in zip(group.columns, schema.columns, strict=True):
            mover.move(chunk, group.num_rows, hides_bounds(chunk.meta_data, column.leaf))
        start = min(data_pages(chunk.meta_data).start for chunk in group.columns)
        starts.append(start)
        if group.file_offset is not None:  # parquet-mr 1.12.0 wrote wrong ones (PARQUET-2078)
            group.file_offset = start
        if group.ordinal is not None:
            group.ordinal = number
        encoded.append(write_struct(group))
    return MovedRowGroups(tuple(encoded), bytes(mover.column_indexes), bytes(mover.offset_indexes), tuple(starts))


class _Mover:
    """Moves column chunks one by one, and collects their page indexes."""

    def __init__(
        self,
        placement: Placement,
        offset_indexes_start: int,
        indexes: Mapping[Piece, bytes],
        pages: Mapping[Piece, list[Piece]],
    ) -> None:
        self.column_indexes = bytearray()
        self.offset_indexes = bytearray()
        self._placement = placement
        self._start = offset_indexes_start
        self._indexes = indexes
        self._pages = pages

    def move(self, chunk: ColumnChunk, rows: int, hidden: bool) -> None:
        """Give one column chunk its new offsets."""
        meta = chunk.meta_data
        here = data_pages(meta)
        shift = self._placement.moved(here.start) - here.start
        bloom, bounds, places = bloom_filter(meta), column_index(chunk), offset_index(chunk)
        # Deprecated, and 0 in newer writers; some wrote the end of the chunk, where nothing lies any more.
        chunk.file_offset = chunk.file_offset + shift if here.start <= chunk.file_offset < here.end else 0
        meta.data_page_offset += shift
        if meta.dictionary_page_offset:
            meta.dictionary_page_offset += shift
        if bloom is not None:
            meta.bloom_filter_offset = self._placement.moved(bloom.start)
        if hidden:
            bounds = chunk.column_index_offset = chunk.column_index_length = None
            if meta.statistics is not None:
                meta.statistics = without_bounds(meta.statistics)
        elif meta.statistics is not None:
            meta.statistics.nan_count = None  # a count that other row groups lack must not be taken for the file's
        if bounds is not None:
            chunk.column_index_offset = self._placement.column_indexes_start + len(self.column_indexes)
            self.column_indexes += self._indexes[bounds]
        if places is not None:
            moved = _moved_places(self._indexes[places], self._pages[here], shift, rows)
            chunk.offset_index_offset = self._start + len(self.offset_indexes)
            chunk.offset_index_length = len(moved)
            self.offset_indexes += moved


def _moved_places(data: bytes, pages: list[Piece], shift: int, rows: int) -> bytes:
    index = read_exactly(OffsetIndex, data)
    found = [Piece(place.offset, place.offset + place.compressed_page_size) for place in index.page_locations]
    if found != pages:
        raise CannotCopy("has an offset index that names other pages than there are")
    firsts = [place.first_row_index for place in index.page_locations]
    if not firsts or firsts[0] != 0 or firsts[-1] >= rows or any(b < a for a, b in pairwise(firsts)):
        raise CannotCopy("has an offset index that numbers rows wrongly")
    moved = [PageLocation(p.offset + shift, p.compressed_page_size, p.first_row_index) for p in index.page_locations]
    return write_struct(replace(index, page_locations=moved))
