"""boto3 for S3, configured by PyIceberg's properties: sessions, clients and batch deletion.

``s3.*`` properties win over ``client.*``; what neither says comes from boto3's default chain.  So one configuration
serves PyArrow and boto3.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from icekeeper.request_count import RequestKind, WorkThreads, note_request
from icekeeper.storage.failures import TRANSIENT_CODES, describe_failure, failure_in_words, is_transient
from icekeeper.storage.s3_settings import S3_CONNECT_TIMEOUT, S3_ENDPOINT, first_of, region_of

__all__ = ["FailedKeys", "aws_session", "client_config", "delete_keys", "has_credentials", "s3_client"]

# The most keys one DeleteObjects request takes (S3 API reference).
DELETE_BATCH = 1000
DELETE_THREADS = 8
# As many as delete_threads and listing_threads allow.
MAX_CONNECTIONS = 64
DELETE_ATTEMPTS = 5
_KINDS = {
    "GetObject": RequestKind.GET,
    "HeadObject": RequestKind.GET,
    "DeleteObject": RequestKind.DELETE,
    "DeleteObjects": RequestKind.DELETE,
}


def aws_session(properties: Mapping[str, str], prefixes: Sequence[str] = ("s3", "client")) -> Any:
    """A boto3 session with the credentials, profile, role and region of the properties."""
    session = _session(properties, prefixes)
    if role := first_of(properties, "role-arn", prefixes):
        name = first_of(properties, "role-session-name", prefixes) or "icekeeper"
        granted = session.client("sts").assume_role(RoleArn=role, RoleSessionName=name)["Credentials"]
        session = boto3.Session(
            aws_access_key_id=granted["AccessKeyId"],
            aws_secret_access_key=granted["SecretAccessKey"],
            aws_session_token=granted["SessionToken"],
            region_name=session.region_name,
        )
    return session


def has_credentials(properties: Mapping[str, str], prefixes: Sequence[str]) -> bool:
    """Whether the properties or boto3's default chain hold any AWS credentials."""
    return _session(properties, prefixes).get_credentials() is not None


def _session(properties: Mapping[str, str], prefixes: Sequence[str]) -> Any:
    return boto3.Session(
        profile_name=first_of(properties, "profile-name", prefixes),
        aws_access_key_id=first_of(properties, "access-key-id", prefixes),
        aws_secret_access_key=first_of(properties, "secret-access-key", prefixes),
        aws_session_token=first_of(properties, "session-token", prefixes),
        region_name=region_of(properties, prefixes),
    )


def client_config(properties: Mapping[str, str], *, attempts: int = 3, **more: Any) -> Config:
    """Timeouts and attempts of every client: a refused connection fails within 5 s."""
    return Config(
        connect_timeout=float(properties.get(S3_CONNECT_TIMEOUT) or 3),
        read_timeout=30,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        max_pool_connections=MAX_CONNECTIONS,
        **more,
    )


def s3_client(properties: Mapping[str, str]) -> Any:
    """An S3 client that reaches what PyIceberg's FileIO reaches with the same properties."""
    more: dict[str, Any] = {}
    if properties.get("s3.anonymous", "").lower() == "true":
        more["signature_version"] = UNSIGNED
    if proxy := properties.get("s3.proxy-uri"):
        more["proxies"] = {"http": proxy, "https": proxy}
    endpoint = properties.get(S3_ENDPOINT)
    virtual = properties.get("s3.force-virtual-addressing", "").lower() == "true"
    # As PyArrow does it: servers behind an endpoint of their own seldom have a host name per bucket.
    style = "virtual" if virtual else "path" if endpoint else "auto"
    config = client_config(properties, s3={"addressing_style": style}, **more)
    client = aws_session(properties).client("s3", endpoint_url=endpoint, config=config)
    client.meta.events.register("before-send.s3", _count)
    return client


def _count(event_name: str, **_: Any) -> None:
    """Count each request as it is sent, repeated ones too; an answer of ``None`` lets boto3 send it."""
    operation = event_name.rpartition(".")[2]
    note_request(_KINDS.get(operation, RequestKind.PUT))


@dataclass(slots=True)
class FailedKeys:
    """Keys that could not be deleted, each with its reason; those in ``transient`` may go later."""

    for_good: dict[str, str] = field(default_factory=dict)
    transient: dict[str, str] = field(default_factory=dict)


def delete_keys(client: Any, bucket: str, keys: Sequence[str]) -> FailedKeys:
    """Delete objects in parallel batches.

    A missing object counts as deleted.  Throttled and failed keys are tried again with growing pauses.
    """
    batches = [keys[start : start + DELETE_BATCH] for start in range(0, len(keys), DELETE_BATCH)]
    failed = FailedKeys()
    with WorkThreads(min(DELETE_THREADS, len(batches))) as pool:
        for failures in pool.map(lambda batch: _delete_batch(client, bucket, batch), batches):
            failed.for_good.update(failures.for_good)
            failed.transient.update(failures.transient)
    return failed


def _delete_batch(client: Any, bucket: str, keys: Sequence[str]) -> FailedKeys:
    failed = FailedKeys()
    pending: Sequence[str] = keys
    for attempt in range(DELETE_ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0.5, 1) * 0.2 * 2**attempt)
        transient: dict[str, str] = {}
        try:
            request = {"Objects": [{"Key": key} for key in pending], "Quiet": True}
            errors = client.delete_objects(Bucket=bucket, Delete=request).get("Errors", ())
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
            code = entry.get("Code", "")
            if code not in ("NoSuchKey", "NoSuchVersion"):
                target = transient if code in TRANSIENT_CODES else failed.for_good
                target[entry["Key"]] = failure_in_words(code, entry.get("Message", ""))
        if not transient:
            return failed
        pending, last = list(transient), transient
    failed.transient = last
    return failed
