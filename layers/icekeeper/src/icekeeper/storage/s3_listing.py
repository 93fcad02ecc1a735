"""Listing and looking at S3 objects through a boto3 client; paths have the scheme of the prefix.

What a store lists may be deleted.  So a listing with anything that was not asked for is an error, and one that does not
come to an end, too (rule 253).
Source: Amazon S3 API reference, "ListObjectsV2", "HeadObject".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError, PaginationError

from icekeeper.storage.listing import Level, ListedObject, known_ms
from icekeeper.storage.paths import split_path

__all__ = ["few_s3", "list_s3", "s3_directory", "s3_level", "s3_status"]

# The most that one answer holds.
_PAGE = 1000
# Stores that keep deleted versions among the keys answer with empty pages; these would be a million of them.
_MOST_EMPTY_PAGES = 1000
# S3 API reference, "Object": the size is a long.
_MOST_BYTES = 2**63 - 1


def list_s3(client: Any, prefix: str) -> Iterator[ListedObject]:
    """Everything below a prefix, page by page; directory markers are left out.

    Raises:
        PaginationError: the store breaks off in the middle, which boto3 would take for the end; lists what was not
            asked for; or goes on without end.
    """
    parts = split_path(prefix)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=parts.authority, Prefix=s3_directory(parts.key))
    seen: set[int] = set()
    empty, before = 0, None
    for page in pages:
        token, first = page.get("NextContinuationToken") if _goes_on(page) else None, _first_key(page)
        empty = 0 if first else empty + 1
        if (token and hash(token) in seen) or (first and first == before) or empty > _MOST_EMPTY_PAGES:
            raise PaginationError(message=f"{prefix}: the listing goes round and comes to no end")
        if token:
            seen.add(hash(token))
        before = first
        yield from _objects(prefix, page)
        if _goes_on(page) and not (page.get("IsTruncated") and page.get("NextContinuationToken")):
            raise PaginationError(
                message=f"{prefix}: the listing is not whole, and the store does not say how it goes on"
            )


def s3_level(client: Any, prefix: str) -> Level | None:
    """The objects and folders directly below a prefix; ``None`` when they are more than one answer holds."""
    parts = split_path(prefix)
    page = client.list_objects_v2(Bucket=parts.authority, Prefix=s3_directory(parts.key), Delimiter="/", MaxKeys=_PAGE)
    if _goes_on(page):
        return None
    directory = s3_directory(parts.key)
    for found in page.get("CommonPrefixes", ()):
        _require_below(prefix, directory, found.get("Prefix"), folder=True)
    folders = [f"{_root(prefix)}/{found['Prefix']}" for found in page.get("CommonPrefixes", ())]
    return Level(list(_objects(prefix, page)), folders)


def few_s3(client: Any, prefix: str) -> list[ListedObject] | None:
    """Everything below a prefix, with one request; ``None`` when one answer does not hold it."""
    parts = split_path(prefix)
    page = client.list_objects_v2(Bucket=parts.authority, Prefix=s3_directory(parts.key), MaxKeys=_PAGE)
    return None if _goes_on(page) else list(_objects(prefix, page))


def s3_status(client: Any, path: str) -> ListedObject | None:
    """Size and age of one object, ``None`` when there is no such object."""
    parts = split_path(path)
    try:
        answer = client.head_object(Bucket=parts.authority, Key=parts.key)
    except ClientError as error:
        # An answer to HEAD has no body, so the code is only the status.
        if error.response["Error"].get("Code") in ("404", "NoSuchKey", "NotFound"):
            return None
        raise
    return ListedObject(path, int(answer["ContentLength"]), _modified_ms(answer))


def s3_directory(key: str) -> str:
    """A key as the prefix of what lies below it; empty for the whole bucket."""
    return key if not key or key.endswith("/") else f"{key}/"


def _objects(prefix: str, page: Mapping[str, Any]) -> Iterator[ListedObject]:
    root, directory = _root(prefix), s3_directory(split_path(prefix).key)
    for entry in page.get("Contents", ()):
        _require_below(prefix, directory, entry.get("Key"))
        if not 0 <= entry.get("Size", -1) <= _MOST_BYTES:
            raise PaginationError(message=f"{prefix}: the store lists {entry['Key']!a} without its size")
        if not entry["Key"].endswith("/"):
            yield ListedObject(f"{root}/{entry['Key']}", int(entry["Size"]), _modified_ms(entry))


def _require_below(prefix: str, directory: str, key: str | None, *, folder: bool = False) -> None:
    """Refuse what a store lists and was not asked for: it could be somebody else's, and it could be without end."""
    if not key or not key.startswith(directory) or (folder and (key == directory or not key.endswith("/"))):
        raise PaginationError(message=f"{prefix}: the store lists {key!a}, which was not asked for")


def _first_key(page: Mapping[str, Any]) -> str | None:
    found = page.get("Contents") or page.get("CommonPrefixes")
    return (found[0].get("Key") or found[0].get("Prefix")) if found else None


def _goes_on(page: Mapping[str, Any]) -> bool:
    """Whether there is more than one answer holds; boto3 takes one that does not say so for the last."""
    return bool(page.get("IsTruncated", page.get("NextContinuationToken")))


def _root(prefix: str) -> str:
    """Scheme and bucket of a prefix, as they are spelled there."""
    return prefix[: len(prefix) - len(split_path(prefix).key)].rstrip("/")


def _modified_ms(entry: Mapping[str, Any]) -> int | None:
    modified = entry.get("LastModified")
    return None if modified is None else known_ms(int(modified.timestamp() * 1000))
