"""boto3 for S3, configured by PyIceberg's properties: clients, checks of their answers, and batch deletion.

A proxy may answer in place of the store, with a page of its own and status 200.  boto3 takes such a page for an object
that was written, a deletion without errors, or the end of a listing.  So an answer that lacks an element that the store
always sends becomes a transient failure, like a 502, and boto3 repeats the request (rule: trust-only-own-answers).
Source: Amazon S3 API reference, "Response Syntax" of each operation.

boto3 also reads a whole error or listing, however long it is.  Here the limit is :data:`MOST_BYTES`
(rule: bound-foreign-bytes).
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from xml.etree.ElementTree import ParseError, XMLPullParser

from botocore import UNSIGNED
from botocore.awsrequest import AWSResponse
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError, HTTPClientError, ReadTimeoutError
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.exceptions import ReadTimeoutError as ReadTimedOut

from icekeeper.aws.session import aws_session, client_config
from icekeeper.aws.settings import ENDPOINT_OF_SERVER, S3_ENDPOINT, is_anonymous
from icekeeper.machine.metering import RequestKind, WorkThreads, note_request
from icekeeper.storage.failures import TRANSIENT_CODES, describe_failure, failure_in_words, is_transient

MOST_BYTES = 16 * 1024 * 1024
"""The longest answer that is not an object.  A listing of a thousand keys of 1,024 characters, each encoded as nine
bytes, takes 9 MB."""
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
# The first element of a listing is within these bytes; the whole listing may have half a megabyte.
_BEGINNING = 1024


class AnswerTooLong(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """An answer that is not an object is too long."""

    fmt = "an answer has more than {most} bytes, which no store sends"


class BoundedClient:
    """A base class, before boto3's own, that makes a client for S3 read answers within limits."""

    _endpoint: Any
    """An attribute of botocore's ``BaseClient``."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._endpoint.http_session = _BoundedSession(self._endpoint.http_session)


class _BoundedSession:
    """Sends like botocore's own session, and reads every answer except a streamed object, which the caller reads."""

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
            body = _Body(_read(response.raw))
        except ReadTimedOut as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
        except ProtocolError as error:
            raise ConnectionClosedError(error=error, request=request, endpoint_url=request.url) from error
        except HTTPError as error:
            raise HTTPClientError(error=error) from error
        return AWSResponse(response.url, response.status_code, response.headers, body)

    def close(self) -> None:
        self._inner.close()


class _Body:
    """The ``raw`` of an AWSResponse whose body has already been read."""

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
            f"<Error><Code>No{lacks}</Code><Message>the answer does not come from a store, so the request counts as "
            "failed; look for a proxy that answers in place of the store</Message></Error>"
        )
        response_dict.update(status_code=502, body=body.encode())


def _name_what_is_listed(parsed: dict[str, Any], **_: Any) -> None:
    """Give entries without a name an empty name, which boto3 can decode; the listing is refused later."""
    for member, name in (("Contents", "Key"), ("CommonPrefixes", "Prefix")):
        for found in parsed.get(member) or ():
            found.setdefault(name, "")


def _lacking(operation: str, response: Mapping[str, Any]) -> str | None:
    """The element that a store's own answer would have; ``None``: nothing is missing."""
    headers = [response["headers"].get(name) for name in _NUMBERS_IN_HEADERS]
    numbers = [header.encode() for header in headers if header is not None]
    if operation == "ListObjectsV2":
        numbers += _NUMBER.findall(response["body"])
    if not all(map(_DIGITS.fullmatch, numbers)):  # boto3 would raise a bare ValueError
        return "Number"
    if operation in _WITH_ETAG:
        return None if response["headers"].get("ETag") else "ETag"
    root = _ROOTS.get(operation)
    # For an error with status 200, boto3 itself raises an exception.
    return None if root is None or _first_element(response["body"]) in (root, "Error") else root


def _first_element(body: bytes) -> str:
    parser: XMLPullParser[Any] = XMLPullParser(("start",))
    parser.feed(body[:_BEGINNING])
    begun: Iterator[Any] = parser.read_events()
    try:
        return next((str(element.tag).rpartition("}")[2] for _, element in begun), "")
    except ParseError:
        return ""


# The most keys of a DeleteObjects request (S3 API reference).
DELETE_BATCH = 1000
DELETE_THREADS = 8
DELETE_ATTEMPTS = 5
# Characters that XML 1.0 cannot contain, not even escaped (its section 2.2, "Characters").
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_KINDS = {
    "GetObject": RequestKind.GET,
    "HeadObject": RequestKind.GET,
    "DeleteObject": RequestKind.DELETE,
    "DeleteObjects": RequestKind.DELETE,
}


def s3_client(properties: Mapping[str, str], *, counts: bool = True) -> Any:
    """An S3 client for the same store and with the same identity as PyIceberg's FileIO with these properties.

    ``counts``: count its requests as they are sent.
    """
    more: dict[str, Any] = {}
    if is_anonymous(properties):
        more["signature_version"] = UNSIGNED
    if proxy := properties.get("s3.proxy-uri"):
        more["proxies"] = {"http": proxy, "https": proxy}
    endpoint = properties.get(S3_ENDPOINT)
    virtual = properties.get("s3.force-virtual-addressing", "").lower() == "true"
    # As in PyArrow, because servers with their own endpoint seldom have a host name per bucket.
    style = "virtual" if virtual else "path" if endpoint else "auto"
    config = client_config(properties, s3={"addressing_style": style}, **more)
    client = aws_session(properties).client("s3", first_base=BoundedClient, endpoint_url=endpoint, config=config)
    if counts:
        client.meta.events.register("before-send.s3", _count)
    client.meta.events.register("before-call.s3.HeadBucket", _follow_no_redirect)
    if properties.get(ENDPOINT_OF_SERVER) == "true":
        client.meta.events.register_first("before-send.s3", _refuse_link_local)
    client.meta.events.register("before-parse.s3", _look)
    client.meta.events.register_first("after-call.s3.ListObjectsV2", _name_what_is_listed)
    return client


class LinkLocal(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """The host of an endpoint that a server named resolves to a link-local address."""

    fmt = "{host} resolves to a link-local address, which is never used: correct s3.endpoint"


def _refuse_link_local(request: Any, **_: Any) -> None:
    """Resolve the host of each request: the address may have changed, or differ on a worker's machine
    (rule: own-keys-stay-with-own-endpoint).
    """
    from icekeeper.aws.origins import is_link_local, origin_of  # few stores need it

    origin = origin_of(request.url)
    if origin is None or is_link_local(origin.host):
        raise LinkLocal(host=origin.host if origin else "the endpoint")


def _count(event_name: str, **_: Any) -> None:
    """Count each request as it is sent, including repeats; boto3 sends it because this returns ``None``."""
    note_request(_KINDS.get(event_name.rpartition(".")[2], RequestKind.PUT))


def _follow_no_redirect(context: dict[str, Any], **_: Any) -> None:
    """Refuse a redirect of HeadBucket: boto3 sends it to find the target of a redirect without a location, and would
    never stop."""
    context["s3_redirect"]["redirected"] = True


Reasons: TypeAlias = dict[str, str]
"""Key → why it could not be deleted."""


def delete_keys(client: Any, bucket: str, keys: Sequence[str]) -> tuple[Reasons, Reasons]:
    """Delete objects in parallel batches; return the keys that failed permanently, and the keys that a later attempt
    may delete.

    A missing object counts as deleted.  Throttled and failed keys are tried again after growing pauses.  A key that XML
    cannot contain would make its whole batch fail, so it is deleted alone (platform: control-character-keys).
    """
    alone = [key for key in keys if _NOT_IN_XML.search(key)]
    together = [key for key in keys if not _NOT_IN_XML.search(key)] if alone else keys
    batches = [together[start : start + DELETE_BATCH] for start in range(0, len(together), DELETE_BATCH)]
    batches += [[key] for key in alone]
    for_good: Reasons = {}
    transient: Reasons = {}
    with WorkThreads(min(DELETE_THREADS, len(batches))) as pool:
        for failed in pool.map(lambda batch: _delete_batch(client, bucket, batch), batches):
            for_good.update(failed[0])
            transient.update(failed[1])
    return for_good, transient


def _request_deletion(client: Any, bucket: str, keys: Sequence[str]) -> Sequence[Mapping[str, str]]:
    """The errors in the answer to a single request."""
    if len(keys) == 1 and _NOT_IN_XML.search(keys[0]):
        client.delete_object(Bucket=bucket, Key=keys[0])
        return ()
    request = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
    return delete_objects(client, bucket, request).get("Errors") or ()


def delete_objects(client: Any, bucket: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer to a DeleteObjects request; raises what boto3 raises.

    boto3 sends a CRC32 instead of Content-MD5.  A store that demands Content-MD5 gets it in this and all later requests
    of the client (platform: some-stores-demand-content-md5).
    """
    try:
        answer: Mapping[str, Any] = client.delete_objects(Bucket=bucket, Delete=request)
    except ClientError as error:
        if not _asks_for_md5(error.response["Error"]):
            raise
        client.meta.events.register("before-call.s3.DeleteObjects", _send_md5, unique_id=_send_md5.__name__)
        answer = client.delete_objects(Bucket=bucket, Delete=request)
    return answer


def _asks_for_md5(error: Mapping[str, str]) -> bool:
    return error.get("Code") == "MissingContentMD5" or "content-md5" in (error.get("Message") or "").lower()


def _send_md5(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
    context.get("checksum", {}).pop("request_algorithm", None)


def _delete_batch(client: Any, bucket: str, keys: Sequence[str]) -> tuple[Reasons, Reasons]:
    for_good: Reasons = {}
    transient: Reasons = {}
    pending = keys
    for attempt in range(DELETE_ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1) * 0.2 * 2**attempt)
        transient = {}
        asked = frozenset(pending)
        try:
            errors = _request_deletion(client, bucket, pending)
        except ClientError as error:
            target = transient if is_transient(error) else for_good
            target.update(dict.fromkeys(pending, describe_failure(error, None)))
            errors = ()
        except BotoCoreError as error:
            # boto3 has already retried; a caller with more time may try later
            return for_good, dict.fromkeys(pending, describe_failure(error, client.meta.endpoint_url))
        for entry in errors:
            code = entry.get("Code")
            if code not in ("NoSuchKey", "NoSuchVersion"):
                target = transient if code in TRANSIENT_CODES else for_good
                # An error that names none of our keys may concern any of them (rule: trust-only-own-answers).
                of = [entry["Key"]] if entry.get("Key") in asked else pending
                target.update(dict.fromkeys(of, failure_in_words(code, entry.get("Message"))))
        transient = {key: reason for key, reason in transient.items() if key not in for_good}
        if not transient:
            break
        pending = list(transient)
    return for_good, transient
