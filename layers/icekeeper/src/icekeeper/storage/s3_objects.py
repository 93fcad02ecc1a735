"""Lists and looks up S3 objects, and finds out what a caller may do under a location.

A listing decides which files may be deleted.  So a listing that contains a key outside its prefix, or that never ends,
is an error (rule: trust-only-own-answers).  Paths have the scheme of the prefix.  Source: Amazon S3 API reference,
"ListObjectsV2", "HeadObject".
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from botocore.exceptions import ClientError, PaginationError

from icekeeper.storage.failures import is_denied, is_refused
from icekeeper.storage.listing import Level, ListedObject, known_ms
from icekeeper.storage.paths import split_path

# The most keys in an answer.
_PAGE = 1000
# Stores that keep deleted versions among the keys answer with empty pages; so many pages are a million such versions.
_MOST_EMPTY_PAGES = 1000
# S3 API reference, "Object": the size is a long.
_MOST_BYTES = 2**63 - 1


def list_s3(client: Any, prefix: str) -> Iterator[ListedObject]:
    """Everything below a prefix, page by page, without directory markers.

    Raises:
        PaginationError: the listing stops before its end, which boto3 would not notice; contains keys outside the
            prefix; or never ends.
    """
    parts = split_path(prefix)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=parts.authority, Prefix=s3_directory(parts.key))
    seen: set[int] = set()
    empty, before = 0, None
    for page in pages:
        token, first = page.get("NextContinuationToken") if _goes_on(page) else None, _first_key(page)
        empty = 0 if first else empty + 1
        if (token and hash(token) in seen) or (first and first == before) or empty > _MOST_EMPTY_PAGES:
            raise PaginationError(message=f"{prefix}: the listing repeats its pages and never ends")
        if token:
            seen.add(hash(token))
        before = first
        yield from _objects(prefix, page)
        if _goes_on(page) and not (page.get("IsTruncated") and page.get("NextContinuationToken")):
            raise PaginationError(message=f"{prefix}: the listing is incomplete, and the store does not continue it")


def s3_level(client: Any, prefix: str) -> Level | None:
    """The objects and folders directly below a prefix; ``None`` if they do not fit into a single answer."""
    parts = split_path(prefix)
    page = client.list_objects_v2(Bucket=parts.authority, Prefix=s3_directory(parts.key), Delimiter="/", MaxKeys=_PAGE)
    if _goes_on(page):
        return None
    folders = []
    for found in page.get("CommonPrefixes", ()):
        _require_below(prefix, s3_directory(parts.key), found.get("Prefix"), folder=True)
        folders.append(f"{_root(prefix)}/{found['Prefix']}")
    return list(_objects(prefix, page)), folders


def few_s3(client: Any, prefix: str) -> list[ListedObject] | None:
    """Everything below a prefix, with a single request; ``None`` if it does not fit into a single answer."""
    parts = split_path(prefix)
    page = client.list_objects_v2(Bucket=parts.authority, Prefix=s3_directory(parts.key), MaxKeys=_PAGE)
    return None if _goes_on(page) else list(_objects(prefix, page))


def s3_status(client: Any, path: str) -> ListedObject | None:
    """Size and modification time of an object; ``None`` if there is no such object."""
    parts = split_path(path)
    try:
        answer = client.head_object(Bucket=parts.authority, Key=parts.key)
    except ClientError as error:
        # An answer to HEAD has no body, so the code is only the status.
        if error.response["Error"].get("Code") in ("404", "NoSuchKey", "NotFound"):
            return None
        raise
    return ListedObject(path, int(answer["ContentLength"]), _modified_ms(answer), answer.get("ETag"))


def older_versions_s3(client: Any, prefix: str) -> list[ListedObject] | None:
    """The versions below a prefix that are not current, deleted objects included; ``None``: the store lists none.

    Raises:
        PaginationError: as :func:`list_s3`.
    """
    parts, found = split_path(prefix), list[ListedObject]()
    pages = client.get_paginator("list_object_versions").paginate(
        Bucket=parts.authority, Prefix=s3_directory(parts.key)
    )
    try:
        for page in pages:
            older = [entry for entry in page.get("Versions", ()) if not entry.get("IsLatest")]
            for entry, listed in zip(older, _objects(prefix, {"Contents": older}), strict=True):
                found.append(replace(listed, version=str(entry.get("VersionId") or "null")))
    except ClientError as error:
        if not is_refused(error):
            raise
        return None
    return found


def s3_directory(key: str) -> str:
    """The prefix of the keys below a key; empty for the whole bucket."""
    return key if not key or key.endswith("/") else f"{key}/"


def _objects(prefix: str, page: Mapping[str, Any]) -> Iterator[ListedObject]:
    root, directory = _root(prefix), s3_directory(split_path(prefix).key)
    for entry in page.get("Contents", ()):
        _require_below(prefix, directory, entry.get("Key"))
        if not 0 <= entry.get("Size", -1) <= _MOST_BYTES:
            raise PaginationError(message=f"{prefix}: the store lists {entry['Key']!a} without its size")
        if not entry["Key"].endswith("/"):
            yield ListedObject(f"{root}/{entry['Key']}", int(entry["Size"]), _modified_ms(entry), entry.get("ETag"))


def _require_below(prefix: str, directory: str, key: str | None, *, folder: bool = False) -> None:
    """Refuse a listed key outside the prefix: it may belong to another table, and the listing may never end."""
    if not key or not key.startswith(directory) or (folder and (key == directory or not key.endswith("/"))):
        raise PaginationError(message=f"{prefix}: the store lists {key!a}, which is outside the prefix")


def _first_key(page: Mapping[str, Any]) -> str | None:
    found = page.get("Contents") or page.get("CommonPrefixes")
    return (found[0].get("Key") or found[0].get("Prefix")) if found else None


def _goes_on(page: Mapping[str, Any]) -> bool:
    """Whether the listing has more pages; boto3 takes a page without IsTruncated for the last page."""
    return bool(page.get("IsTruncated", page.get("NextContinuationToken")))


def _root(prefix: str) -> str:
    """Scheme and bucket of a prefix, in its own spelling."""
    return prefix[: len(prefix) - len(split_path(prefix).key)].rstrip("/")


def _modified_ms(entry: Mapping[str, Any]) -> int | None:
    modified = entry.get("LastModified")
    return None if modified is None else known_ms(int(modified.timestamp() * 1000))


# The functions below find out, with requests that change nothing, whether S3 lets a caller list or delete.  A table
# bucket refuses both and does them itself (platform: table-buckets-no-list-delete).  A missing right is logged once
# (rule: throttles-are-failures).

log = logging.getLogger(__name__)

# Amazon S3 user guide, "Table buckets": each table has its own bucket, whose name ends with this.
_TABLE_BUCKET_SUFFIX = "--table-s3"


def can_list_s3(client: Any, bucket: str, directory: str) -> bool:
    """Whether a directory (a prefix that ends in ``/``) can be listed; lists one key.

    Raises:
        ClientError: the bucket does not exist, or the credentials are wrong.
        BotoCoreError: the endpoint does not answer.
    """
    try:
        client.list_objects_v2(Bucket=bucket, Prefix=directory, MaxKeys=1)
    except ClientError as error:
        if not is_refused(error):
            raise
        _warn_if_denied(error.response["Error"], bucket, "s3:ListBucket")
        return False
    return True


def few_if_allowed(client: Any, prefix: str) -> tuple[bool, list[ListedObject] | None]:
    """The result of :func:`can_list_s3`, and all objects below a prefix if they fit into a single answer."""
    try:
        return True, few_s3(client, prefix)
    except ClientError as error:
        if not is_refused(error):
            raise
        _warn_if_denied(error.response["Error"], split_path(prefix).authority, "s3:ListBucket")
        return False, None


def can_delete_s3(client: Any, bucket: str, directory: str) -> bool:
    """Whether objects of a directory can be deleted; batch-deletes a key that never existed.

    The store refuses this exactly if it refuses real deletions (AWS table buckets: 405; a missing permission: 403).
    The deletion is conditional on the key's existence, because a versioned bucket would otherwise keep a delete marker
    (Amazon S3 user guide, "How to perform conditional deletes"); a store that ignores the condition deletes nothing.

    Raises:
        ClientError: the bucket does not exist, or the credentials are wrong.
        BotoCoreError: the endpoint does not answer.
    """
    from icekeeper.storage.s3 import delete_objects  # imports boto3

    never_existed = {"Key": f"{directory}metadata/{uuid.uuid4()}.avro", "ETag": "*"}
    try:
        answer = delete_objects(client, bucket, {"Objects": [never_existed]})
    except ClientError as error:
        if not is_refused(error):
            raise
        _warn_if_denied(error.response["Error"], bucket, "s3:DeleteObject")
        return False
    for entry in answer.get("Errors", ()):
        _warn_if_denied(entry, bucket, "s3:DeleteObject")
    # A store sends any other error about the key (no such key, precondition failed) only after checking permissions.
    return not any(is_refused(error) for error in answer.get("Errors", ()))


def is_lakefs_s3(client: Any, bucket: str, directory: str) -> bool:
    """Whether lakeFS's S3 gateway answers: for a missing object it names ``BRANCH@REPOSITORY``, which no other store
    does (platform: lakefs-shows-itself).

    Raises:
        ClientError: the bucket does not exist, or the credentials are wrong.
        BotoCoreError: the endpoint does not answer.
    """
    try:
        client.get_object(Bucket=bucket, Key=f"{directory}metadata/{uuid.uuid4()}.avro")["Body"].close()
    except ClientError as error:
        details = error.response["Error"]
        if details.get("Code") != "NoSuchKey" and not is_refused(error):
            raise
        return bool(details.get("Resource") == f"{directory.partition('/')[0]}@{bucket}")
    return False


def _warn_if_denied(error: Mapping[str, Any], bucket: str, right: str) -> None:
    if is_denied(error) and not bucket.endswith(_TABLE_BUCKET_SUFFIX):
        _warn_once(bucket, right)


@cache
def _warn_once(bucket: str, right: str) -> None:
    log.warning("unneeded files remain in s3://%s, because a permission is missing: allow %s", bucket, right)
