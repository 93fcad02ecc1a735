"""Files of an object store are read in few requests, and the next small ones while the present one is decoded."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.errors import StorageError
from icekeeper.rows import file_rows
from icekeeper.rows import read as opened_inputs
from icekeeper.rows.read import Tally, read_rows
from icekeeper.rows.read_task import InputFile
from icekeeper.storage.storage import Storage
from support.rewrites import rows, struct, task

COLUMNS = 10
SCHEMA = struct(*((number, f"c{number}", "long") for number in range(1, COLUMNS + 1)))


class Far(Storage):
    """Holds a local folder as if it were an object store's, and counts what is read of each file."""

    def __init__(self, folder: Path) -> None:
        super().__init__({})
        self._folder = folder
        self.reads: list[str] = []
        self._counting = threading.Lock()
        self.meeting: threading.Barrier | None = None

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        with self.translated(path):
            return pa.PythonFile(_Counted(self, self._folder / path.removeprefix("s3://bucket/")), mode="r")

    def read_once(self, name: str) -> None:
        with self._counting:
            self.reads.append(name)
        if self.meeting is not None:
            self.meeting.wait(timeout=20)


class _Counted:
    def __init__(self, storage: Far, path: Path) -> None:
        self._storage = storage
        self._name = path.name
        self._file = pa.OSFile(str(path))

    def __getattr__(self, name: str) -> Any:
        if name not in ("closed", "close", "size", "seek", "tell", "readable", "seekable", "writable"):
            raise AttributeError(name)
        return getattr(self._file, name)

    def read(self, size: int = -1) -> pa.Buffer:
        self._storage.read_once(self._name)
        return self._file.read_buffer(None if size < 0 else size)


def made(folder: Path, number: int, count: int = 100, group: int = 1000) -> InputFile:
    """A file as the task names it; its ids are unique among all files."""
    ids = list(range(number * 1000, number * 1000 + count))
    path = folder / f"in-{number}.parquet"
    pq.write_table(rows(SCHEMA, {f"c{column}": ids for column in range(1, COLUMNS + 1)}), path, row_group_size=group)
    return InputFile(f"s3://bucket/{path.name}", count, path.stat().st_size)


def ids_read(inputs: list[InputFile], storage: Far) -> list[int]:
    work = task(SCHEMA, inputs, Path("unused"))
    return [i for batch in read_rows(work, storage, Tally()) for i in batch.column(0).to_pylist()]


def test_a_small_file_is_one_read(tmp_path: Path) -> None:
    """However many columns and row groups it has; rows come in the order of the files."""
    inputs = [made(tmp_path, number, group=10) for number in range(20)]
    storage = Far(tmp_path)
    assert ids_read(inputs, storage) == [number * 1000 + i for number in range(20) for i in range(100)]
    assert sorted(storage.reads) == sorted(Path(source.path).name for source in inputs)


def test_small_files_are_read_at_the_same_time(tmp_path: Path) -> None:
    """Each read waits until three are under way."""
    inputs = [made(tmp_path, number) for number in range(3)]
    storage = Far(tmp_path)
    storage.meeting = threading.Barrier(3)
    assert len(ids_read(inputs, storage)) == 300
    assert len(storage.reads) == 3


def test_of_a_large_file_the_columns_of_some_rows_are_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of ten rows, five of which make a batch, and a last one; besides, the footer."""
    monkeypatch.setattr(opened_inputs, "_SMALL_BYTES", 1)
    monkeypatch.setattr(file_rows, "BATCH_ROWS", 50)
    source = made(tmp_path, 0, count=110, group=10)
    storage = Far(tmp_path)
    assert ids_read([source], storage) == list(range(110))
    assert len(storage.reads) <= 2 + 3


def test_no_more_is_held_than_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes long over a file does not have all others fetched meanwhile."""
    inputs = [made(tmp_path, number) for number in range(10)]
    monkeypatch.setattr(opened_inputs, "_OPENED_AHEAD_BYTES", 2 * inputs[0].file_size_in_bytes)
    storage = Far(tmp_path)
    reading = read_rows(task(SCHEMA, inputs, tmp_path), storage, Tally())
    next(reading)
    assert len(storage.reads) <= 3
    assert sum(batch.num_rows for batch in reading) == 900


def test_a_file_that_is_larger_than_its_entry_says_is_not_held_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made(tmp_path, 0)
    monkeypatch.setattr(opened_inputs, "_SMALL_BYTES", source.file_size_in_bytes - 1)
    storage = Far(tmp_path)
    assert ids_read([replace(source, file_size_in_bytes=1)], storage) == list(range(100))
    assert len(storage.reads) > 1


def test_a_missing_file_fails_in_its_turn(tmp_path: Path) -> None:
    """By its name; the rows of the files before it come first, and nothing after it."""
    inputs = [made(tmp_path, 0), InputFile("s3://bucket/gone.parquet", 1, 1), made(tmp_path, 2)]
    found: list[int] = []
    reading = read_rows(task(SCHEMA, inputs, tmp_path), Far(tmp_path), Tally())
    with pytest.raises(StorageError, match=r"gone\.parquet"):
        found.extend(i for batch in reading for i in batch.column(0).to_pylist())
    assert found == list(range(100))
