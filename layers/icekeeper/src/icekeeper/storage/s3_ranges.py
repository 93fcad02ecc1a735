"""Reads ranges of S3 objects, each with one request, and only while the object is the one that was seen.

For code that knows where to read: Arrow's streams ask for the object's size first, and one stream reads one range at a
time.  And in place of Arrow's streams where the answer may be a redirect to anywhere, which Arrow follows
(platform 119): boto3 takes one for an error.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

from icekeeper.storage.failures import ShortAnswer
from icekeeper.storage.paths import split_path
from icekeeper.storage.s3_reads import known_error, tells_other_etag
from icekeeper.storage.uploads import WriteOnly

__all__ = ["ObjectChanged", "RangedObject", "is_of_another_object", "read_s3_range", "upload_at_close"]

_ATTEMPTS = 3


class ObjectChanged(Exception):
    """The object with this path has another ETag than the one that was seen, or too few bytes."""


def is_of_another_object(error: ClientError) -> bool:
    """Whether a request failed because its object is not the one whose ETag it names, or ends before the range."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (412, 416)


def read_s3_range(client: Any, path: str, start: int, end: int, etag: str | None = None) -> bytes:
    """The bytes from ``start`` to before ``end`` of an object, if it has this ETag (``None``: whatever it has).

    Raises:
        OSError: the store answered with fewer bytes (rule 123), several times.
        ObjectChanged: it has another ETag, or ends before ``start``.
        ClientError: there is no such object, or the store refuses.
        BotoCoreError: the store does not answer.
    """
    parts = split_path(path)
    request = {"Bucket": parts.authority, "Key": parts.key, "Range": f"bytes={start}-{end - 1}"}
    if etag is not None:
        request["IfMatch"] = etag
    for attempt in range(_ATTEMPTS):
        try:
            answer = client.get_object(**request)
        except ClientError as error:
            if is_of_another_object(error):
                raise ObjectChanged(path) from error
            raise
        if etag is not None and tells_other_etag(answer, etag):
            raise ObjectChanged(path)
        try:
            data: bytes = answer["Body"].read(end - start + 1)  # a longer answer is not taken into memory
        except (HTTPClientError, IncompleteReadError):  # boto3 itself repeats only until an answer begins
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        if len(data) == end - start:
            return data
    raise ShortAnswer(f"the store answered with {len(data)} of the {end - start} bytes from {start} of {path}")


class RangedObject:
    """An object of S3 with the methods of a :class:`pyarrow.NativeFile` that is read; each read is one request."""

    closed = False

    def __init__(self, client: Any, path: str) -> None:
        """Ask for the object's size.

        Raises:
            FileNotFoundError, PermissionError: as Arrow says it.
            ClientError, BotoCoreError: the store failed.
        """
        parts = split_path(path)
        try:
            answer = client.head_object(Bucket=parts.authority, Key=parts.key)
        except ClientError as error:
            raise known_error(error, path) from error
        self._client, self._path, self._position = client, path, 0
        self._size, self._etag = int(answer["ContentLength"]), str(answer["ETag"])

    def size(self) -> int:
        return self._size

    def metadata(self) -> dict[str, bytes]:
        return {"ETag": self._etag.encode()}

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:
        """Fill the buffer as far as the object goes."""
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        try:
            data = read_s3_range(self._client, self._path, self._position, end, self._etag)
        except ObjectChanged as error:
            raise ShortAnswer(f"{self._path} was replaced while it was read") from error
        buffer[: len(data)] = data
        self._position = end
        return len(data)

    def close(self) -> None:
        self.closed = True


def upload_at_close(client: Any, path: str) -> pa.NativeFile:
    """A stream that creates the object with one request when it is closed; all of it is held until then."""
    return pa.PythonFile(_UploadAtClose(client, path), mode="w")


class _UploadAtClose(WriteOnly):
    closed = False

    def __init__(self, client: Any, path: str) -> None:
        self._client, self._path, self._held = client, path, io.BytesIO()

    def write(self, data: Any) -> int:
        return self._held.write(data)

    def tell(self) -> int:
        return self._held.tell()

    def flush(self) -> None:
        """Nothing: what is written is there when all is."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            parts = split_path(self._path)
            self._client.put_object(Bucket=parts.authority, Key=parts.key, Body=self._held.getvalue())
