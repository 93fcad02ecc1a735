"""Row groups beyond 2^32 bytes of a file are copied and decoded like any other: one with a hole takes no room."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.model import DataFile
from icekeeper.row_group_copy.footer import bloom_filter, column_index, data_pages, framed, offset_index
from icekeeper.row_group_copy.footer_structs import ColumnChunk, FileMetaData, OffsetIndex, read_exactly, write_struct
from icekeeper.rows.read import Tally, read_rows
from icekeeper.rows.read_task import InputFile
from support.copied import MIXED, STORAGE, copied, mixed_rows, parquet_file
from support.rewrites import task

HOLE = 5 * 2**30


def with_hole(path: Path, far: Path) -> None:
    """The file at ``path`` with a hole behind its first row group; offset indexes are written anew."""
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    metadata = read_exactly(FileMetaData, data[-8 - length : -8])
    first, *others = metadata.row_groups
    end = max(data_pages(chunk.meta_data).end for chunk in first.columns)
    with far.open("wb") as file:
        file.write(data[:end])
        file.seek(end + HOLE)
        file.write(data[end : -8 - length])
        for group in [first, *others]:
            group.file_offset = None
            for chunk in group.columns:
                _move(chunk, data, 0 if group is first else HOLE)
                places = offset_index(chunk)
                assert places is not None
                index = read_exactly(OffsetIndex, data[places.start : places.end])
                for page in index.page_locations:
                    page.offset += 0 if group is first else HOLE
                chunk.offset_index_offset, moved = file.tell(), write_struct(index)
                chunk.offset_index_length = len(moved)
                file.write(moved)
        file.write(framed(write_struct(metadata)))


def _move(chunk: ColumnChunk, data: bytes, shift: int) -> None:
    meta = chunk.meta_data
    meta.data_page_offset += shift
    if meta.dictionary_page_offset:
        meta.dictionary_page_offset += shift
    bloom, bounds = bloom_filter(meta), column_index(chunk)
    if bloom is not None:
        meta.bloom_filter_offset = bloom.start + HOLE
    if bounds is not None:
        chunk.column_index_offset = bounds.start + HOLE


def test_row_groups_behind_a_hole_are_copied_and_decoded(tmp_path: Path) -> None:
    rows = mixed_rows(0, 100)
    path = parquet_file(tmp_path / "in.parquet", rows, bloom_filter_options={"text": {"ndv": 50, "fpp": 0.01}})
    far = tmp_path / "far.parquet"
    with_hole(path, far)
    assert far.stat().st_size > HOLE
    assert pq.read_table(far).equals(rows)

    made = copied([far, path], tmp_path / "copy.parquet")
    assert isinstance(made, DataFile), str(made)
    found = pq.read_table(made.file_path)
    assert found.slice(0, 100).equals(rows)
    assert found.slice(100).equals(rows)
    assert made.file_size_in_bytes < 3 * path.stat().st_size

    source = InputFile(str(far), 100, far.stat().st_size)
    decoded = pa.Table.from_batches(read_rows(task(MIXED, [source], tmp_path), STORAGE, Tally()))
    assert decoded.equals(rows)
