"""Checksums of Parquet pages: verified by whoever reads page bytes, written, and kept by copies (rule 247)."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.errors import FileUnreadable, StorageError
from icekeeper.model import DataFile
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.row_group_copy.footer import PageWalk
from icekeeper.row_group_copy.footer_structs import CannotCopy, ColumnMetaData, DataPageHeader, PageHeader, write_struct
from icekeeper.rows.apply_deletes import position_rows
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read_task import InputFile, ReadableFile
from support.copied import MIXED, STORAGE, copied, flipped, mixed_rows, pages, parquet_file
from support.rewrites import input_file, rewritten, task
from support.rewrites import written as one_file

TRIALS = 40
EXPECTED = mixed_rows(0).combine_chunks()


def decoded(path: Path, **more: Any) -> pa.Table:
    return pa.Table.from_batches(projected_rows(ReadableFile(str(path), **more), MIXED, STORAGE)).combine_chunks()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_no_flipped_bit_of_a_page_goes_unnoticed(tmp_path: Path, version: str) -> None:
    """In data pages of both versions and in dictionaries; without verification most bits change values silently."""
    sound = parquet_file(tmp_path / "in.parquet", EXPECTED, write_page_checksum=True, data_page_version=version)
    bits = [bit for _, start, end in pages(sound) for bit in range(start * 8, end * 8)]
    for number, bit in enumerate(random.Random(29).sample(bits, TRIALS)):
        damaged = flipped(sound, tmp_path / f"{number}.parquet", bit)
        with pytest.raises(FileUnreadable, match=f"^file {damaged} cannot be read: .*(?i:checksum)") as found:
            decoded(damaged)
        assert found.value.path == str(damaged)
        to = tmp_path / f"{number}-copy.parquet"
        with pytest.raises(FileUnreadable, match=f"^file {damaged} cannot be read: a page of column ") as found:
            copied([sound, damaged], to)
        assert found.value.path == str(damaged)
        assert not to.exists()


def test_writers_with_wrong_checksums_are_admitted_where_that_is_asked_for(tmp_path: Path) -> None:
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    table = EXPECTED.select(["id"])
    sound = parquet_file(tmp_path / "in.parquet", table, **plain)
    _, start, _ = next(pages(sound))
    other = flipped(sound, tmp_path / "other.parquet", (start + 30) * 8)
    schema = {**MIXED, "fields": MIXED["fields"][:1]}
    inputs = [input_file(tmp_path / "beside.parquet", table)]
    inputs.append(InputFile(str(other), table.num_rows, other.stat().st_size))
    assert list(rewrite_group(task(schema, inputs, tmp_path)).unreadable) == [str(other)]
    admitted = rewrite_group(task(schema, inputs, tmp_path, verify_checksums=False))
    assert (admitted.error, admitted.rows_read) == (None, 2 * table.num_rows)


def test_delete_files_are_verified(tmp_path: Path) -> None:
    table = pa.table({"file_path": ["s3://b/t/data/a.parquet"] * 50, "pos": list(range(50))})
    sound = parquet_file(tmp_path / "in.parquet", table, write_page_checksum=True)
    _, start, _ = list(pages(sound))[-1]
    damaged = flipped(sound, tmp_path / "damaged.parquet", start * 8)
    assert sum(rows.count for rows in position_rows(str(sound), "PARQUET", STORAGE)) == 50
    with pytest.raises(StorageError, match=str(damaged)):
        list(position_rows(str(damaged), "PARQUET", STORAGE))


def test_what_is_written_has_checksums_and_copies_keep_them(tmp_path: Path) -> None:
    written = one_file(rewritten(MIXED, [EXPECTED, mixed_rows(100)], tmp_path))
    first = Path(written.file_path)
    made = copied([first, first], tmp_path / "copy.parquet")
    assert isinstance(made, DataFile)
    for path, times in ((first, 1), (Path(made.file_path), 2)):
        data = path.read_bytes()
        found = list(pages(path))
        assert len(found) == times * len(list(pages(first))) > 0
        for header, start, end in found:
            assert header.crc is not None
            assert header.crc & 0xFFFFFFFF == zlib.crc32(data[start:end])
    assert pq.ParquetFile(made.file_path, page_checksum_verification=True).read().num_rows == 4 * 60


def test_pages_without_a_checksum_are_copied_and_read(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", EXPECTED)
    assert all(header.crc is None for header, *_ in pages(path))
    assert decoded(path).equals(EXPECTED)
    assert isinstance(copied([path], tmp_path / "copy.parquet"), DataFile)


def fed(walk: PageWalk, parts: list[memoryview]) -> None:
    for part in parts:
        walk.feed(part)


def test_bytes_in_pieces_are_verified_as_a_whole() -> None:
    body = bytes(range(200))
    for crc, is_sound in ((zlib.crc32(body), True), (zlib.crc32(body) ^ 1, False)):
        signed = crc - 2**32 if crc >= 2**31 else crc
        header = PageHeader(0, 200, 200, signed, DataPageHeader(7))
        data = write_struct(header) + body
        for size in (1, 7, len(data)):
            walk = PageWalk(ColumnMetaData(data_page_offset=0, total_compressed_size=len(data), num_values=7))
            parts = [memoryview(data)[start : start + size] for start in range(0, len(data), size)]
            if is_sound:
                fed(walk, parts)
                walk.end()
            else:
                with pytest.raises(CannotCopy, match="another checksum"):
                    fed(walk, parts)
