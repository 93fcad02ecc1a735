"""boto3 for S3, configured by PyIceberg's properties: clients and batch deletion."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore import UNSIGNED
from botocore.exceptions import BotoCoreError, ClientError

from icekeeper.aws.session import aws_session, client_config
from icekeeper.aws.settings import ENDPOINT_OF_SERVER, S3_ENDPOINT, is_anonymous
from icekeeper.machine.metering import RequestKind, WorkThreads, note_request
from icekeeper.storage.failures import TRANSIENT_CODES, describe_failure, failure_in_words, is_transient
from icekeeper.storage.s3_answers import BoundedClient, require_own_answers

__all__ = ["FailedKeys", "delete_keys", "s3_client"]

# The most keys one DeleteObjects request takes (S3 API reference).
DELETE_BATCH = 1000
DELETE_THREADS = 8
DELETE_ATTEMPTS = 5
# What a document of XML 1.0 cannot hold, not even escaped (its section 2.2, "Characters").
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_KINDS = {
    "GetObject": RequestKind.GET,
    "HeadObject": RequestKind.GET,
    "DeleteObject": RequestKind.DELETE,
    "DeleteObjects": RequestKind.DELETE,
}


def s3_client(properties: Mapping[str, str], *, counts: bool = True) -> Any:
    """An S3 client that reaches what PyIceberg's FileIO reaches with the same properties.

    Its requests are counted as they are sent, unless whoever uses it counts.
    """
    more: dict[str, Any] = {}
    if is_anonymous(properties):
        more["signature_version"] = UNSIGNED
    if proxy := properties.get("s3.proxy-uri"):
        more["proxies"] = {"http": proxy, "https": proxy}
    endpoint = properties.get(S3_ENDPOINT)
    virtual = properties.get("s3.force-virtual-addressing", "").lower() == "true"
    # As PyArrow does it: servers behind an endpoint of their own seldom have a host name per bucket.
    style = "virtual" if virtual else "path" if endpoint else "auto"
    config = client_config(properties, s3={"addressing_style": style}, **more)
    client = aws_session(properties).client("s3", first_base=BoundedClient, endpoint_url=endpoint, config=config)
    if counts:
        client.meta.events.register("before-send.s3", _count)
    client.meta.events.register("before-call.s3.HeadBucket", _follow_no_redirect)
    if properties.get(ENDPOINT_OF_SERVER) == "true":
        client.meta.events.register_first("before-send.s3", _look_where_it_goes)
    require_own_answers(client)
    return client


class LinkLocal(BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """The name of an endpoint that a server has named stands for a link-local address."""

    fmt = "{host} stands for a link-local address, which is never used: correct s3.endpoint"


def _look_where_it_goes(request: Any, **_: Any) -> None:
    """Look up the host of each request: its name may stand for something else by now, or on a worker's machine
    (rule 251).
    """
    from icekeeper.aws.origins import is_link_local, origin_of  # for few stores

    origin = origin_of(request.url)
    if origin is None or is_link_local(origin.host):
        raise LinkLocal(host=origin.host if origin else "the endpoint")


def _count(event_name: str, **_: Any) -> None:
    """Count each request as it is sent, repeated ones too; an answer of ``None`` lets boto3 send it."""
    operation = event_name.rpartition(".")[2]
    note_request(_KINDS.get(operation, RequestKind.PUT))


def _follow_no_redirect(context: dict[str, Any], **_: Any) -> None:
    """boto3 asks HeadBucket where a redirect leads that does not say so; redirected itself, it would ask for ever."""
    context["s3_redirect"]["redirected"] = True


@dataclass(slots=True)
class FailedKeys:
    """Keys that could not be deleted, each with its reason; those in ``transient`` may go later."""

    for_good: dict[str, str] = field(default_factory=dict)
    transient: dict[str, str] = field(default_factory=dict)


def delete_keys(client: Any, bucket: str, keys: Sequence[str]) -> FailedKeys:
    """Delete objects in parallel batches.

    A missing object counts as deleted.  Throttled and failed keys are tried again with growing pauses.  A key that a
    batch cannot name, which would spoil it (platform 89), is deleted alone.
    """
    alone = [key for key in keys if _NOT_IN_XML.search(key)]
    together = [key for key in keys if not _NOT_IN_XML.search(key)] if alone else keys
    batches = [together[start : start + DELETE_BATCH] for start in range(0, len(together), DELETE_BATCH)]
    batches += [[key] for key in alone]
    failed = FailedKeys()
    with WorkThreads(min(DELETE_THREADS, len(batches))) as pool:
        for failures in pool.map(lambda batch: _delete_batch(client, bucket, batch), batches):
            failed.for_good.update(failures.for_good)
            failed.transient.update(failures.transient)
    return failed


def _request_deletion(client: Any, bucket: str, keys: Sequence[str]) -> Sequence[Mapping[str, str]]:
    """The errors that the answer to one request tells."""
    if len(keys) == 1 and _NOT_IN_XML.search(keys[0]):
        client.delete_object(Bucket=bucket, Key=keys[0])
        return ()
    request = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
    return client.delete_objects(Bucket=bucket, Delete=request).get("Errors") or ()


def _delete_batch(client: Any, bucket: str, keys: Sequence[str]) -> FailedKeys:
    failed = FailedKeys()
    pending: Sequence[str] = keys
    for attempt in range(DELETE_ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1) * 0.2 * 2**attempt)
        transient: dict[str, str] = {}
        asked = frozenset(pending)
        try:
            errors = _request_deletion(client, bucket, pending)
        except ClientError as error:
            reason = describe_failure(error, None)
            if is_transient(error):
                transient = dict.fromkeys(pending, reason)
            else:
                failed.for_good.update(dict.fromkeys(pending, reason))
            errors = ()
        except BotoCoreError as error:
            # boto3 has tried again by itself; a caller with more time may try later
            failed.transient.update(dict.fromkeys(pending, describe_failure(error, client.meta.endpoint_url)))
            return failed
        for entry in errors:
            code = entry.get("Code")
            if code not in ("NoSuchKey", "NoSuchVersion"):
                target = transient if code in TRANSIENT_CODES else failed.for_good
                # Of an error that names none of our keys nobody knows which are still there (rule 185).
                of = [entry["Key"]] if entry.get("Key") in asked else pending
                target.update(dict.fromkeys(of, failure_in_words(code, entry.get("Message"))))
        transient = {key: reason for key, reason in transient.items() if key not in failed.for_good}
        if not transient:
            return failed
        pending, last = list(transient), transient
    failed.transient = last
    return failed
