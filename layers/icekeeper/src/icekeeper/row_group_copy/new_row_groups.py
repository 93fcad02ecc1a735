"""Describes copied row groups in their new place: every offset that a footer or page index holds (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from icekeeper.row_group_copy.chunk_checks import Piece, bloom_filter, data_pages, offset_index
from icekeeper.row_group_copy.footer_decisions import Lacks, agree, kept_column_index, settle
from icekeeper.row_group_copy.footer_structs import ColumnChunk, RowGroup
from icekeeper.row_group_copy.layout import Placement
from icekeeper.row_group_copy.page_structs import OffsetIndex, PageLocation
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.thrift_bytes import read_exactly, write_struct

__all__ = ["IndexStarts", "MovedRowGroups", "column_indexes_of", "indexes_of", "move_row_groups"]


@dataclass(frozen=True, slots=True)
class IndexStarts:
    """Where the page indexes of one input begin in the new file."""

    column_indexes: int
    offset_indexes: int


@dataclass(frozen=True, slots=True)
class MovedRowGroups:
    """The row groups of one input for the new footer, and their page indexes, as bytes."""

    row_groups: tuple[bytes, ...]
    column_indexes: bytes
    offset_indexes: bytes
    split_offsets: tuple[int, ...]
    """Where each row group begins in the new file."""


def indexes_of(group: RowGroup, lacks: Lacks) -> list[Piece]:
    """The page indexes to read for a row group: column indexes that are carried over, and all offset indexes."""
    found = column_indexes_of(group, lacks)
    found += (piece for chunk in group.columns if (piece := offset_index(chunk)) is not None)
    return found


def column_indexes_of(group: RowGroup, lacks: Lacks) -> list[Piece]:
    """The column indexes of a row group that are carried over."""
    kept = (kept_column_index(chunk, number, lacks) for number, chunk in enumerate(group.columns))
    return [piece for piece in kept if piece is not None]


def move_row_groups(
    groups: list[RowGroup],
    placement: Placement,
    starts: IndexStarts,
    lacks: Lacks,
    indexes: Mapping[Piece, bytes],
    pages: Mapping[Piece, list[Piece]],
) -> MovedRowGroups:
    """The row groups of one input as they are in the new file; ``groups`` are changed.

    ``lacks`` is what the new footer says of no row group.  ``indexes`` are the bytes of their page indexes, ``pages``
    the data pages that were found in each column chunk.

    Raises:
        CannotCopy: an offset index contradicts the footer or the pages.
    """
    mover = _Mover(placement, starts, lacks, indexes, pages)
    encoded, splits = [], []
    for number, group in enumerate(groups, placement.first_row_group):
        for column, chunk in enumerate(group.columns):
            mover.move(chunk, column, group.num_rows)
        splits.append(min(data_pages(chunk.meta_data).start for chunk in group.columns))
        group.file_offset = splits[-1]  # parquet-mr 1.12.0 wrote wrong ones (PARQUET-2078)
        group.total_compressed_size = sum(chunk.meta_data.total_compressed_size for chunk in group.columns)
        group.ordinal = number
        settle(group)
        encoded.append(write_struct(group))
    return MovedRowGroups(tuple(encoded), bytes(mover.column_indexes), bytes(mover.offset_indexes), tuple(splits))


class _Mover:
    """Moves column chunks one by one, and collects their page indexes."""

    def __init__(
        self,
        placement: Placement,
        starts: IndexStarts,
        lacks: Lacks,
        indexes: Mapping[Piece, bytes],
        pages: Mapping[Piece, list[Piece]],
    ) -> None:
        self.column_indexes = bytearray()
        self.offset_indexes = bytearray()
        self._placement = placement
        self._starts = starts
        self._lacks = lacks
        self._indexes = indexes
        self._pages = pages

    def move(self, chunk: ColumnChunk, column: int, rows: int) -> None:
        """Give one column chunk its new offsets, and what the new footer says of all of its column."""
        meta = chunk.meta_data
        here = data_pages(meta)
        shift = self._placement.moved(here.start) - here.start
        agree(chunk, column, self._lacks)
        bloom, bounds, places = bloom_filter(meta), kept_column_index(chunk, column, self._lacks), offset_index(chunk)
        # Deprecated, and 0 in newer writers; some wrote the end of the chunk, where nothing lies any more.
        chunk.file_offset = chunk.file_offset + shift if here.start <= chunk.file_offset < here.end else 0
        meta.data_page_offset += shift
        if meta.dictionary_page_offset:
            meta.dictionary_page_offset += shift
        if bloom is not None:
            meta.bloom_filter_offset = self._placement.moved(bloom.start)
        if bounds is not None:
            chunk.column_index_offset = self._starts.column_indexes + len(self.column_indexes)
            self.column_indexes += self._indexes[bounds]
        if places is not None:
            moved = _moved_places(self._indexes[places], self._pages[here], shift, rows)
            chunk.offset_index_offset = self._starts.offset_indexes + len(self.offset_indexes)
            chunk.offset_index_length = len(moved)
            self.offset_indexes += moved
        if not meta.dictionary_page_offset:
            meta.dictionary_page_offset = None
        for structure in (chunk, meta, meta.statistics):
            if structure is not None:
                settle(structure)


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
