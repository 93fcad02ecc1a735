"""Checks column chunks whose bytes nobody reads, by what footer and page indexes say of them (pure) (rule 131).

A footer that claims a chunk to end before its last page does is read well where the rest of the page follows all the
same, and not in a copy, where something else follows.  So what ends a chunk must be certain: an offset index whose
pages fill it, or something else that begins there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from icekeeper.row_group_copy.chunk_checks import Piece, bloom_filter, column_index, data_pages, offset_index
from icekeeper.row_group_copy.footer_structs import ColumnChunk, RowGroup
from icekeeper.row_group_copy.page_structs import OffsetIndex
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.thrift_bytes import read_exactly

__all__ = ["claimed_pages", "ends_are_certain"]


def ends_are_certain(groups: Sequence[RowGroup], footer_start: int) -> bool:
    """Whether every column chunk without an offset index ends where something else begins."""
    chunks = [chunk for group in groups for chunk in group.columns]
    begins = {footer_start}
    for chunk in chunks:
        others = bloom_filter(chunk.meta_data), column_index(chunk), offset_index(chunk)
        begins.update(piece.start for piece in (data_pages(chunk.meta_data), *others) if piece is not None)
    return all(offset_index(chunk) is not None or data_pages(chunk.meta_data).end in begins for chunk in chunks)


def claimed_pages(groups: Sequence[RowGroup], indexes: Mapping[Piece, bytes]) -> dict[Piece, list[Piece]]:
    """The data pages of the column chunks that have an offset index, by their chunk.

    Raises:
        CannotCopy: the pages do not fill their chunk.
    """
    found = {}
    for group in groups:
        for chunk in group.columns:
            places = offset_index(chunk)
            if places is not None:
                found[data_pages(chunk.meta_data)] = _pages(chunk, indexes[places])
    return found


def _pages(chunk: ColumnChunk, data: bytes) -> list[Piece]:
    meta = chunk.meta_data
    locations = read_exactly(OffsetIndex, data).page_locations
    pages = [Piece(place.offset, place.offset + place.compressed_page_size) for place in locations]
    if (
        not pages
        or pages[0].start != meta.data_page_offset
        or pages[-1].end != data_pages(meta).end
        or any(page.size <= 0 for page in pages)
        or any(before.end != after.start for before, after in pairwise(pages))
    ):
        raise CannotCopy("has an offset index whose pages do not fill their column chunk")
    return pages
