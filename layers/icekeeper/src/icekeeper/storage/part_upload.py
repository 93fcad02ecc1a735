"""Writes an S3 object in parts, some of them under way while the caller makes the next one, and never more.

Arrow's output streams keep in memory whatever the store has not taken yet (100 MB were measured behind 20 ms a
request), and complete what an error cut short.  This one waits, and leaves nothing after an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from icekeeper.request_count import WorkThreads
from icekeeper.storage.paths import S3_SCHEMES, split_path
from icekeeper.storage.storage import Storage

__all__ = ["bounded_output"]

_PART_BYTES = 8 * 1024 * 1024
_GROWS_AFTER = 1000
"""Parts are of equal size, which some stores ask for; of very large objects they grow, for S3 takes 10,000."""
_UNDER_WAY = 3


@contextmanager
def bounded_output(storage: Storage, path: str) -> Iterator[Any]:
    """A stream with ``write`` and ``tell``; the object is there once the context ends without an error.

    What is not on S3 is written by :meth:`.Storage.open_output`.  Wrap it in :meth:`.Storage.translated`.
    """
    if split_path(path).scheme not in S3_SCHEMES:
        with storage.open_output(path) as stream:
            yield stream
        return
    with WorkThreads(_UNDER_WAY, thread_name_prefix="part-upload") as pool:
        upload = _PartUpload(storage.s3, path, pool)
        try:
            yield upload
            upload.complete()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # a part that came after the end would stay
            upload.abort()
            raise


class _PartUpload:
    """What was written, as parts; the last one is sent with ``complete``."""

    def __init__(self, client: Any, path: str, pool: WorkThreads) -> None:
        where = split_path(path)
        self._client = client
        self._object = {"Bucket": where.authority, "Key": where.key}
        self._upload: dict[str, str] | None = None
        self._pool = pool
        self._part = bytearray()
        self._size = 0
        self._running: deque[Future[str]] = deque()
        self._etags: list[str] = []

    def write(self, data: Any) -> None:
        """Take bytes, which may be changed afterwards; waits while too many parts are under way."""
        view = memoryview(data).cast("B")
        self._size += len(view)
        while len(view):
            full = _PART_BYTES * (1 + (len(self._etags) + len(self._running)) // _GROWS_AFTER)
            room = full - len(self._part)
            self._part += view[:room]
            view = view[room:]
            if len(self._part) == full:
                self._send()

    def tell(self) -> int:
        """How many bytes were written."""
        return self._size

    def complete(self) -> None:
        """Make the object; a small one with one request."""
        if self._upload is None:
            self._client.put_object(**self._object, Body=bytes(self._part))
            return
        if self._part:
            self._send()
        while self._running:
            self._etags.append(self._running.popleft().result())
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(self._etags, 1)]
        self._client.complete_multipart_upload(**self._upload, MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        """Leave nothing in the store."""
        if self._upload is not None:
            with suppress(BotoCoreError, ClientError):
                self._client.abort_multipart_upload(**self._upload)

    def _send(self) -> None:
        if self._upload is None:
            made = self._client.create_multipart_upload(**self._object, ContentType="application/octet-stream")
            self._upload = {**self._object, "UploadId": made["UploadId"]}
        while len(self._running) >= _UNDER_WAY:
            self._etags.append(self._running.popleft().result())
        number = len(self._etags) + len(self._running) + 1
        self._running.append(self._pool.submit(self._sent, self._upload, number, bytes(self._part)))
        self._part = bytearray()

    def _sent(self, upload: dict[str, str], number: int, data: bytes) -> str:
        return str(self._client.upload_part(**upload, PartNumber=number, Body=data)["ETag"])
