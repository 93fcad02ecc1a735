"""Writes an S3 object with few requests and bounded memory: at once if it fits into the room, else in parts.

Arrow's output streams send parts of 10 MB (platform 50), keep in memory whatever the store has not taken yet (100 MB
were measured behind 20 ms a request), and complete what an error cut short.  This one waits, and leaves nothing after
an error (rule 157).
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import spare_bytes
from icekeeper.storage.paths import S3_SCHEMES, split_path
from icekeeper.storage.storage import Storage
from icekeeper.storage.uploads import WriteOnly

__all__ = ["LEAST_ROOM", "bounded_output"]

LEAST_ROOM = 32 * 1024 * 1024
"""Bytes that an upload may hold whoever makes it."""
_GROWS_AFTER = 1000
"""Parts are of equal size, which some stores ask for; of very large objects they grow, for S3 takes 10,000."""
_UNDER_WAY = 3
# Nothing is sent while a part is filled: beyond this the time costs a function more than requests are saved.
_MOST_ROOM = 128 * 1024 * 1024


@contextmanager
def bounded_output(storage: Storage, path: str, room: int = LEAST_ROOM) -> Iterator[Any]:
    """A stream with ``write`` and ``tell``; the object is there once the context ends without an error.

    It holds ``room`` bytes at most, or what the task may spare (:func:`.spare_bytes`) where that is more.  What is not
    on S3 is written by :meth:`.Storage.open_output`.  Wrap it in :meth:`.Storage.translated`.
    """
    if split_path(path).scheme not in S3_SCHEMES:
        with storage.open_output(path) as stream:
            yield stream
        return
    with WorkThreads(_UNDER_WAY, thread_name_prefix="part-upload") as pool:
        upload = _PartUpload(storage.s3_at(path), path, pool, min(_MOST_ROOM, max(room, spare_bytes())))
        try:
            yield upload
            upload.complete()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # a part that came after the end would stay
            upload.abort()
            raise


class _PartUpload(WriteOnly):
    """What was written, as parts of a quarter of the room: some under way, one that is filled.

    Nothing is sent before the room is full, so that an object that fits takes one request.
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
        """Take bytes, which may be changed afterwards; waits while too many parts are under way."""
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
        """How many bytes were written."""
        return self._size

    def flush(self) -> None:
        """Nothing: what is written is there when all is complete."""

    def complete(self) -> None:
        """Make the object; one that fits into the room with one request."""
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
        """Leave nothing in the store; what is written from now on, such as a footer, goes nowhere."""
        self._is_over = True
        self._part, self._full = bytearray(), deque()
        if self._upload is not None:
            with suppress(BotoCoreError, ClientError):
                self._client.abort_multipart_upload(**self._upload)

    def _wanted(self) -> int:
        """The size of the part that is filled."""
        begun = len(self._etags) + len(self._running) + len(self._full)
        return self._part_bytes * (1 + begun // _GROWS_AFTER)

    def _next_part(self) -> None:
        """Begin another part; from the moment that the room is full, parts are sent."""
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
    """Several pieces as one file, for boto3, which reads it for its checksum and again to send it."""

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
        """Fill as much as one piece has; 0 at the end."""
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
