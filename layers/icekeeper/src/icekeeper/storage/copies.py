"""Creates objects that must not exist yet, as copies of other objects or of older versions of the same key."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from botocore.exceptions import ClientError

from icekeeper.errors import StorageError
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import is_local, is_s3, split_path
from icekeeper.storage.storage import Storage

# S3 error codes of a conditional write: the object exists; another write of it is under way.
_EXISTS = frozenset({"PreconditionFailed", "ConditionalRequestConflict"})
_EXISTS_NOW = "{} exists now; nothing was overwritten; plan again"
# Answers of stores and table buckets without versions, and of roles that must not list them.
_NO_VERSIONS = frozenset({"AccessDenied", "NotImplemented", "MethodNotAllowed", "NoSuchKey", "NoSuchBucket"})


def versions_of(storage: Storage, path: str) -> Sequence[ListedObject]:
    """The versions of an object that a versioned bucket has kept, newest first; empty where there are none.

    Raises:
        StorageError: the store does not answer.
    """
    if not is_s3(path):
        return ()
    where, found = split_path(path), list[ListedObject]()
    with storage.translated(path):
        pages = storage.s3_at(path).get_paginator("list_object_versions")
        try:
            for page in pages.paginate(Bucket=where.authority, Prefix=where.key):
                for version in page.get("Versions") or ():
                    if version["Key"] == where.key and version.get("VersionId") not in (None, "null"):
                        found.append(ListedObject(path, int(version["Size"]), None, version=str(version["VersionId"])))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _NO_VERSIONS:
                raise
    return found


def create_object(storage: Storage, path: str, data: bytes) -> bool:
    """Write an object that does not exist, and return whether it was written: an attempt that crashed, or whose commit
    is under way, may have written the same bytes.

    Raises:
        StorageError: it exists with other bytes, or cannot be written.
    """
    try:
        if is_local(path):
            _create_local(storage, path, lambda sink: sink.write(data))
            return True
        where = split_path(path)
        with storage.translated(path), _absent(path):
            storage.s3_at(path).put_object(Bucket=where.authority, Key=where.key, Body=data, IfNoneMatch="*")
    except StorageError:
        if storage.size(path) != len(data) or storage.read(path) != data:
            raise
        return False
    return True


def copy_object(storage: Storage, source: str, path: str, version_id: str | None = None) -> None:
    """Copy an object, or an older version of it, to a path at which there is none; S3 copies up to 5 GB.

    Raises:
        StorageError: there is an object at the path, or the copy failed.
    """
    if is_local(path):
        with storage.open_input(source) as stream:
            _create_local(storage, path, lambda sink: shutil.copyfileobj(stream, sink))
        return
    if not is_s3(path) or not is_s3(source):
        raise StorageError(f"{source} cannot be copied to {path}: only local files and objects of S3 are copied")
    where, origin = split_path(path), split_path(source)
    copied: dict[str, Any] = {"Bucket": origin.authority, "Key": origin.key}
    if version_id is not None:
        copied["VersionId"] = version_id
    if storage.size(path) is not None:  # not every store knows the condition for copies
        raise StorageError(_EXISTS_NOW.format(path))
    with storage.translated(path), _absent(path):
        client = storage.s3_at(path, source)
        client.copy_object(Bucket=where.authority, Key=where.key, CopySource=copied, IfNoneMatch="*")


@contextmanager
def _absent(path: str) -> Iterator[None]:
    """Convert the store's answer that the object exists."""
    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in _EXISTS:
            raise StorageError(_EXISTS_NOW.format(path)) from error
        raise


def _create_local(storage: Storage, path: str, write: Callable[[Any], object]) -> None:
    """Create a whole file, so that no reader ever sees a part of it."""
    with storage.translated(path):
        storage.require([path])
        name = os.path.abspath(split_path(path).plain_key)
        os.makedirs(os.path.dirname(name), exist_ok=True)
        unfinished = f"{name}.{uuid.uuid4().hex}.unfinished"
        try:
            with open(unfinished, "xb") as sink:
                write(sink)
            os.link(unfinished, name)  # fails if the name exists
        except FileExistsError:
            raise StorageError(_EXISTS_NOW.format(path)) from None
        finally:
            with suppress(OSError):
                os.unlink(unfinished)
