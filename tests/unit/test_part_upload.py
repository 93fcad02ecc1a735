"""Objects in parts: uploads, copies of ranges, and missing answers."""

from __future__ import annotations

import hashlib
import io
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from icekeeper.errors import StorageError
from icekeeper.machine.resources import with_spare_bytes
from icekeeper.storage.arrow_files import ObjectChanged, read_s3_range
from icekeeper.storage.multipart import AssembledObject, assemble, bounded_output, may_copy_ranges
from icekeeper.storage.part_plan import ObjectRange, Part, PartEtag, etag_problem, size_of
from icekeeper.storage.storage import Storage
from support.paper_s3 import PaperS3, failing, failure, storage_over

# A stream becomes an object with few requests if it is complete, and leaves nothing after an error
# (rule: bounded-worker-memory).

TARGET = "s3://bucket/t/new"


ROOM = 40  # three parts of 10 in flight, and one being filled


@pytest.mark.parametrize("size", [0, 9, 10, 11, 20, 40, 41, 95])
def test_every_byte_arrives_in_parts_of_one_size(size: int) -> None:
    client, data = PaperS3(), random.Random(size).randbytes(size)
    with bounded_output(storage_over(client), TARGET, ROOM) as sink:
        for start in range(0, size, 7):
            sink.write(memoryview(data)[start : start + 7])
        assert sink.tell() == size
    assert client.objects["bucket/t/new"] == data
    assert [len(client.parts[n]) for n in sorted(client.parts)][:-1] == [10] * (len(client.parts) - 1)
    parts = ["create", *["send"] * -(-size // 10), "complete"]
    assert client.calls == (["put"] if size <= ROOM else parts)
    assert client.open_uploads == 0


def test_at_most_three_parts_are_in_flight() -> None:
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
        with bounded_output(storage_over(client), TARGET, ROOM) as sink:
            sink.write(bytes(40))
            assert client.calls == []  # the caller does not wait for bytes that fit into the room
            sink.write(bytes(30))

    thread = threading.Thread(target=write)
    thread.start()
    assert three.wait(10)
    for _ in range(7):
        may_end.release()
    thread.join(10)
    assert (most, client.objects["bucket/t/new"]) == (3, bytes(70))


@pytest.mark.parametrize("call", ["send", "complete"])
def test_a_failed_upload_is_aborted(call: str) -> None:
    client = PaperS3(failing(call, failure(500, "InternalError")))
    storage = storage_over(client)
    with pytest.raises(Exception, match="InternalError"), bounded_output(storage, TARGET, ROOM) as sink:
        sink.write(bytes(45))
    assert (client.open_uploads, client.objects.get("bucket/t/new")) == (0, None)


@pytest.mark.parametrize("size", [5, 25, 55])
def test_an_interrupted_stream_leaves_no_object_and_no_upload(size: int) -> None:
    client = PaperS3()

    def interrupted() -> None:
        with bounded_output(storage_over(client), TARGET, ROOM) as sink:
            sink.write(bytes(size))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (client.open_uploads, client.objects.get("bucket/t/new")) == (0, None)


def test_a_task_with_memory_to_spare_sends_larger_parts() -> None:
    client = PaperS3()
    with with_spare_bytes(80), bounded_output(storage_over(client), TARGET, ROOM) as sink:
        sink.write(bytes(95))
    assert [len(client.parts[n]) for n in sorted(client.parts)] == [20, 20, 20, 20, 15]


def test_bytes_written_after_an_error_are_dropped() -> None:
    """Parquet writers write their footer when they are garbage collected."""
    client = PaperS3()
    with pytest.raises(OSError, match="no more rows"), bounded_output(storage_over(client), TARGET, ROOM) as sink:
        raise OSError("no more rows")
    assert (sink.write(bytes(500)), client.calls) == (500, [])


# A store assembles an object from ranges, or leaves nothing and returns the reason (platform: seaweedfs-range-copies).

SOURCE = ObjectRange("s3a://other/t/a b", '"etag"', 2, 6)
PARTS: Sequence[Part] = (SOURCE, (b"x", SOURCE), SOURCE, (b"end",))


def test_parts_become_an_object_in_order() -> None:
    client = PaperS3()
    made = assemble(storage_over(client), TARGET, PARTS)
    assert isinstance(made, AssembledObject)
    assert client.objects["bucket/t/new"] == b"2345x23452345end"
    assert (sum(map(size_of, PARTS)), client.open_uploads) == (16, 0)
    assert [md5 is None for _, md5 in made.part_etags] == [True, False, True, False]
    assert etag_problem(made.etag, made.part_etags) is None


REFUSED = [(403, "AccessDenied"), (405, "MethodNotAllowed"), (501, "NotImplemented"), (400, "InvalidRequest")]


@pytest.mark.parametrize(("status", "code"), REFUSED)
@pytest.mark.parametrize("call", ["create", "copy", "complete"])
def test_a_store_that_refuses_range_copies_is_not_tried_again(call: str, status: int, code: str) -> None:
    client = PaperS3(failing(call, failure(status, code)))
    storage = storage_over(client)
    assert may_copy_ranges(storage, TARGET)
    made = assemble(storage, TARGET, PARTS)
    assert isinstance(made, str)
    assert code in made
    assert not may_copy_ranges(storage, "s3a://bucket/another")
    assert may_copy_ranges(storage, "s3://another/t")
    assert (client.open_uploads, "bucket/t/new" in client.objects) == (0, False)


TRANSIENT = [
    failure(503, "SlowDown"),
    failure(500, "InternalError"),
    failure(404, "NoSuchKey"),
    EndpointConnectionError(endpoint_url="http://store"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: type(error).__name__ + str(error)[-30:])
@pytest.mark.parametrize("call", ["copy", "send", "get"])
def test_a_failed_assembly_leaves_nothing_and_the_next_object_is_assembled(call: str, error: Exception) -> None:
    client = PaperS3(failing(call, error))
    storage = storage_over(client)
    assert isinstance(assemble(storage, TARGET, PARTS), str)
    assert may_copy_ranges(storage, TARGET)
    assert (client.open_uploads, "bucket/t/new" in client.objects) == (0, False)


@pytest.mark.parametrize("status", [412, 416])
@pytest.mark.parametrize("call", ["copy", "get"])
def test_a_replaced_source_is_named(call: str, status: int) -> None:
    """The store may still copy ranges."""
    client = PaperS3(failing(call, failure(status, "PreconditionFailed")))
    storage = storage_over(client)
    with pytest.raises(ObjectChanged, match=f"^{SOURCE.path}$"):
        assemble(storage, TARGET, PARTS)
    assert may_copy_ranges(storage, TARGET)
    assert client.open_uploads == 0


@pytest.mark.parametrize("parts", [(SOURCE, PARTS[-1]), PARTS[1:2]], ids=["copied", "sent"])
def test_a_replaced_source_is_found_even_if_the_store_ignores_conditions(parts: Sequence[Part]) -> None:
    """By the ETag in the answer (platform: moto-lets-pass)."""
    client = PaperS3()
    client.etag = '"another"'
    with pytest.raises(ObjectChanged, match=f"^{SOURCE.path}$"):
        assemble(storage_over(client), TARGET, parts)
    assert (client.open_uploads, "bucket/t/new" in client.objects) == (0, False)


def test_an_etag_without_quotes_is_the_same() -> None:
    client = PaperS3()
    client.etag = "etag"
    assert isinstance(assemble(storage_over(client), TARGET, PARTS), AssembledObject)


def test_an_interruption_leaves_no_upload() -> None:
    client = PaperS3(failing("complete", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        assemble(storage_over(client), TARGET, PARTS)
    assert client.open_uploads == 0


def test_the_upload_is_aborted_after_its_last_part_has_ended() -> None:
    """A part that arrives after the abort would remain in the store and cost money."""
    begun, may_end = threading.Event(), threading.Event()

    def fail(call: str, number: int) -> None:
        if call == "send":
            begun.set()
            assert may_end.wait(10)
        elif call == "copy" and number == 1:
            assert begun.wait(10)
            threading.Timer(0.05, may_end.set).start()
            raise failure(500, "InternalError")

    client = PaperS3(fail)
    assert isinstance(assemble(storage_over(client), TARGET, (SOURCE, PARTS[-1])), str)
    assert (client.calls[-1], client.parts) == ("abort", {})


def test_local_files_and_other_stores_do_not_copy_ranges() -> None:
    storage = Storage({})
    assert not any(may_copy_ranges(storage, path) for path in ("/tmp/x", "file:///tmp/x", "gs://bucket/x"))


@pytest.mark.parametrize("short", [0, 7, 8])
def test_a_short_answer_is_requested_again_and_then_an_error(short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncated read raises an error (rule: short-reads-are-errors)."""
    client = PaperS3()
    for answers in ([short] * 2 + [9], [short] * 3):
        bodies = iter([io.BytesIO(bytes(size)) for size in answers])
        monkeypatch.setattr(client, "get_object", lambda bodies=bodies, **_: {"Body": next(bodies)})
        if answers[-1] == 9:
            assert read_s3_range(client, ObjectRange("s3://b/k", None, 0, 9)) == bytes(9)
            continue
        with pytest.raises(OSError, match=f"answered with {short} of the 9 bytes from 0 of s3://b/k"):
            read_s3_range(client, ObjectRange("s3://b/k", None, 0, 9))


def _md5(text: bytes) -> str:
    return hashlib.md5(text).hexdigest()


_SENT = (f'"{_md5(b"b")}"', _md5(b"b"))
_COPIED = (_md5(b"a"), None)
_WHOLE = _md5(bytes.fromhex(_md5(b"a")) + bytes.fromhex(_md5(b"b")))
ETAGS: list[tuple[str, list[PartEtag], str | None]] = [
    (f'"{_WHOLE}-2"', [_COPIED, _SENT], None),
    (f"{_WHOLE}-2", [_COPIED, _SENT], None),
    (f'"{_WHOLE}-3"', [_COPIED, _SENT], "the store made it from 3 parts instead of 2"),
    (f'"{_WHOLE}-2"', [_SENT, _COPIED], "its ETag does not match its parts"),
    (f'"{_WHOLE}-2"', [_SENT, (_md5(b"c"), _md5(b"d"))], "the store has other bytes than were sent to it"),
    # If ETags are not MD5 digests, only the number of parts counts.
    (f'"{_WHOLE}-2"', [_COPIED, (_md5(b"c"), _md5(b"d"))], None),
    ('"anything"', [_COPIED, _SENT], None),
    (f'"{_WHOLE}-2"', [("anything", None), _SENT], None),
]


@pytest.mark.parametrize(("etag", "parts", "problem"), ETAGS)
def test_etags_are_compared_if_they_are_md5_digests(etag: str, parts: list[PartEtag], problem: str | None) -> None:
    assert etag_problem(etag, parts) == problem


# An object that may still appear, so that its name is not used again (rule: attempts-never-share-a-file).

UPLOADED_PARTS: tuple[Part, ...] = (ObjectRange("s3a://other/t/a b", '"etag"', 2, 6), (b"end",))
UNKNOWN = [
    failure(503, "SlowDown"),
    failure(500, "InternalError"),
    # An earlier request, which boto3 repeated, has completed the upload.
    failure(404, "NoSuchUpload"),
    ReadTimeoutError(endpoint_url="http://store"),
    EndpointConnectionError(endpoint_url="http://store"),
]


@pytest.mark.parametrize("error", UNKNOWN, ids=lambda error: type(error).__name__ + str(error)[-40:])
def test_a_completion_without_an_answer_is_an_error(error: Exception) -> None:
    client = PaperS3(failing("complete", error))
    storage = storage_over(client)
    with pytest.raises(StorageError, match="s3://bucket/t/new"):
        assemble(storage, TARGET, UPLOADED_PARTS)
    assert client.calls[-1] == "abort"
    assert may_copy_ranges(storage, TARGET)


@pytest.mark.parametrize("call", ["upload_part_copy", "upload_part", "complete_multipart_upload"])
def test_an_answer_without_an_etag_is_not_trusted(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some stores omit it; before the completion, the worker can still copy in another way."""
    client = PaperS3()
    real = getattr(client, call)

    def silent(**request: Any) -> dict[str, Any]:
        real(**request)
        return {}

    monkeypatch.setattr(client, call, silent)
    if call != "complete_multipart_upload":
        made = assemble(storage_over(client), TARGET, UPLOADED_PARTS)
        assert made == "failed: the store did not send the ETag of the object or part"
        return
    with pytest.raises(StorageError, match="did not send the ETag"):
        assemble(storage_over(client), TARGET, UPLOADED_PARTS)
