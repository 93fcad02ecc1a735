"""Headers of requests for objects that AWS refuses and moto lets pass (platform: table-buckets-refuse-headers).

A table bucket takes those that are listed for each operation, and answers ``S3TablesUnsupportedHeader`` to others:
Amazon S3 API reference, "Supported Amazon S3 object-level API operations for S3 Tables".  An ordinary bucket, whose
ACLs are off unless somebody switches them on, takes none: Amazon S3 user guide, "Controlling ownership of objects and
disabling ACLs".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from local_stack.rights.s3_needs import TABLE_STORAGE, bucket_and_key
from local_stack.wire import HttpAnswer, WireRequest, s3_error

_OWNER = frozenset({"x-amz-expected-bucket-owner"})
_CONDITIONS = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"})
_SUMS = frozenset({f"x-amz-checksum-{name}" for name in ("crc32", "crc32c", "sha1", "sha256")})
# These are listed, with one value that cannot be changed.
_FIXED = {
    "x-amz-acl": "bucket-owner-full-control",
    "x-amz-storage-class": "STANDARD",
    "x-amz-server-side-encryption": "AES256",
}
_LISTED: Mapping[str, frozenset[str]] = {
    "AbortMultipartUpload": _OWNER,
    "CompleteMultipartUpload": _OWNER | _SUMS | {"if-match", "if-none-match"},
    "CreateMultipartUpload": frozenset(_FIXED) | {"x-amz-checksum-algorithm"},
    "GetObject": _OWNER | _CONDITIONS | {"x-amz-checksum-mode"},
    "HeadObject": _OWNER | _CONDITIONS | {"x-amz-checksum-mode"},
    "ListParts": _OWNER,
    "PutObject": _OWNER | _SUMS | frozenset(_FIXED) | {"if-none-match", "x-amz-sdk-checksum-algorithm"},
    "UploadPart": _OWNER | _SUMS,
}
# Of the signature, which no list names.
_SIGNED = frozenset(
    f"x-amz-{name}"
    for name in ("date", "content-sha256", "security-token", "decoded-content-length", "trailer", "user-agent")
)
# PyArrow sends the first header with every read, boto3 sends the second with every part; neither can be switched off.
_SENT_BY_SDKS = frozenset({"x-amz-api-version", "x-amz-sdk-checksum-algorithm"})


def refused_headers(request: WireRequest) -> HttpAnswer | None:
    """AWS's answer to a request for an object with a header, or a header value, that its bucket does not accept."""
    bucket, key = bucket_and_key(request)
    if request.service != "s3" or not key:
        return None
    if bucket.endswith(TABLE_STORAGE):
        return _refused_by_table_bucket(request)
    acl = request.headers.get("x-amz-acl", _FIXED["x-amz-acl"])
    if acl != _FIXED["x-amz-acl"] or any(name.startswith("x-amz-grant-") for name in request.headers):
        return s3_error(request, "400 Bad Request", "AccessControlListNotSupported", "The bucket does not allow ACLs")
    return None


def _refused_by_table_bucket(request: WireRequest) -> HttpAnswer | None:
    taken = _LISTED.get(_operation(request), frozenset()) | _SIGNED | _SENT_BY_SDKS
    for name, value in _judged(request):
        if name not in taken or value != _FIXED.get(name, value):
            message = f"S3 Tables does not support the following header: {name} value: {value}"
            return s3_error(request, "400 Bad Request", "S3TablesUnsupportedHeader", message)
    return None


def _judged(request: WireRequest) -> Iterator[tuple[str, str]]:
    """Headers of S3 and conditions, also those that follow the body."""
    for name, value in request.headers.items():
        if name.startswith(("x-amz-", "if-")):
            yield name, value
    yield from ((name.strip(), "") for name in request.headers.get("x-amz-trailer", "").split(",") if name.strip())


def _operation(request: WireRequest) -> str:
    if "uploadId" in request.query:
        names = {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}
        return names.get(request.method, "ListParts")
    if "uploads" in request.query:
        return "CreateMultipartUpload"
    return {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject"}.get(request.method, "")
