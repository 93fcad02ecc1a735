"""What is written to S3 is an object once it is complete, in few requests, and nothing after an error (rule 157)."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from icekeeper.machine.resources import with_spare_bytes
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage
from support.paper_s3 import PaperS3, failing, failure, storage_over

TO = "s3://bucket/t/new"


ROOM = 40  # three parts of 10 under way, and one that is filled


@pytest.mark.parametrize("size", [0, 9, 10, 11, 20, 40, 41, 95])
def test_every_byte_arrives_in_parts_of_one_size(size: int) -> None:
    client, data = PaperS3(), random.Random(size).randbytes(size)
    with bounded_output(storage_over(client), TO, ROOM) as sink:
        for start in range(0, size, 7):
            sink.write(memoryview(data)[start : start + 7])
        assert sink.tell() == size
    assert client.objects["bucket/t/new"] == data
    assert [len(client.parts[n]) for n in sorted(client.parts)][:-1] == [10] * (len(client.parts) - 1)
    parts = ["create", *["send"] * -(-size // 10), "complete"]
    assert client.calls == (["put"] if size <= ROOM else parts)
    assert client.open_uploads == 0


def test_no_more_than_three_parts_are_under_way() -> None:
    under_way, most, lock, may_end = 0, 0, threading.Lock(), threading.Semaphore(0)

    def count(call: str, number: int) -> None:
        nonlocal under_way, most
        if call == "send":
            with lock:
                under_way += 1
                most = max(most, under_way)
                if under_way == 3:
                    three.set()
            assert may_end.acquire(timeout=10)
            with lock:
                under_way -= 1

    client = PaperS3(count)
    three = threading.Event()

    def write() -> None:
        with bounded_output(storage_over(client), TO, ROOM) as sink:
            sink.write(bytes(40))
            assert client.calls == []  # what fits into the room does not make the caller wait
            sink.write(bytes(30))

    thread = threading.Thread(target=write)
    thread.start()
    assert three.wait(10)
    for _ in range(7):
        may_end.release()
    thread.join(10)
    assert (most, client.objects["bucket/t/new"]) == (3, bytes(70))


@pytest.mark.parametrize("call", ["send", "complete"])
def test_a_failing_store_is_left_without_an_upload(call: str) -> None:
    client = PaperS3(failing(call, failure(500, "InternalError")))
    storage = storage_over(client)
    with pytest.raises(Exception, match="InternalError"), bounded_output(storage, TO, ROOM) as sink:
        sink.write(bytes(45))
    assert (client.open_uploads, client.objects.get("bucket/t/new")) == (0, None)


@pytest.mark.parametrize("size", [5, 25, 55])
def test_nothing_is_left_of_what_an_error_cut_short(size: int) -> None:
    client = PaperS3()

    def interrupted() -> None:
        with bounded_output(storage_over(client), TO, ROOM) as sink:
            sink.write(bytes(size))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (client.open_uploads, client.objects.get("bucket/t/new")) == (0, None)


def test_a_task_with_memory_to_spare_sends_larger_parts() -> None:
    client = PaperS3()
    with with_spare_bytes(80), bounded_output(storage_over(client), TO, ROOM) as sink:
        sink.write(bytes(95))
    assert [len(client.parts[n]) for n in sorted(client.parts)] == [20, 20, 20, 20, 15]


def test_what_a_writer_still_writes_after_an_error_goes_nowhere() -> None:
    """Parquet writers write their footer when they are collected."""
    client = PaperS3()
    with pytest.raises(OSError, match="no more rows"), bounded_output(storage_over(client), TO, ROOM) as sink:
        raise OSError("no more rows")
    assert (sink.write(bytes(500)), client.calls) == (500, [])


def test_local_files_are_written_as_before(tmp_path: Path) -> None:
    with bounded_output(Storage({}), str(tmp_path / "new")) as sink:
        sink.write(b"data")
    assert (tmp_path / "new").read_bytes() == b"data"
