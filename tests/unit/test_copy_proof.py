"""What differs between the row groups read and the file written is seen, whoever is at fault (rule 32)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.errors import StorageError
from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable import lay_out
from icekeeper.row_group_copy.footer_structs import FileMetaData
from icekeeper.row_group_copy.write_copy import BLOCK_BYTES, copy_ranges, write_copy
from icekeeper.storage.storage import Storage
from support.copied import copied, mixed_rows, parquet_file, with_metadata


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return [parquet_file(tmp_path / f"{n}.parquet", mixed_rows(n * 60)) for n in range(2)]


def after_writing(monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Any]) -> None:
    """Change the new file before it is read back."""

    def spoilt(*arguments: Any, **more: Any) -> Any:
        written = write_copy(*arguments, **more)
        change(Path(arguments[1]))
        return written

    monkeypatch.setattr("icekeeper.row_group_copy.merge_files.write_copy", spoilt)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def exchanged_bytes(path: Path) -> None:
    """The same bytes in the other order, as if two inputs had been mixed up."""
    data = path.read_bytes()
    path.write_bytes(data[:4] + data[104:204] + data[4:104] + data[204:])


def footer(change: Callable[[FileMetaData], Any]) -> Callable[[Path], Any]:
    return lambda path: with_metadata(path, change)


def fewer_rows(metadata: FileMetaData) -> None:
    metadata.row_groups[1].num_rows -= 1


def lost_group(metadata: FileMetaData) -> None:
    metadata.num_rows -= metadata.row_groups.pop().num_rows


def exchanged_groups(metadata: FileMetaData) -> None:
    groups = metadata.row_groups
    groups[0], groups[3] = groups[3], groups[0]


def other_bounds(metadata: FileMetaData) -> None:
    statistics = metadata.row_groups[2].columns[0].meta_data.statistics
    assert statistics is not None
    statistics.max_value = bytes(8)


def other_place(metadata: FileMetaData) -> None:
    meta = metadata.row_groups[0].columns[4].meta_data
    meta.data_page_offset -= 1


SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit": (flipped, "row group 3 has other bytes than were read from "),
    "the order of bytes": (exchanged_bytes, "row group 0 has other bytes than were read from "),
    "rows": (footer(fewer_rows), "row group 1 had 25 rows, Arrow sees 24"),
    "a row group": (footer(lost_group), "6 row groups were copied, Arrow sees 5"),
    "the order of row groups": (footer(exchanged_groups), "Arrow sees another description of row group 0 than "),
    "bounds": (footer(other_bounds), "Arrow sees another description of row group 2 than of the one in "),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_not_as_it_was_read_is_seen(
    what: str, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The written size is kept, so that not it, but what was changed, is found."""
    change, sentence = SPOILT[what]
    to = tmp_path / "copy.parquet"

    def keeping_size(path: Path) -> None:
        size = path.stat().st_size
        change(path)
        monkeypatch.setattr(Storage, "open_input", _of_size(Storage.open_input, str(path), size))

    after_writing(monkeypatch, keeping_size)
    with pytest.raises(StorageError) as raised:
        copied(inputs, to)
    assert str(raised.value).startswith(f"rows were not kept: {sentence}")
    assert str(raised.value).endswith(f"{to} was written and is kept for inspection")
    assert to.exists()


def _of_size(original: Any, path: str, size: int) -> Any:
    """An ``open_input`` whose stream has that size if it is of that path: a footer may have become shorter."""

    def opened(storage: Storage, asked: str) -> Any:
        stream = original(storage, asked)
        if asked != path or stream.size() == size:
            return stream
        data = stream.read()
        # What is missing goes in front of the footer, where nothing refers to.
        length = int.from_bytes(data[-8:-4], "little") + 8
        return pa.BufferReader(data[:-length] + bytes(size - len(data)) + data[-length:])

    return opened


def test_a_file_of_another_size_is_seen(inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to = tmp_path / "copy.parquet"
    after_writing(monkeypatch, lambda path: path.write_bytes(path.read_bytes()[:-9]))
    with pytest.raises(StorageError, match=r"\d+ bytes were written, \d+ are there"):
        copied(inputs, to)


def test_pages_that_do_not_decode_are_seen(tmp_path: Path) -> None:
    """Arrow reads the footer, the bytes are as they were read: only decoding tells that they are no values."""
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0), row_group_size=1000, use_dictionary=False)
    data = bytearray(path.read_bytes())
    start = data.index(b"\x28\xb5\x2f\xfd", 0)  # where Zstandard's first frame begins
    while start >= 0:
        data[start] ^= 0xFF
        start = data.find(b"\x28\xb5\x2f\xfd", start)
    path.write_bytes(data)
    with pytest.raises(StorageError, match="rows were not kept: it cannot be read back: "):
        copied([path], tmp_path / "copy.parquet")


def test_nothing_is_left_when_an_input_goes_away(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def failing(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("the disk is gone")
        return copy_ranges(*arguments, **more)

    monkeypatch.setattr("icekeeper.row_group_copy.write_copy.copy_ranges", failing)
    with pytest.raises(StorageError, match="the disk is gone"):
        copied(inputs, tmp_path / "copy.parquet")
    assert not (tmp_path / "copy.parquet").exists()


def test_an_input_that_was_exchanged_after_it_was_judged_is_refused(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanging(files: Any) -> Any:
        inputs[1].write_bytes(inputs[0].read_bytes()[: len(inputs[0].read_bytes()) // 2])
        return lay_out(files)

    monkeypatch.setattr("icekeeper.row_group_copy.merge_files.lay_out", exchanging)
    refused = copied(inputs, tmp_path / "copy.parquet")
    assert str(refused) == f"{inputs[1]} became shorter while it was read"
    assert not (tmp_path / "copy.parquet").exists()


def test_blocks_may_end_anywhere(inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, their headers and column chunks are found across the ends of blocks."""
    whole = copied(inputs, tmp_path / "whole.parquet")
    assert isinstance(whole, DataFile)
    for size in (1, 7, 100):
        assert size < BLOCK_BYTES
        monkeypatch.setattr("icekeeper.row_group_copy.write_copy.BLOCK_BYTES", size)
        parts = copied(inputs, tmp_path / "parts.parquet")
        assert isinstance(parts, DataFile)
        assert (tmp_path / "parts.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
