"""Deletes local files and, in batches, objects of S3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from icekeeper.storage.delete_report import DeleteReport
from icekeeper.storage.failures import describe_failure
from icekeeper.storage.paths import LOCAL_SCHEMES, S3_SCHEMES, split_path
from icekeeper.text import mask

if TYPE_CHECKING:
    from icekeeper.storage.s3 import FailedKeys

__all__ = ["delete_objects"]


def delete_objects(
    paths: Iterable[str],
    why_not: Callable[[str], str | None],
    unlink: Callable[[str], str | None],
    s3: Callable[[], Any],
    properties: Mapping[str, str],
) -> DeleteReport:
    """Delete objects; a path already gone counts as deleted.  Never raises for single paths.

    ``why_not`` says why a path must not be deleted, ``unlink`` removes a local file or says why it could not, ``s3``
    opens the boto3 client, ``properties`` hold the secrets that no reason may show.
    """
    order = dict.fromkeys(paths)
    failed: dict[str, str] = {}
    transient: set[str] = set()
    keys: dict[str, dict[str, list[str]]] = {}
    for path in order:
        parts = split_path(path)
        if reason := why_not(path):
            failed[path] = reason
        elif parts.scheme in LOCAL_SCHEMES:
            if reason := unlink(path):
                failed[path] = reason
        elif parts.scheme in S3_SCHEMES:
            # s3:// and s3a:// spellings of one object share a key
            keys.setdefault(parts.authority, {}).setdefault(parts.key, []).append(path)
        else:
            failed[path] = "only S3 objects and local files can be deleted"
    for bucket, spellings in keys.items():
        unable = _delete_s3(s3, bucket, list(spellings))
        transient.update(path for key in unable.transient for path in spellings[key])
        for key, reason in (unable.for_good | unable.transient).items():
            failed.update(dict.fromkeys(spellings[key], mask(reason, properties)))
    return DeleteReport(tuple(path for path in order if path not in failed), failed, frozenset(transient))


def _delete_s3(s3: Callable[[], Any], bucket: str, keys: Sequence[str]) -> FailedKeys:
    from icekeeper.storage.s3 import FailedKeys, delete_keys

    try:
        client = s3()
    except (BotoCoreError, ClientError) as error:  # an unknown profile, a role that may not be assumed
        return FailedKeys(dict.fromkeys(keys, describe_failure(error, None)))
    return delete_keys(client, bucket, keys)
