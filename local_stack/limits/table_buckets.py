"""Table buckets accept few operations on objects, and only one form of metadata locations
(platform: table-buckets-no-list-delete, moto-lets-pass)."""

from __future__ import annotations

from collections.abc import Callable

from local_stack.rights.s3_needs import TABLE_STORAGE, bucket_and_key
from local_stack.wire import HttpAnswer, WireRequest, json_error, s3_error

# Amazon S3 API reference, "Supported Amazon S3 object-level API operations for S3 Tables": these with a key, and none
# without a key; copies (CopyObject, UploadPartCopy) are not among them.
_PLAIN = frozenset({"GET", "HEAD", "PUT"})
_OF_UPLOAD = frozenset({"PUT", "POST", "DELETE", "GET"})
_FORBIDDEN_PARTS = frozenset({"acl", "tagging", "retention", "legal-hold", "torrent", "attributes", "versionId"})
# "UpdateTableMetadataLocation": "must end with .metadata.json, or … .metadata.json.gz".
_SUFFIXES = (".metadata.json", ".metadata.json.gz")


def refused_by_table_bucket(request: WireRequest, storage_of: Callable[[str], str | None]) -> HttpAnswer | None:
    """AWS's answer to what no table bucket does; ``storage_of`` gives a table's storage by the path of its pointer."""
    if request.service == "s3":
        bucket, key = bucket_and_key(request)
        if bucket.endswith(TABLE_STORAGE) and not _is_supported(request, key):
            message = "The specified method is not allowed against this resource."
            return s3_error(request, "405 Method Not Allowed", "MethodNotAllowed", message)
    if request.service == "s3tables" and request.method == "PUT" and request.path.endswith("/metadata-location"):
        return _refused_location(request, storage_of(request.path))
    return None


def _is_supported(request: WireRequest, key: str) -> bool:
    query = request.query
    if not key or "x-amz-copy-source" in request.headers or _FORBIDDEN_PARTS & set(query):
        return False
    if "uploadId" in query:
        return request.method in _OF_UPLOAD
    if "uploads" in query:
        return request.method == "POST"
    return request.method in _PLAIN


def _refused_location(request: WireRequest, storage: str | None) -> HttpAnswer | None:
    location = str(request.document.get("metadataLocation", ""))
    if not location.endswith(_SUFFIXES):
        return json_error("400 Bad Request", "BadRequestException", f"The metadata location {location} is not valid.")
    if storage is not None and not location.startswith(f"{storage}/"):
        return json_error("400 Bad Request", "BadRequestException", f"{location} is not below {storage}.")
    return None
