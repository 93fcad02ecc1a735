"""Objects of S3 are read with one request, whose answer shows whether it is whole (rule 123)."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, IncompleteReadError
from botocore.response import StreamingBody

from icekeeper.storage.s3_reads import ONE_READ_BYTES, ObjectEnd, read_end, read_object

PATH = "s3://bucket/dir/file"


class Client:
    """One object behind ``get_object``; ``change`` makes another answer of the right one."""

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


def test_a_large_object_is_read_in_parts_of_one_state() -> None:
    data = bytes(range(256)) * (ONE_READ_BYTES // 256 + 1)
    client = Client(data)
    assert read_object(client, PATH) == data
    assert [request.get("IfMatch") for request in client.asked] == [None, "e"]


def test_parts_of_two_states_are_no_object() -> None:
    """Also where the store ignores conditions (platform 111)."""
    client = Client(bytes(ONE_READ_BYTES + 1), lambda answer, number: {**answer, "ETag": f"e{number}"})
    with pytest.raises(OSError, match=f"{PATH} was replaced while it was read"):
        read_object(client, PATH)


def test_an_object_without_bytes_is_empty() -> None:
    assert read_object(Client(b""), PATH) == b""
    assert read_end(Client(b""), PATH, 10) == ObjectEnd(b"", 0)


def test_the_end_of_an_object_comes_with_its_size() -> None:
    assert read_end(Client(b"0123456789"), PATH, 4) == ObjectEnd(b"6789", 10, "e")
    assert read_end(Client(b"0123456789"), PATH, 40) == ObjectEnd(b"0123456789", 10, "e")


def test_a_store_that_knows_no_ranges_sends_everything() -> None:
    def whole(answer: dict[str, Any], number: int) -> dict[str, Any]:
        return {"data": b"0123456789"}

    assert read_object(Client(b"0123456789", whole), PATH) == b"0123456789"
    assert read_end(Client(b"0123456789", whole), PATH, 4) == ObjectEnd(b"6789", 10)


def short(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "data": answer["data"][:-1]}


def cut(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "ContentLength": len(answer["data"]), "data": answer["data"][:-1]}


def elsewhere(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "ContentRange": "bytes 1-1000/1001"}


@pytest.mark.parametrize("wrong", [short, cut, elsewhere])
@pytest.mark.parametrize("read", [read_object, lambda client, path: read_end(client, path, 500).data])
def test_an_answer_of_fewer_bytes_is_repeated_once_and_then_an_error(
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
def test_a_refusal_is_told_as_pyarrow_tells_it(code: str, status: int, error: type[Exception]) -> None:
    def fail(answer: dict[str, Any], number: int) -> dict[str, Any]:
        raise refused(code, status)

    with pytest.raises(error):
        read_object(Client(b"x", fail), PATH)


def test_a_range_that_is_refused_of_an_object_with_bytes_is_an_error() -> None:
    def fail(answer: dict[str, Any], number: int) -> dict[str, Any]:
        raise refused("InvalidRange", 416, {"content-range": "bytes */7"})

    with pytest.raises(ClientError):
        read_object(Client(b"x", fail), PATH)
