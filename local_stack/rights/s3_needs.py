"""The rights that requests to S3 need; in the storage of a table bucket they are rights to its table.

Sources: AWS service authorization reference, "Actions, resources, and condition keys for Amazon S3" ("API operations");
Amazon S3 user guide, "Access management for S3 Tables" ("Actions for S3 Tables"): GetTableData covers GetObject,
HeadObject and ListParts, PutTableData covers PutObject and all of multipart uploads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

from local_stack.rights.evaluate import Need
from local_stack.wire import WireRequest

TABLE_STORAGE = "--table-s3"
"""How AWS ends the name of the bucket behind a table of a table bucket."""

_UPLOAD = {"PUT": "PutObject", "POST": "PutObject", "DELETE": "AbortMultipartUpload", "GET": "ListMultipartUploadParts"}
_OBJECT = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "DELETE": "DeleteObject"}
# Beside the right to write; moto asks for neither.
_BY_HEADER = {"x-amz-tagging": "PutObjectTagging", "x-amz-acl": "PutObjectAcl"}
_OF_TABLE = {
    "GetObject": "GetTableData",
    "ListMultipartUploadParts": "GetTableData",
    "PutObject": "PutTableData",
    "AbortMultipartUpload": "PutTableData",
}


def bucket_and_key(request: WireRequest) -> tuple[str, str]:
    """Of an address in path style, which is how everybody here asks."""
    bucket, _, key = request.path.lstrip("/").partition("/")
    return bucket, key


def s3_needs(request: WireRequest, table_of: Callable[[str], str | None]) -> Iterator[Need]:
    """``table_of`` gives the ARN of the table whose storage a bucket is."""
    bucket, key = bucket_and_key(request)
    yield from _translated(_needs(request, bucket, key), bucket, table_of)
    if source := request.headers.get("x-amz-copy-source"):
        of, _, copied = source.lstrip("/").partition("/")
        yield from _translated(iter([_object("GetObject", of, copied.partition("?")[0])]), of, table_of)


def is_batch_deletion(request: WireRequest) -> bool:
    """Whether it is DeleteObjects, which answers for each key alone."""
    return request.method == "POST" and "delete" in request.query


def deleted_keys(request: WireRequest) -> list[str]:
    """The keys of a DeleteObjects request."""
    return [found.text or "" for found in ElementTree.fromstring(request.body).iter() if _name(found) == "Key"]


def _needs(request: WireRequest, bucket: str, key: str) -> Iterator[Need]:
    if not bucket:
        yield Need("s3:ListAllMyBuckets", "*")
    elif key:
        yield _object(_object_action(request), bucket, key)
        yield from (_object(action, bucket, key) for name, action in _BY_HEADER.items() if name in request.headers)
    elif is_batch_deletion(request):
        yield from (_object("DeleteObject", bucket, deleted) for deleted in deleted_keys(request))
    else:
        yield Need(f"s3:{_bucket_action(request)}", _arn(bucket), {"s3:prefix": request.query.get("prefix", "")})


def _object_action(request: WireRequest) -> str:
    if "uploadId" in request.query:
        return _UPLOAD[request.method]
    if "uploads" in request.query:
        return "PutObject"
    action = _OBJECT[request.method]
    return f"{action}Version" if "versionId" in request.query and action in ("GetObject", "DeleteObject") else action


def _bucket_action(request: WireRequest) -> str:
    query = request.query
    if request.method == "GET" and "location" in query:
        return "GetBucketLocation"
    if request.method == "GET" and "versions" in query:
        return "ListBucketVersions"
    if request.method == "GET" and "uploads" in query:
        return "ListBucketMultipartUploads"
    if request.method == "HEAD" or (request.method == "GET" and not set(query) - _LISTING):
        return "ListBucket"
    return f"{request.method}Bucket?{request.query_string}"  # no policy allows that: it is denied, and so seen


_LISTING = {
    *("list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type"),
    *("fetch-owner", "marker", "x-id"),
}


def _translated(needs: Iterator[Need], bucket: str, table_of: Callable[[str], str | None]) -> Iterator[Need]:
    """In the storage of a table: the rights to the table that replace the rights to objects.

    If there is no such right, the bucket itself refuses the request of every sender
    (platform: table-buckets-no-list-delete), so none is needed here.
    """
    if not bucket.endswith(TABLE_STORAGE):
        yield from needs
        return
    for need in needs:
        action = _OF_TABLE.get(need.action.removeprefix("s3:"))
        if action is not None:
            yield Need(f"s3tables:{action}", table_of(bucket) or f"arn:aws:s3tables:::unknown/{bucket}")


def _object(action: str, bucket: str, key: str) -> Need:
    return Need(f"s3:{action}", f"{_arn(bucket)}/{key}")


def _arn(bucket: str) -> str:
    return f"arn:aws:s3:::{bucket}"


def _name(element: ElementTree.Element) -> str:
    return re.sub(r"^\{.*\}", "", element.tag)
