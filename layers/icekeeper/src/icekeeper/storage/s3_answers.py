"""Whether an answer of success is the store's own (rule 169).

A proxy may answer in the place of the store, with a page of its own and status 200.  boto3 takes that for an object
that is written, a deletion without errors (rule 150), or a listing that ends.  What lacks what the store's own answers
have is made a failure that may pass, as a 502 is: boto3 repeats the request.
Source: Amazon S3 API reference, "Response Syntax" of each.

boto3 reads an error or a listing whole, however long it is.  Here such an answer ends at :data:`MOST_BYTES` (rule 293).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree.ElementTree import ParseError, XMLPullParser

from botocore.awsrequest import AWSResponse
from botocore.exceptions import BotoCoreError, ConnectionClosedError, HTTPClientError, ReadTimeoutError
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.exceptions import ReadTimeoutError as ReadTimedOut

__all__ = ["BoundedClient", "require_own_answers"]

MOST_BYTES = 16 * 1024 * 1024
"""Of an answer that is no object: a thousand keys of 1,024 characters, each of three bytes that are encoded as nine,
take 9 MB."""
_PIECE_BYTES = 64 * 1024

_ROOTS = {
    "CompleteMultipartUpload": "CompleteMultipartUploadResult",
    "CreateMultipartUpload": "InitiateMultipartUploadResult",
    "DeleteObjects": "DeleteResult",
    "ListObjectsV2": "ListBucketResult",
}
_WITH_ETAG = frozenset({"HeadObject", "PutObject", "UploadPart"})
_NUMBERS_IN_HEADERS = ("content-length", "x-amz-missing-meta", "x-amz-mp-parts-count", "x-amz-tagging-count")
_NUMBER = re.compile(rb"<(?:Size|KeyCount|MaxKeys)>([^<]*)<")
_DIGITS = re.compile(rb"[0-9]{1,19}")
# A listing may have half a megabyte; its first element stands at the beginning.
_BEGINNING = 1024


def require_own_answers(client: Any) -> None:
    """Have a boto3 client for S3 look at every answer before it is parsed."""
    client.meta.events.register("before-parse.s3", _look)
    client.meta.events.register_first("after-call.s3.ListObjectsV2", _name_what_is_listed)


class AnswerTooLong(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """An answer that is no object does not come to an end."""

    fmt = "an answer has more than {most} bytes, as none of a store has"


class BoundedClient:
    """Goes before boto3's own base of a client for S3, and has it read answers within limits."""

    _endpoint: Any
    """Of botocore's ``BaseClient``, which sends."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._endpoint.http_session = _BoundedSession(self._endpoint.http_session)


class _BoundedSession:
    """Sends as botocore's own session does; of answers, only objects are left to be read by whoever asked."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def send(self, request: Any) -> Any:
        streams, request.stream_output = request.stream_output, True
        try:
            response = self._inner.send(request)
        finally:
            request.stream_output = streams
        if streams and response.status_code < 300:
            return response
        try:
            held = _Held(_read(response.raw))
        except ReadTimedOut as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
        except ProtocolError as error:
            raise ConnectionClosedError(error=error, request=request, endpoint_url=request.url) from error
        except HTTPError as error:
            raise HTTPClientError(error=error) from error
        return AWSResponse(response.url, response.status_code, response.headers, held)

    def close(self) -> None:
        self._inner.close()


class _Held:
    """A body that was read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self) -> Iterator[bytes]:
        yield self._data


def _read(raw: Any) -> bytes:
    parts, size = [], 0
    for part in raw.stream(_PIECE_BYTES):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raw.close()
            raise AnswerTooLong(most=f"{MOST_BYTES:,}")
    return b"".join(parts)


def _look(response_dict: dict[str, Any], operation_model: Any, **_: Any) -> None:
    if response_dict["status_code"] >= 300:
        return
    lacks = _lacking(operation_model.name, response_dict)
    if lacks is not None:
        body = (
            f"<Error><Code>No{lacks}</Code><Message>the answer is not one of a store, so that the request counts as "
            "failed; look for a proxy that answers in the place of the store</Message></Error>"
        )
        response_dict.update(status_code=502, body=body.encode())


def _name_what_is_listed(parsed: dict[str, Any], **_: Any) -> None:
    """Give what has no name an empty one, which no listing has: boto3 decodes names, and fails where there is none."""
    for member, name in (("Contents", "Key"), ("CommonPrefixes", "Prefix")):
        for found in parsed.get(member) or ():
            found.setdefault(name, "")


def _lacking(operation: str, response: Mapping[str, Any]) -> str | None:
    """What the store would have told; ``None``: nothing is missing."""
    if _has_odd_number(operation, response):
        return "Number"
    if operation in _WITH_ETAG:
        return None if response["headers"].get("ETag") else "ETag"
    root = _ROOTS.get(operation)
    # boto3 itself sees to an error.
    return None if root is None or _first_element(response["body"]) in (root, "Error") else root


def _has_odd_number(operation: str, response: Mapping[str, Any]) -> bool:
    """Whether a number is none, at which boto3 fails with an error of Python's."""
    headers = (response["headers"].get(name) for name in _NUMBERS_IN_HEADERS)
    in_body = _NUMBER.findall(response["body"]) if operation == "ListObjectsV2" else ()
    return not all(_DIGITS.fullmatch(found) for found in (*(h.encode() for h in headers if h is not None), *in_body))


def _first_element(body: bytes) -> str:
    parser: XMLPullParser[Any] = XMLPullParser(("start",))
    parser.feed(body[:_BEGINNING])
    begun: Iterator[Any] = parser.read_events()
    try:
        return next((str(element.tag).rpartition("}")[2] for _, element in begun), "")
    except ParseError:
        return ""
