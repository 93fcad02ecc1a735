"""Assembles S3 objects of ranges that the store copies and of bytes that are sent to it.

Not every store copies ranges: AWS table buckets do not list the call, and a policy may forbid it.  No harmless request
would tell, so the first object of a bucket does, and its refusal is remembered.

Whoever gets no object writes it in another way, perhaps as other bytes.  A store may complete an upload although its
completion seemed to have failed, and replace what was written meanwhile.  So that is an error: the next attempt has a
name of its own (rule 168).

Source: Amazon S3 API reference, "UploadPartCopy", "CompleteMultipartUpload" (platform 47).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Semaphore
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from icekeeper.machine.metering import WorkThreads
from icekeeper.storage.failures import describe_failure, is_refused, is_transient
from icekeeper.storage.part_etags import PartEtag
from icekeeper.storage.part_plan import CopiedRange, OwnBytes, Part, SentPart
from icekeeper.storage.paths import S3_SCHEMES, split_path
from icekeeper.storage.s3_ranges import ObjectChanged, is_of_another_object, read_s3_range
from icekeeper.storage.storage import Storage

__all__ = ["AssembledObject", "NotAssembled", "assemble", "may_copy_ranges"]

_AT_ONCE = 8
_SENT_AT_ONCE = 3
"""A part that is sent is in memory."""


@dataclass(frozen=True, slots=True)
class AssembledObject:
    """A new object, its ETag, and those of its parts."""

    path: str
    size: int
    etag: str
    part_etags: tuple[PartEtag, ...]
    samples: Mapping[CopiedRange, bytes]
    """Of each range that the store copied its :attr:`~CopiedRange.sample`, read from the source after that."""


@dataclass(frozen=True, slots=True)
class NotAssembled:
    """Why there is no new object, as the end of a sentence that begins with ``path``."""

    path: str
    reason: str
    source_changed: bool = False
    """``path`` is an object to be copied from, which is not any more what it was when its ETag was seen."""


class _Unanswered(Exception):
    """Whether the upload was completed is not known."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Upload(NamedTuple):
    client: Any
    bucket: str
    key: str
    id: str

    @property
    def address(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.key, "UploadId": self.id}


def may_copy_ranges(storage: Storage, path: str) -> bool:
    """Whether the store of a path may copy ranges into it: it is S3, and has not refused before."""
    where = split_path(path)
    return where.scheme in S3_SCHEMES and where.authority not in storage.no_range_copies


def assemble(storage: Storage, path: str, parts: Sequence[Part]) -> AssembledObject | NotAssembled:
    """Make an object of parts as :func:`.plan_parts` gives them; where it was not made, nothing is left of it.

    A range is copied and read only while its object has the ETag that the range names.  Requests say so as a condition,
    which not every store heeds; so the ETag in each answer is compared, and of a range that the store has copied some
    bytes are read afterwards, for the answer about a copy tells nothing of its source (rule 131).

    Raises:
        StorageError: there are no credentials, the path is not on S3, or the object may still appear there.
    """
    where = split_path(path)
    with storage.translated(path):
        copied = (part for part in parts if isinstance(part, CopiedRange))
        client = storage.s3_at(path, *{one for part in copied for one in (part.path, part.sample.path)})
    try:
        answer = client.create_multipart_upload(
            Bucket=where.authority, Key=where.key, ContentType="application/octet-stream"
        )
        upload = _Upload(client, where.authority, where.key, answer["UploadId"])
        try:
            return _completed(upload, path, parts)
        except BaseException:
            with suppress(BotoCoreError, ClientError):
                client.abort_multipart_upload(**upload.address)
            raise
    except ObjectChanged as changed:
        return NotAssembled(str(changed), "changed after its footer was read", source_changed=True)
    except _Unanswered as unanswered:
        with storage.translated(path):
            raise unanswered.cause from unanswered
    except (BotoCoreError, ClientError, OSError) as error:
        if isinstance(error, ClientError) and _is_for_good(error):
            storage.no_range_copies.add(where.authority)
        return NotAssembled(path, describe_failure(error, client.meta.endpoint_url))


def _is_for_good(error: ClientError) -> bool:
    """Whether the next object would fail in the same way: the request itself is refused, not for what it names."""
    names_nothing = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404
    return is_refused(error) or not (is_transient(error) or names_nothing)


def _completed(upload: _Upload, path: str, parts: Sequence[Part]) -> AssembledObject:
    sending = Semaphore(_SENT_AT_ONCE)
    samples: dict[CopiedRange, bytes] = {}

    def transfer(number: int, part: Part) -> PartEtag:
        if isinstance(part, CopiedRange):
            copied, sample = _copied(upload, number, part), part.sample
            samples[part] = read_s3_range(upload.client, sample.path, sample.start, sample.end, sample.etag)
            return copied
        with sending:
            return _sent(upload, number, part)

    with WorkThreads(min(_AT_ONCE, len(parts)), thread_name_prefix="parts") as pool:
        running = [pool.submit(transfer, number, part) for number, part in enumerate(parts, 1)]
        try:
            etags = tuple(one.result() for one in running)
        finally:
            # What has begun ends before the upload is aborted: a part that comes later would stay.
            pool.shutdown(wait=True, cancel_futures=True)
    named = [{"PartNumber": number, "ETag": one.etag} for number, one in enumerate(etags, 1)]
    return AssembledObject(path, sum(part.size for part in parts), _complete(upload, named), etags, samples)


def _complete(upload: _Upload, parts: Sequence[dict[str, Any]]) -> str:
    """Have the parts put together; the ETag of the object."""
    try:
        answer = upload.client.complete_multipart_upload(**upload.address, MultipartUpload={"Parts": parts})
        return _told_etag(answer)
    except (BotoCoreError, ClientError, OSError) as error:
        # An upload that is not there may have been completed by the same request before.
        if isinstance(error, ClientError) and _is_for_good(error):
            raise
        raise _Unanswered(error) from error


def _told_etag(answer: Mapping[str, Any]) -> str:
    """The ETag in an answer.

    Raises:
        OSError: there is none.
    """
    etag = answer.get("ETag")
    if not etag:
        raise OSError("the store did not tell the ETag of what it made")
    return str(etag)


def _copied(upload: _Upload, number: int, part: CopiedRange) -> PartEtag:
    source = split_path(part.path)
    try:
        answer = upload.client.upload_part_copy(
            **upload.address,
            PartNumber=number,
            CopySource={"Bucket": source.authority, "Key": source.key},
            CopySourceIfMatch=part.etag,
            CopySourceRange=f"bytes={part.start}-{part.end - 1}",
        )
    except ClientError as error:
        if is_of_another_object(error):
            raise ObjectChanged(part.path) from error
        raise
    return PartEtag(_told_etag(answer.get("CopyPartResult") or {}))


def _sent(upload: _Upload, number: int, part: SentPart) -> PartEtag:
    data = b"".join(
        content.data
        if isinstance(content, OwnBytes)
        else read_s3_range(upload.client, content.path, content.start, content.end, content.etag)
        for content in part.contents
    )
    answer = upload.client.upload_part(**upload.address, PartNumber=number, Body=data)
    return PartEtag(_told_etag(answer), hashlib.md5(data, usedforsecurity=False).hexdigest())
