"""Whether S3 lets a caller list or delete under a location, found out by requests that change nothing.

A table bucket refuses both and does them itself (platform 35).  Where a right is missing instead, what is left undone
is told once (rule 139).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any

from botocore.exceptions import ClientError

from icekeeper.storage.failures import is_denied, is_refused
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import split_path
from icekeeper.storage.s3_listing import few_s3

__all__ = ["can_delete_s3", "can_list_s3", "few_if_allowed"]

log = logging.getLogger(__name__)

# Amazon S3 user guide, "Table buckets": each table has a bucket of its own, whose name ends so.
_TABLE_BUCKET_SUFFIX = "--table-s3"


def can_list_s3(client: Any, bucket: str, directory: str) -> bool:
    """Whether a directory (a prefix that ends in ``/``) can be listed: asks for one key.

    Raises:
        ClientError: the bucket does not exist, or the credentials are wrong.
        BotoCoreError: the endpoint does not answer.
    """
    try:
        client.list_objects_v2(Bucket=bucket, Prefix=directory, MaxKeys=1)
    except ClientError as error:
        if not is_refused(error):
            raise
        _tell_if_denied(error.response["Error"], bucket, "s3:ListBucket")
        return False
    return True


def few_if_allowed(client: Any, prefix: str) -> tuple[bool, list[ListedObject] | None]:
    """Whether a prefix can be listed, and all that lies below it where one answer holds that.

    Raises:
        ClientError, BotoCoreError: as :func:`can_list_s3`.
    """
    try:
        return True, few_s3(client, prefix)
    except ClientError as error:
        if not is_refused(error):
            raise
        _tell_if_denied(error.response["Error"], split_path(prefix).authority, "s3:ListBucket")
        return False, None


def can_delete_s3(client: Any, bucket: str, directory: str) -> bool:
    """Whether objects of a directory can be deleted: batch-deletes a key that never existed.

    That is refused exactly where real deletions are (AWS table buckets: 405; a missing permission: 403).  In a
    versioned bucket it would leave a delete marker, so it is conditional on the key's existence (Amazon S3 user guide,
    "How to perform conditional deletes"); a store that ignores the condition has nothing to delete.

    Raises:
        ClientError: the bucket does not exist, or the credentials are wrong.
        BotoCoreError: the endpoint does not answer.
    """
    never_existed = {"Key": f"{directory}metadata/{uuid.uuid4()}.avro", "ETag": "*"}
    try:
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": [never_existed]})
    except ClientError as error:
        if not is_refused(error):
            raise
        _tell_if_denied(error.response["Error"], bucket, "s3:DeleteObject")
        return False
    for entry in answer.get("Errors", ()):
        _tell_if_denied(entry, bucket, "s3:DeleteObject")
    # Any other answer about the key (no such key, precondition failed) comes after the permission was checked.
    return not any(is_refused(error) for error in answer.get("Errors", ()))


def _tell_if_denied(error: Mapping[str, Any], bucket: str, right: str) -> None:
    if is_denied(error) and not bucket.endswith(_TABLE_BUCKET_SUFFIX):
        _tell(bucket, right)


@cache
def _tell(bucket: str, right: str) -> None:
    """Say once in the life of this process which right is missing."""
    log.warning("in s3://%s files stay that nobody needs, because a right is missing: allow %s", bucket, right)
