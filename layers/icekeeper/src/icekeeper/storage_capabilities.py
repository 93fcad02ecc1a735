"""What a store lets a caller do under a location: known for local folders, asked of S3."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from icekeeper.storage_s3 import is_refused

__all__ = ["Capabilities", "probe_s3"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the store lets this caller do under a location."""

    can_list: bool
    can_delete: bool


def probe_s3(client: Any, bucket: str, directory: str) -> Capabilities:
    """Ask for one key of a directory (a prefix that ends in ``/``), then to batch-delete a key that never existed.

    That is refused exactly where real deletions are (AWS table buckets: 405; a missing permission: 403).  In a
    versioned bucket it would leave a delete marker, so it is conditional on the key's existence (Amazon S3 user guide,
    "How to perform conditional deletes"); a store that ignores the condition has nothing to delete.

    Raises:
        ClientError: the bucket does not exist, or the credentials are wrong.
        BotoCoreError: the endpoint does not answer.
    """
    can_list = True
    try:
        client.list_objects_v2(Bucket=bucket, Prefix=directory, MaxKeys=1)
    except ClientError as error:
        if not is_refused(error):
            raise
        can_list = False
    never_existed = {"Key": f"{directory}metadata/{uuid.uuid4()}.avro", "ETag": "*"}
    try:
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": [never_existed]})
    except ClientError as error:
        if not is_refused(error):
            raise
        return Capabilities(can_list, can_delete=False)
    # Any other answer about the key (no such key, precondition failed) comes after the permission was checked.
    return Capabilities(can_list, not any(is_refused(error) for error in answer.get("Errors", ())))
