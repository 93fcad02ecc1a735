"""Where column chunks that nobody reads end must be certain (rule 131)."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.row_group_copy.footer import claimed_pages, data_pages, ends_are_certain, offset_index, read_footer
from icekeeper.row_group_copy.footer_structs import CannotCopy, FileMetaData, NotCopyable
from icekeeper.row_group_copy.write_copy import read_pieces
from support.copied import STORAGE, mixed_rows, parquet_file, with_metadata

COLUMN = 3


def shorter(metadata: FileMetaData) -> None:
    """One chunk claims fewer bytes than its pages have, as parquet-cpp before 1.3.0 did (PARQUET-816)."""
    metadata.row_groups[0].columns[COLUMN].meta_data.total_compressed_size -= 20


def certain(path: Path) -> bool:
    footer = read_footer(str(path), STORAGE)
    assert not isinstance(footer, NotCopyable)
    return ends_are_certain(footer.metadata().row_groups, footer.start)


@pytest.mark.parametrize("indexed", [True, False])
def test_what_arrow_writes_is_certain(indexed: bool, tmp_path: Path) -> None:
    assert certain(parquet_file(tmp_path / "a", mixed_rows(0), write_page_index=indexed))


def test_a_chunk_behind_which_nothing_begins_is_not(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "a", mixed_rows(0), write_page_index=False)
    assert not certain(with_metadata(path, shorter))


def test_with_an_offset_index_its_pages_must_fill_the_chunk(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "a", mixed_rows(0))
    for change in (None, shorter):
        footer = read_footer(str(path if change is None else with_metadata(path, change)), STORAGE)
        assert not isinstance(footer, NotCopyable)
        groups = footer.metadata().row_groups
        assert ends_are_certain(groups, footer.start)
        places = [offset_index(chunk) for group in groups for chunk in group.columns]
        with STORAGE.open_input(str(path)) as stream:
            indexes = read_pieces(stream, [piece for piece in places if piece is not None])
        if change is None:
            pages = claimed_pages(groups, indexes)
            assert pages.keys() == {data_pages(chunk.meta_data) for group in groups for chunk in group.columns}
            assert all(found[-1].end == chunk.end for chunk, found in pages.items())
            continue
        with pytest.raises(CannotCopy, match="has an offset index whose pages do not fill their column chunk"):
            claimed_pages(groups, indexes)
