"""Writes S3 objects in parts: uploads with bounded memory, or assembles ranges that the store itself copies.

Not every store copies ranges: AWS table buckets do not list the call, and a policy may forbid it.  There is no harmless
request to find out, so the first object of a bucket tries it, and a refusal is remembered.  Source: Amazon S3 API
reference, "UploadPartCopy", "CompleteMultipartUpload" (platform: seaweedfs-range-copies).
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Semaphore
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import spare_bytes
from icekeeper.storage.arrow_files import ObjectChanged, WriteOnly, is_of_another_object, read_s3_range
from icekeeper.storage.failures import describe_failure, is_refused, is_transient
from icekeeper.storage.part_plan import ObjectRange, Part, PartEtag
from icekeeper.storage.paths import is_s3, split_path
from icekeeper.storage.storage import Storage

LEAST_ROOM = 32 * 1024 * 1024
"""Bytes that any upload may keep in memory."""
_GROWS_AFTER = 1000
"""Parts have equal size, as some stores require; after so many parts they grow, because S3 accepts at most 10,000."""
_UNDER_WAY = 3
# Nothing is sent until the room is full: with more room, the wait would cost a function more than the saved requests.
_MOST_ROOM = 128 * 1024 * 1024


@contextmanager
def bounded_output(storage: Storage, path: str, room: int = LEAST_ROOM) -> Iterator[Any]:
    """A stream with ``write`` and ``tell``; the object exists once the context ends without an error.

    The stream keeps at most ``room`` bytes in memory, or the task's spare memory (:func:`.spare_bytes`) if larger.
    Arrow's own streams send parts of 10 MB (platform: pyarrow-s3-requests), keep in memory what the store has not yet
    accepted (100 MB were measured at 20 ms a request), and complete an object even if an error truncated it.  This
    stream waits for the store, and leaves nothing after an error (rule: bounded-worker-memory).
    They also send a checksum that table buckets do not list (platform: table-buckets-refuse-headers).

    If boto3 does not write the object (:meth:`.Storage.uses_boto3`), :meth:`.Storage.open_output` does.  Wrap it in
    :meth:`.Storage.translated`.
    """
    if not storage.uses_boto3(path):
        with storage.open_output(path) as stream:
            yield stream
        return
    with WorkThreads(_UNDER_WAY, thread_name_prefix="part-upload") as pool:
        upload = _PartUpload(storage.s3_at(path), path, pool, min(_MOST_ROOM, max(room, spare_bytes())))
        try:
            yield upload
            upload.complete()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # a part that arrives after the abort would remain in the store
            upload.abort()
            raise


class _PartUpload(WriteOnly):
    """Data in parts of a quarter of the room: up to three parts are being sent while another part is filled.

    Nothing is sent before the room is full, so an object that fits into it takes a single request.
    """

    closed = False

    def __init__(self, client: Any, path: str, pool: WorkThreads, room: int) -> None:
        where = split_path(path)
        self._client = client
        self._object = {"Bucket": where.authority, "Key": where.key}
        self._upload: dict[str, str] | None = None
        self._pool = pool
        self._part_bytes = room // (_UNDER_WAY + 1)
        self._part = bytearray()
        self._full: deque[bytearray] = deque()
        self._size = 0
        self._running: deque[Future[str]] = deque()
        self._etags: list[str] = []
        self._is_over = False

    def write(self, data: Any) -> int:
        """Copy the bytes; wait while too many parts are being sent."""
        view = memoryview(data).cast("B")
        size = len(view)
        self._size += size
        while len(view) and not self._is_over:
            if len(self._part) == self._wanted():
                self._next_part()
            room = self._wanted() - len(self._part)
            self._part += view[:room]
            view = view[room:]
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing: the object is created as a whole."""

    def complete(self) -> None:
        """Create the object; an object that fits into the room takes a single request."""
        if self._upload is None:
            parts = [*self._full, self._part]
            body = bytes(self._part) if len(parts) == 1 else _Joined(parts)
            self._client.put_object(**self._object, Body=body)
            return
        if self._part:
            self._send(self._part)
        while self._running:
            self._etags.append(self._running.popleft().result())
        parts_sent = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(self._etags, 1)]
        self._client.complete_multipart_upload(**self._upload, MultipartUpload={"Parts": parts_sent})

    def abort(self) -> None:
        """Leave nothing in the store, and ignore later writes, such as of a footer."""
        self._is_over = True
        self._part, self._full = bytearray(), deque()
        if self._upload is not None:
            with suppress(BotoCoreError, ClientError):
                self._client.abort_multipart_upload(**self._upload)

    def _wanted(self) -> int:
        """The size of the part that is being filled."""
        begun = len(self._etags) + len(self._running) + len(self._full)
        return self._part_bytes * (1 + begun // _GROWS_AFTER)

    def _next_part(self) -> None:
        """Begin another part; once the room is full, send the full parts."""
        self._full.append(self._part)
        self._part = bytearray()
        if self._upload is not None or len(self._full) > _UNDER_WAY:
            while self._full:
                self._send(self._full.popleft())

    def _send(self, part: bytearray) -> None:
        if self._upload is None:
            made = self._client.create_multipart_upload(**self._object, ContentType="application/octet-stream")
            self._upload = {**self._object, "UploadId": made["UploadId"]}
        while len(self._running) >= _UNDER_WAY:
            self._etags.append(self._running.popleft().result())
        number = len(self._etags) + len(self._running) + 1
        self._running.append(self._pool.submit(self._sent, self._upload, number, part))

    def _sent(self, upload: dict[str, str], number: int, data: bytearray) -> str:
        return str(self._client.upload_part(**upload, PartNumber=number, Body=data)["ETag"])


class _Joined(io.RawIOBase):
    """Several pieces as one file, which boto3 reads for the checksum and again to send it."""

    def __init__(self, pieces: Sequence[bytearray]) -> None:
        super().__init__()
        self._pieces = [memoryview(piece) for piece in pieces]
        self._size = sum(map(len, pieces))
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read from a single piece; 0 at the end."""
        target = memoryview(buffer).cast("B")
        start = self._position
        for piece in self._pieces:
            if start < len(piece):
                found = piece[start : start + len(target)]
                target[: len(found)] = found
                self._position += len(found)
                return len(found)
            start -= len(piece)
        return 0


_AT_ONCE = 8
_SENT_AT_ONCE = 3
"""Fewer than the copies, because a part that is sent is in memory."""


@dataclass(frozen=True, slots=True)
class AssembledObject:
    """The ETag of a new object, and the ETags of its parts."""

    etag: str
    part_etags: tuple[PartEtag, ...]
    samples: Mapping[ObjectRange, bytes]
    """The :attr:`~ObjectRange.sample` of each copied range, read from the source after the copy."""


def may_copy_ranges(storage: Storage, path: str) -> bool:
    """Whether the store of a path may copy ranges into it: it is S3, and has not refused before."""
    return is_s3(path) and split_path(path).authority not in storage.no_range_copies


def assemble(storage: Storage, path: str, parts: Sequence[Part]) -> AssembledObject | str:
    """Create an object from the parts of :func:`.plan_parts`.

    A range is copied and read only while its object has the range's ETag.  Requests contain this condition, but not
    every store respects it, so the ETag in each answer to a read is compared.  The answer to a copy says nothing about
    its source, so some bytes of the source are read after the copy (rule: store-copies-the-judged-object).

    Returns:
        The object, or why it was not created, as the end of a sentence that begins with ``path``.

    Raises:
        ObjectChanged: a source object no longer has its ETag; nothing is left of the new object.
        StorageError: there are no credentials, the path is not on S3, or the object may still appear.  In the last case
            the caller must not write other bytes under this name, because a late completion would replace them.  The
            next attempt has its own name (rule: attempts-never-share-a-file).
    """
    where = split_path(path)
    with storage.translated(path):
        copied = (part for part in parts if isinstance(part, ObjectRange))
        client = storage.s3_at(path, *{source for part in copied for source in (part.path, part.sample.path)})
    upload = {"Bucket": where.authority, "Key": where.key}
    try:
        made = client.create_multipart_upload(**upload, ContentType="application/octet-stream")
        upload["UploadId"] = made["UploadId"]
        try:
            etags, samples = _transferred(client, upload, parts)
            return AssembledObject(_completed(client, upload, etags, storage, path), etags, samples)
        except BaseException:
            with suppress(BotoCoreError, ClientError):
                client.abort_multipart_upload(**upload)
            raise
    except (BotoCoreError, ClientError, OSError) as error:
        if isinstance(error, ClientError) and _is_for_good(error):
            storage.no_range_copies.add(where.authority)
        return describe_failure(error, client.meta.endpoint_url)


def _is_for_good(error: ClientError) -> bool:
    """Whether the next object would fail in the same way: the store refuses such requests, whatever the object."""
    names_nothing = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404
    return is_refused(error) or not (is_transient(error) or names_nothing)


def _transferred(
    client: Any, upload: Mapping[str, str], parts: Sequence[Part]
) -> tuple[tuple[PartEtag, ...], Mapping[ObjectRange, bytes]]:
    """The ETag of each part, and the samples of the copied parts."""
    sending = Semaphore(_SENT_AT_ONCE)
    samples: dict[ObjectRange, bytes] = {}

    def transfer(number: int, part: Part) -> PartEtag:
        if isinstance(part, ObjectRange):
            copied = _copied(client, upload, number, part)
            samples[part] = read_s3_range(client, part.sample)
            return copied, None
        with sending:
            data = b"".join(piece if isinstance(piece, bytes) else read_s3_range(client, piece) for piece in part)
            answer = client.upload_part(**upload, PartNumber=number, Body=data)
            return _etag_in(answer), hashlib.md5(data, usedforsecurity=False).hexdigest()

    with WorkThreads(min(_AT_ONCE, len(parts)), thread_name_prefix="parts") as pool:
        running = [pool.submit(transfer, number, part) for number, part in enumerate(parts, 1)]
        try:
            return tuple(upload.result() for upload in running), samples
        finally:
            # Wait before the upload is aborted: a part that arrives later would remain in the store.
            pool.shutdown(wait=True, cancel_futures=True)


def _completed(client: Any, upload: Mapping[str, str], etags: Sequence[PartEtag], storage: Storage, path: str) -> str:
    """Complete the upload; return the ETag of the object.

    Raises:
        StorageError: it is unknown whether the upload was completed.
    """
    parts = [{"PartNumber": number, "ETag": etag} for number, (etag, _) in enumerate(etags, 1)]
    try:
        return _etag_in(client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}))
    except (BotoCoreError, ClientError, OSError) as error:
        # An earlier attempt at the same request may have completed a missing upload.
        if isinstance(error, ClientError) and _is_for_good(error):
            raise
        with storage.translated(path):
            raise


def _etag_in(answer: Mapping[str, Any]) -> str:
    etag = answer.get("ETag")
    if not etag:
        raise OSError("the store did not send the ETag of the object or part")
    return str(etag)


def _copied(client: Any, upload: Mapping[str, str], number: int, part: ObjectRange) -> str:
    source = split_path(part.path)
    try:
        answer = client.upload_part_copy(
            **upload,
            PartNumber=number,
            CopySource={"Bucket": source.authority, "Key": source.key},
            CopySourceIfMatch=part.etag,
            CopySourceRange=f"bytes={part.start}-{part.end - 1}",
        )
    except ClientError as error:
        if is_of_another_object(error):
            raise ObjectChanged(part.path) from error
        raise
    return _etag_in(answer.get("CopyPartResult") or {})
