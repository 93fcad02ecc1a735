"""Reads ranges of S3 objects, each with one request, and only while the object is the one that was seen.

For code that knows where to read: Arrow's streams ask for the object's size first, and one stream reads one range at a
time.
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

from icekeeper.storage.failures import ShortAnswer
from icekeeper.storage.paths import split_path
from icekeeper.storage.s3_reads import tells_other_etag

__all__ = ["ObjectChanged", "is_of_another_object", "read_s3_range"]

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
            data: bytes = answer["Body"].read()
        except (HTTPClientError, IncompleteReadError):  # boto3 itself repeats only until an answer begins
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        if len(data) == end - start:
            return data
    raise ShortAnswer(f"the store answered with {len(data)} of the {end - start} bytes from {start} of {path}")
