"""Reads S3 objects with a single request each, without requesting the size first.

PyArrow requests the size of an object (HEAD) before it reads it (platform: pyarrow-s3-requests).  Here the first
request already reads the first or last bytes, and its answer contains the size (RFC 9110, "Content-Range").  The size
also shows whether an answer was truncated: such a read is repeated once, then fails (rule: short-reads-are-errors).
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

from icekeeper.aws.settings import identity_in, is_anonymous
from icekeeper.machine.foreign_bytes import most_unpacked, require_fitting
from icekeeper.storage.failures import ShortAnswer
from icekeeper.storage.paths import split_path

ONE_READ_BYTES = 8 * 1024 * 1024
"""The most bytes that a request reads."""
_ATTEMPTS = 2
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_NONE = "bytes */0"
_MISSING = frozenset({"404", "NoSuchBucket", "NoSuchKey", "NotFound"})
_FORBIDDEN = frozenset({"403", "AccessDenied"})


class NoSuchObject(FileNotFoundError):
    """The bucket exists, the object does not (S3 API reference, "Error responses": ``NoSuchKey``, unlike
    ``NoSuchBucket``)."""


class ObjectPart(NamedTuple):
    """Bytes of an object, the size of the whole object and, on S3, its ETag."""

    data: bytes
    size: int
    etag: str | None = None


def can_boto3_read(properties: Mapping[str, str]) -> bool:
    """Whether boto3 can read what PyArrow can read: without credentials, boto3 sends no request, and PyArrow sends an
    unsigned request.

    Raises:
        BotoCoreError: there is no such profile, or it has no credentials.
    """
    if is_anonymous(properties) or identity_in(properties).is_static:
        return True
    from icekeeper.aws.session import aws_session  # imports boto3

    return aws_session(properties).has_credentials


def read_object(client: Any, path: str) -> bytes:
    """The whole object, with a request for each :data:`ONE_READ_BYTES`.

    Raises:
        FileNotFoundError: there is no such object.
        PermissionError: the credentials may not read it.
        OSError: the store sent a truncated answer.
        ClientError, BotoCoreError: the store failed.
        MetadataUnreadable: it is larger than the limit.
    """
    first = read_beginning(client, path)
    if len(first.data) == first.size:
        return first.data
    require_fitting(path, first.size)
    parts = [first.data]
    for start in range(len(first.data), first.size, ONE_READ_BYTES):
        # The ETag, because the object may be replaced between the reads: the parts would then come from two objects.
        parts.append(_part(client, path, start, ONE_READ_BYTES, first.etag).data)
    return b"".join(parts)


def read_beginning(client: Any, path: str) -> ObjectPart:
    """The first :data:`ONE_READ_BYTES` of an object, or the whole object if smaller; raises as :func:`read_object`."""
    return _part(client, path, 0, ONE_READ_BYTES)


def read_end(client: Any, path: str, length: int) -> ObjectPart:
    """The last ``length`` bytes of an object, or the whole object if smaller; raises as :func:`read_object`."""
    part = _part(client, path, None, length)
    return ObjectPart(part.data[-length:], part.size, part.etag)


def has_other_etag(answer: Mapping[str, Any], etag: str) -> bool:
    """Whether an answer contains another ETag; not every store respects ``If-Match``
    (platform: moto-lets-pass)."""
    found = answer.get("ETag")
    return found is not None and str(found).strip('"') != etag.strip('"')


def _part(client: Any, path: str, start: int | None, length: int, etag: str | None = None) -> ObjectPart:
    """``length`` bytes from ``start``, or from the end (``None``); all bytes if the store does not support ranges."""
    parts = split_path(path)
    wanted = f"-{length}" if start is None else f"{start}-{start + length - 1}"
    request = {"Bucket": parts.authority, "Key": parts.key, "Range": f"bytes={wanted}"}
    if etag is not None:
        request["IfMatch"] = etag
    short = f"bytes {wanted}"
    for _ in range(_ATTEMPTS):
        try:
            answer = client.get_object(**request)
        except ClientError as error:
            if _is_empty(error) and etag is None:
                return ObjectPart(b"", 0)
            raise known_error(error, path) from error
        if etag is not None and has_other_etag(answer, etag):
            raise OSError(f"{path} was replaced while it was read")
        try:  # read no more into memory than was requested
            data = answer["Body"].read((length if answer.get("ContentRange") else most_unpacked()) + 1)
        except (HTTPClientError, IncompleteReadError):  # the connection broke during the answer
            continue
        require_fitting(path, len(data))
        found = _part_of(answer, data, start, length)
        if isinstance(found, ObjectPart):
            return found
        short = found
    raise ShortAnswer(f"the store answered with fewer than the {short} of {path}")


def _part_of(answer: Mapping[str, Any], data: bytes, start: int | None, length: int) -> ObjectPart | str:
    """The part in an answer; for a truncated answer, a description of the requested bytes."""
    etag = answer.get("ETag")
    content_range = answer.get("ContentRange") or ""
    named = _CONTENT_RANGE.fullmatch(content_range)
    if content_range and named is None:
        return f"bytes that {content_range[:60]!a} names"
    if named is None:  # a store that does not know ranges sends the whole object
        size = answer.get("ContentLength")
        return ObjectPart(data, len(data), etag) if len(data) == size else f"{size} bytes"
    size = int(named[3])
    first = max(0, size - length) if start is None else start
    end = size if start is None else min(size, start + length)
    is_whole = int(named[1]) == first and len(data) == end - first
    return ObjectPart(data, size, etag) if is_whole else f"{end - first} bytes from {first}"


def _is_empty(error: ClientError) -> bool:
    """Whether a store refused a range because the object is empty (RFC 9110, "416 Range Not Satisfiable")."""
    if error.response["Error"].get("Code") != "InvalidRange":
        return False
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("content-range", _NONE)) == _NONE


def known_error(error: ClientError, path: str) -> Exception:
    """The built-in error that PyArrow raises for the same answer, if it has one."""
    code = error.response["Error"].get("Code", "")
    if code == "NoSuchKey":
        return NoSuchObject(path)
    if code in _MISSING:
        return FileNotFoundError(path)
    return PermissionError(path) if code in _FORBIDDEN else error


class ObjectVersion(io.RawIOBase):
    """An older version of an object, as a seekable file; each read is a request."""

    def __init__(self, client: Any, path: str, version: str, size: int) -> None:
        parts = split_path(path)
        self._client, self._path, self._size, self._at = client, path, size, 0
        self._object = {"Bucket": parts.authority, "Key": parts.key, "VersionId": version}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; raises ShortAnswer, or what boto3 raises."""
        end = min(self._at + len(buffer), self._size)
        if self._at >= end:
            return 0
        data = self._client.get_object(**self._object, Range=f"bytes={self._at}-{end - 1}")["Body"].read()
        if len(data) != end - self._at:
            raise ShortAnswer(f"the store answered with {len(data)} bytes of a version of {self._path}")
        buffer[: len(data)] = data
        self._at = end
        return len(data)
