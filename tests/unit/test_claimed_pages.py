"""An offset index is believed only if its pages lie one behind the other and fill their column chunk (rule 131)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from icekeeper.row_group_copy.footer import Piece, claimed_pages, data_pages
from icekeeper.row_group_copy.footer_structs import (
    CannotCopy,
    ColumnChunk,
    ColumnMetaData,
    OffsetIndex,
    PageLocation,
    RowGroup,
    write_struct,
)

INDEX = Piece(900, 930)
TRUE = ((120, 30, 0), (150, 20, 10), (170, 30, 20))


def pages_of(*places: tuple[int, int, int]) -> list[Piece]:
    """The pages of a chunk from 100 to 200 with a dictionary before 120, by an offset index with these places."""
    meta = ColumnMetaData(dictionary_page_offset=100, data_page_offset=120, total_compressed_size=100)
    chunk = ColumnChunk(meta_data=meta, offset_index_offset=INDEX.start, offset_index_length=INDEX.size)
    index = write_struct(OffsetIndex(page_locations=[PageLocation(*place) for place in places]))
    return claimed_pages([RowGroup(columns=[chunk])], {INDEX: index})[data_pages(meta)]


def test_pages_that_fill_their_chunk_are_believed() -> None:
    assert pages_of(*TRUE) == [Piece(120, 150), Piece(150, 170), Piece(170, 200)]


@pytest.mark.parametrize(
    "change",
    [
        lambda first, middle, last: (),
        lambda first, middle, last: (middle, last),
        lambda first, middle, last: (first, middle),
        lambda first, middle, last: (first, last),
        lambda first, middle, last: (first, middle, (160, 40, 20)),
        lambda first, middle, last: (first, (150, 0, 10), (150, 20, 10), last),
        lambda first, middle, last: (first, (150, 60, 10), (210, -10, 20)),
    ],
    ids=["none", "no first one", "no last one", "a gap", "overlapping", "an empty one", "there and back"],
)
def test_pages_that_do_not_are_refused(change: Callable[..., tuple[tuple[int, int, int], ...]]) -> None:
    with pytest.raises(CannotCopy, match="has an offset index whose pages do not fill their column chunk"):
        pages_of(*change(*TRUE))
