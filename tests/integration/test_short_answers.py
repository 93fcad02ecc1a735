"""A store, or a proxy before it, that answers a read with fewer bytes than it was asked for."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.errors import StorageError
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage import arrow_files as whole_reads
from icekeeper.storage.storage import Storage
from support.proxies import served_by
from support.rewrites import rows, struct

SCHEMA = struct((1, "id", "long"), (2, "value", "double"))
PATH = "s3://bucket/file"


@contextmanager
def store(data: bytes, shorten: Callable[[int, bytes], bytes]) -> Iterator[Storage]:
    """One object behind S3's protocol; ``shorten`` is given where an answer starts and what it should be."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()

        def do_GET(self) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
            assert asked is not None
            start, end = int(asked[1]), int(asked[2])
            body = shorten(start, data[start : end + 1])
            self.send_response(206)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(data)}")
            self.end_headers()
            self.wfile.write(body)

    with served_by(Handler) as endpoint:
        yield Storage({"s3.endpoint": endpoint, "s3.access-key-id": "a", "s3.secret-access-key": "b"})


@pytest.mark.parametrize("missing", [1, 7, 8, 500, 999])
def test_a_short_answer_is_an_error(missing: int) -> None:
    message = r"fewer than the 1000 bytes from 0 of s3://bucket/file"
    with store(bytes(1000), lambda start, body: body[:-missing]) as storage, pytest.raises(StorageError, match=message):
        storage.read(PATH)


def test_it_is_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        whole_reads, "os", SimpleNamespace(urandom=bytes)
    )  # a random mark ends like the data once in 256 times
    answers: list[int] = []

    def first_short(start: int, body: bytes) -> bytes:
        answers.append(start)
        return body[:-1] if len(answers) == 1 else body

    data = bytes(range(256)) * 4
    with store(data, first_short) as storage, storage.open_input(PATH) as stream:
        assert stream.read() == data
    assert answers == [0, 1016, 0]  # the end alone, since the mark may have been sent by chance


def test_every_byte_may_be_the_last_one() -> None:
    """Also the one that the end of the buffer was marked with; reads behind the end are shorter."""
    data = bytes(range(256))
    with store(data, lambda start, body: body) as storage, storage.open_input(PATH) as stream:
        assert [stream.read_at(1, at) for at in range(256)] == [bytes([at]) for at in range(256)]
        assert stream.read_at(10, 250) == data[250:]
        assert stream.seek(0) == 0
        assert stream.read() == data
        assert (stream.read(), stream.size()) == (b"", 256)


def test_no_value_of_a_data_file_is_made_up() -> None:
    """Without compression nothing else tells: rows read from such an answer had values that nobody wrote."""
    sink = io.BytesIO()
    table = rows(SCHEMA, {"id": range(1000), "value": [float(n) for n in range(1000)]})
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    half = sink.tell() // 2

    def read(storage: Storage) -> pa.Table:
        return pa.Table.from_batches(projected_rows(ReadableFile(PATH), SCHEMA, storage))

    with store(sink.getvalue(), lambda start, body: body) as storage:
        assert read(storage) == table
    with (
        store(sink.getvalue(), lambda start, body: body[:-100] if start < half else body) as storage,
        pytest.raises(StorageError, match="fewer than the") as caught,
    ):
        read(storage)
    assert type(caught.value) is StorageError  # the file may be sound (rule 215)
