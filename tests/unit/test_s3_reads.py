"""Reads of S3 objects in one request, and reads ahead."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, IncompleteReadError
from botocore.response import StreamingBody

from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.row_group_copy.merge_files import copyable_file
from icekeeper.row_group_copy.write_copy import input_streams
from icekeeper.storage.arrow_files import ObjectChanged
from icekeeper.storage.part_plan import ObjectRange
from icekeeper.storage.paths import is_s3
from icekeeper.storage.read_ahead import RangedStream, reading_ahead
from icekeeper.storage.s3_reads import ONE_READ_BYTES, ObjectPart, read_end, read_object
from icekeeper.storage.storage import Storage
from support.copied import entry_of, mixed_rows, parquet_file, target_of

# An object is read with one request, whose answer shows whether it is complete (rule: short-reads-are-errors).

PATH = "s3://bucket/dir/file"


class Client:
    """A client with one object; ``change`` alters its correct answers."""

    def __init__(
        self, data: bytes, change: Callable[[dict[str, Any], int], Any] = lambda answer, number: answer
    ) -> None:
        self.data, self.change = data, change
        self.asked: list[dict[str, str]] = []

    def get_object(self, **request: str) -> Any:
        self.asked.append(request)
        assert (request["Bucket"], request["Key"]) == ("bucket", "dir/file")
        first, last = re.fullmatch(r"bytes=(\d*)-(\d+)", request["Range"]).groups()  # type: ignore[union-attr]  # it fits
        size = len(self.data)
        start = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first else size
        if not size:
            raise refused("InvalidRange", 416, {"content-range": "bytes */0"})
        answer = {"ContentRange": f"bytes {start}-{end - 1}/{size}", "data": self.data[start:end], "ETag": "e"}
        answer = self.change(answer, len(self.asked))
        data = answer.pop("data")
        answer.setdefault("ContentLength", len(data))
        return {**answer, "Body": StreamingBody(io.BytesIO(data), answer["ContentLength"])}


def refused(code: str, status: int, headers: dict[str, str] | None = None) -> ClientError:
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": metadata}, "GetObject")


def test_a_small_object_takes_one_request() -> None:
    client = Client(b"abc" * 1000)
    assert read_object(client, PATH) == b"abc" * 1000
    assert len(client.asked) == 1


def test_a_large_object_is_read_in_parts_of_one_etag() -> None:
    data = bytes(range(256)) * (ONE_READ_BYTES // 256 + 1)
    client = Client(data)
    assert read_object(client, PATH) == data
    assert [request.get("IfMatch") for request in client.asked] == [None, "e"]


def test_parts_with_different_etags_are_an_error() -> None:
    """Also if the store ignores conditions (platform: moto-lets-pass)."""
    client = Client(bytes(ONE_READ_BYTES + 1), lambda answer, number: {**answer, "ETag": f"e{number}"})
    with pytest.raises(OSError, match=f"{PATH} was replaced while it was read"):
        read_object(client, PATH)


def test_an_empty_object_is_read() -> None:
    assert read_object(Client(b""), PATH) == b""
    assert read_end(Client(b""), PATH, 10) == ObjectPart(b"", 0)


def test_a_read_of_the_end_returns_the_size_of_the_object() -> None:
    assert read_end(Client(b"0123456789"), PATH, 4) == ObjectPart(b"6789", 10, "e")
    assert read_end(Client(b"0123456789"), PATH, 40) == ObjectPart(b"0123456789", 10, "e")


def test_an_answer_without_ranges_is_the_whole_object() -> None:
    def whole(answer: dict[str, Any], number: int) -> dict[str, Any]:
        return {"data": b"0123456789"}

    assert read_object(Client(b"0123456789", whole), PATH) == b"0123456789"
    assert read_end(Client(b"0123456789", whole), PATH, 4) == ObjectPart(b"6789", 10)


def short(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "data": answer["data"][:-1]}


def cut(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "ContentLength": len(answer["data"]), "data": answer["data"][:-1]}


def elsewhere(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "ContentRange": "bytes 1-1000/1001"}


@pytest.mark.parametrize("wrong", [short, cut, elsewhere])
@pytest.mark.parametrize("read", [read_object, lambda client, path: read_end(client, path, 500).data])
def test_a_short_answer_is_requested_again_once(
    wrong: Callable[[dict[str, Any]], Any], read: Callable[[Any, str], bytes]
) -> None:
    data = bytes(range(250)) * 4
    client = Client(data, lambda answer, number: wrong(answer) if number == 1 else answer)
    assert read(client, PATH) == data[-len(read(Client(data), PATH)) :]
    assert len(client.asked) == 2
    client = Client(data, lambda answer, number: wrong(answer))
    with pytest.raises((OSError, IncompleteReadError), match="fewer than the"):
        read(client, PATH)
    assert len(client.asked) == 2


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("NoSuchKey", 404, FileNotFoundError),
        ("NoSuchBucket", 404, FileNotFoundError),
        ("AccessDenied", 403, PermissionError),
        ("SlowDown", 503, ClientError),
        ("PreconditionFailed", 412, ClientError),
    ],
)
def test_a_refusal_raises_the_error_that_pyarrow_raises(code: str, status: int, error: type[Exception]) -> None:
    def fail(answer: dict[str, Any], number: int) -> dict[str, Any]:
        raise refused(code, status)

    with pytest.raises(error):
        read_object(Client(b"x", fail), PATH)


def test_a_refused_range_of_a_non_empty_object_is_an_error() -> None:
    def fail(answer: dict[str, Any], number: int) -> dict[str, Any]:
        raise refused("InvalidRange", 416, {"content-range": "bytes */7"})

    with pytest.raises(ClientError):
        read_object(Client(b"x", fail), PATH)


# Announced reads start ahead; each read returns exactly its range.

DATA = bytes(range(256))


class Requests:
    """Replaces the store; answers wait for ``may_end``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, int, int]] = []
        self.may_end = threading.Event()
        self.may_end.set()
        monkeypatch.setattr("icekeeper.storage.read_ahead.read_s3_range", self._read)

    def _read(self, client: Any, wanted: ObjectRange) -> bytes:
        self.sent.append((wanted.path, wanted.start, wanted.end))
        assert self.may_end.wait(10)
        if wanted.etag == "other":
            raise ObjectChanged(wanted.path)
        return DATA[wanted.start : wanted.end]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


@pytest.fixture
def storage() -> Storage:
    made = Storage({})
    made.__dict__["s3"] = None
    return made


def copyable(path: Path) -> CopyableFile:
    file = copyable_file(entry_of(path), target_of(), Storage({}))
    assert isinstance(file, CopyableFile)
    return file


def reads(*bounds: tuple[int, int], path: str = "a", etag: str | None = None) -> list[ObjectRange]:
    return [ObjectRange(path, etag, start, end) for start, end in bounds]


def test_at_most_three_requests_run_at_once(storage: Storage, requests: Requests) -> None:
    announced = reads(*((n, n + 1) for n in range(6)))
    requests.may_end.clear()
    with reading_ahead(storage, announced) as read:
        wait_until(lambda: len(requests.sent) == 3)
        requests.may_end.set()
        assert bytes(read(announced[0])) == DATA[:1]
        wait_until(lambda: len(requests.sent) == 4)
        time.sleep(0.01)
        assert len(requests.sent) == 4
        assert b"".join(map(read, announced[1:])) == DATA[1:6]
    assert sorted(requests.sent) == [("a", n, n + 1) for n in range(6)]


def wait_until(holds: Any) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_parts_of_announced_ranges_need_no_request(storage: Storage, requests: Requests) -> None:
    with reading_ahead(storage, reads((0, 100), (100, 200))) as read:
        for start, end in ((10, 20), (50, 100), (0, 5), (150, 200)):
            assert bytes(read(ObjectRange("a", None, start, end))) == DATA[start:end]
    assert sorted(requests.sent) == [("a", 0, 100), ("a", 100, 200)]


def test_unannounced_ranges_are_read_and_unused_announcements_are_dropped(storage: Storage, requests: Requests) -> None:
    announced = reads((0, 10), (20, 30), (40, 50))
    with reading_ahead(storage, announced) as read:
        stream = RangedStream(read, "a", None)
        stream.seek(200)
        assert bytes(stream.read_buffer(5)) + bytes(stream.read_buffer(5)) == DATA[200:210]
        assert bytes(read(announced[2])) == DATA[40:50]
        assert bytes(read(announced[0])) == DATA[0:10]  # its announcement was dropped: read again
    bounds = [(0, 10), (0, 10), (20, 30), (40, 50), (200, 205), (205, 210)]
    assert sorted(requests.sent) == [("a", *pair) for pair in bounds]


def test_a_failed_announced_read_raises_at_its_read(storage: Storage, requests: Requests) -> None:
    announced = [*reads((0, 10)), *reads((10, 20), path="b", etag="other")]
    with reading_ahead(storage, announced) as read:
        assert bytes(read(announced[0])) == DATA[:10]
        with pytest.raises(ObjectChanged, match="b"):
            read(announced[1])


def test_local_files_are_not_read_ahead(tmp_path: Path, requests: Requests) -> None:
    path = parquet_file(tmp_path / "a.parquet", mixed_rows(0))
    file = copyable(path)
    with input_streams([file], Storage({})) as opened, opened(file) as stream:
        assert bytes(stream.read_buffer(4)) == b"PAR1"
    assert requests.sent == []
    assert [is_s3(item) for item in (str(path), "s3a://b/k", "gs://b/k")] == [False, True, False]


def test_page_indexes_are_announced_with_one_read(tmp_path: Path, storage: Storage, requests: Requests) -> None:
    """Page indexes are between the last copied range and the footer."""
    file = copyable(parquet_file(tmp_path / "a.parquet", mixed_rows(0)))
    file = replace(file, footer=replace(file.footer, path="s3://bucket/a"))
    requests.may_end.clear()
    with input_streams([file], storage):
        wait_until(lambda: len(requests.sent) == 2)
        requests.may_end.set()
    data = (file.path, file.ranges[0].start, file.ranges[0].end)
    assert requests.sent == [(file.path, file.ranges[-1].end, file.footer.start), data]
