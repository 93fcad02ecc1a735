"""Reads that were announced are under way before they are asked for; what is asked for is what is given."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.row_group_copy.merge_files import copyable_file
from icekeeper.row_group_copy.write_copy import input_streams
from icekeeper.storage.arrow_files import ObjectChanged
from icekeeper.storage.read_ahead import RangedStream, Read, can_read_ahead, reading_ahead
from icekeeper.storage.storage import Storage
from support.copied import entry_of, mixed_rows, parquet_file, target_of

DATA = bytes(range(256))


class Requests:
    """Takes the place of the store; an answer waits until ``may_end``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, int, int]] = []
        self.may_end = threading.Event()
        self.may_end.set()
        monkeypatch.setattr("icekeeper.storage.read_ahead.read_s3_range", self._read)

    def _read(self, client: Any, path: str, start: int, end: int, etag: str | None) -> bytes:
        self.sent.append((path, start, end))
        assert self.may_end.wait(10)
        if etag == "other":
            raise ObjectChanged(path)
        return DATA[start:end]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


@pytest.fixture
def storage() -> Storage:
    made = Storage({})
    made.__dict__["s3"] = None
    return made


def judged(path: Path) -> CopyableFile:
    file = copyable_file(entry_of(path), target_of(), Storage({}))
    assert isinstance(file, CopyableFile)
    return file


def reads(*bounds: tuple[int, int], path: str = "a", etag: str | None = None) -> list[Read]:
    return [Read(path, etag, start, end) for start, end in bounds]


def test_three_requests_are_under_way_and_never_more(storage: Storage, requests: Requests) -> None:
    announced = reads(*((n, n + 1) for n in range(6)))
    requests.may_end.clear()
    with reading_ahead(storage, announced) as read:
        until(lambda: len(requests.sent) == 3)
        requests.may_end.set()
        assert bytes(read(announced[0])) == DATA[:1]
        until(lambda: len(requests.sent) == 4)
        time.sleep(0.01)
        assert len(requests.sent) == 4
        assert b"".join(map(read, announced[1:])) == DATA[1:6]
    assert sorted(requests.sent) == [("a", n, n + 1) for n in range(6)]


def until(holds: Any) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_parts_of_what_was_announced_take_no_request(storage: Storage, requests: Requests) -> None:
    with reading_ahead(storage, reads((0, 100), (100, 200))) as read:
        for start, end in ((10, 20), (50, 100), (0, 5), (150, 200)):
            assert bytes(read(Read("a", None, start, end))) == DATA[start:end]
    assert sorted(requests.sent) == [("a", 0, 100), ("a", 100, 200)]


def test_what_was_not_announced_is_read_and_what_was_is_left_out(storage: Storage, requests: Requests) -> None:
    announced = reads((0, 10), (20, 30), (40, 50))
    with reading_ahead(storage, announced) as read:
        stream = RangedStream(read, "a", None)
        stream.seek(200)
        assert bytes(stream.read_buffer(5)) + bytes(stream.read_buffer(5)) == DATA[200:210]
        assert bytes(read(announced[2])) == DATA[40:50]
        assert bytes(read(announced[0])) == DATA[0:10]  # was left out: again
    bounds = [(0, 10), (0, 10), (20, 30), (40, 50), (200, 205), (205, 210)]
    assert sorted(requests.sent) == [("a", *pair) for pair in bounds]


def test_a_failure_comes_where_the_bytes_would(storage: Storage, requests: Requests) -> None:
    announced = [*reads((0, 10)), *reads((10, 20), path="b", etag="other")]
    with reading_ahead(storage, announced) as read:
        assert bytes(read(announced[0])) == DATA[:10]
        with pytest.raises(ObjectChanged, match="b"):
            read(announced[1])


def test_local_files_are_not_read_ahead(tmp_path: Path, requests: Requests) -> None:
    path = parquet_file(tmp_path / "a.parquet", mixed_rows(0))
    file = judged(path)
    with input_streams([file], Storage({})) as opened, opened(file) as stream:
        assert bytes(stream.read_buffer(4)) == b"PAR1"
    assert requests.sent == []
    assert [can_read_ahead(one) for one in (str(path), "s3a://b/k", "gs://b/k")] == [False, True, False]


def test_page_indexes_are_announced_with_one_read(tmp_path: Path, storage: Storage, requests: Requests) -> None:
    """They lie in the widest gap between what is copied and the footer."""
    file = judged(parquet_file(tmp_path / "a.parquet", mixed_rows(0)))
    file = replace(file, footer=replace(file.footer, path="s3://bucket/a"))
    requests.may_end.clear()
    with input_streams([file], storage):
        until(lambda: len(requests.sent) == 2)
        requests.may_end.set()
    data = (file.path, file.ranges[0].start, file.ranges[0].end)
    assert requests.sent == [(file.path, file.ranges[-1].end, file.footer.start), data]
