"""boto3 for S3, configured by PyIceberg's properties: sessions, clients, batch deletion, and failures in words.

``s3.*`` properties win over ``client.*``; what both leave out comes from boto3's default chain.  One configuration
so serves PyArrow and boto3.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
)

from icekeeper.masking import masked

__all__ = [
    "S3_CONNECT_TIMEOUT",
    "S3_REGION",
    "FailedKeys",
    "aws_session",
    "client_config",
    "delete_keys",
    "describe_failure",
    "has_credentials",
    "is_refused",
    "region_of",
    "s3_client",
    "with_endpoint",
]

S3_CONNECT_TIMEOUT = "s3.connect-timeout"
S3_ENDPOINT = "s3.endpoint"
S3_REGION = "s3.region"

# The most keys one DeleteObjects request takes (S3 API reference).
DELETE_BATCH = 1000
DELETE_THREADS = 8
DELETE_ATTEMPTS = 5
# S3 API reference, "Error responses": what goes away by waiting.
TRANSIENT_CODES = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
# Refused by the kind of bucket (platform 35) or by a policy; wrong credentials are also a 403, but say so.
REFUSED_CODES = frozenset({"405", "AccessDenied", "AccessDeniedException", "MethodNotAllowed", "NotImplemented"})


def _first(properties: Mapping[str, str], key: str, prefixes: Sequence[str]) -> str | None:
    return next((value for prefix in prefixes if (value := properties.get(f"{prefix}.{key}"))), None)


def region_of(properties: Mapping[str, str], prefixes: Sequence[str] = ("s3", "client")) -> str | None:
    """The configured region; ``us-east-1`` when only an endpoint is given, ``None`` when nothing is."""
    configured = _first(properties, "region", prefixes)
    configured = configured or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return configured or ("us-east-1" if properties.get(f"{prefixes[0]}.endpoint") else None)


def with_endpoint(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties, with S3's endpoint from the environment where they name none.

    boto3 follows ``AWS_ENDPOINT_URL_S3`` and ``AWS_ENDPOINT_URL`` by itself, PyArrow 26 does not; both must reach the
    same store (platform 10).  Source: AWS SDKs and tools reference, "Service-specific endpoints".
    """
    chosen = dict(properties)
    ignored = os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and not ignored and not chosen.get(S3_ENDPOINT):
        chosen[S3_ENDPOINT] = endpoint
    return chosen


def aws_session(properties: Mapping[str, str], prefixes: Sequence[str] = ("s3", "client")) -> Any:
    """A boto3 session with the credentials, profile, role and region of the properties."""
    session = _session(properties, prefixes)
    if role := _first(properties, "role-arn", prefixes):
        name = _first(properties, "role-session-name", prefixes) or "icekeeper"
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
        profile_name=_first(properties, "profile-name", prefixes),
        aws_access_key_id=_first(properties, "access-key-id", prefixes),
        aws_secret_access_key=_first(properties, "secret-access-key", prefixes),
        aws_session_token=_first(properties, "session-token", prefixes),
        region_name=region_of(properties, prefixes),
    )


def client_config(properties: Mapping[str, str], *, attempts: int = 3, **more: Any) -> Config:
    """Timeouts and attempts of every client: a refused connection fails within 5 s."""
    return Config(
        connect_timeout=float(properties.get(S3_CONNECT_TIMEOUT) or 3),
        read_timeout=30,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        max_pool_connections=2 * DELETE_THREADS,
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
    return aws_session(properties).client("s3", endpoint_url=endpoint, config=config)


@dataclass(slots=True)
class FailedKeys:
    """Keys that could not be deleted, with the reason, by whether waiting may help."""

    for_good: dict[str, str] = field(default_factory=dict)
    transient: dict[str, str] = field(default_factory=dict)


def delete_keys(client: Any, bucket: str, keys: Sequence[str]) -> FailedKeys:
    """Delete objects in parallel batches.

    A missing object counts as deleted.  Throttled and failed keys are tried again with growing pauses.
    """
    batches = [keys[start : start + DELETE_BATCH] for start in range(0, len(keys), DELETE_BATCH)]
    failed = FailedKeys()
    with ThreadPoolExecutor(min(DELETE_THREADS, len(batches))) as pool:
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
            if _is_transient(error):
                transient = dict.fromkeys(pending, reason)
            else:
                failed.for_good.update(dict.fromkeys(pending, reason))
            errors = ()
        except BotoCoreError as error:
            # boto3 has tried again by itself; whoever has more time may do so later
            failed.transient.update(dict.fromkeys(pending, describe_failure(error, client.meta.endpoint_url)))
            return failed
        for entry in errors:
            code = entry.get("Code", "")
            if code not in ("NoSuchKey", "NoSuchVersion"):
                target = transient if code in TRANSIENT_CODES else failed.for_good
                target[entry["Key"]] = _words(code, entry.get("Message", ""))
        if not transient:
            return failed
        pending, last = list(transient), transient
    failed.transient = last
    return failed


def _is_transient(error: ClientError) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status == 429 or (status >= 500 and status != 501) or error.response["Error"].get("Code") in TRANSIENT_CODES


def is_refused(error: ClientError | Mapping[str, Any]) -> bool:
    """Whether a failure, or one entry of a batch's errors, means "not allowed here" rather than "did not work"."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status in (405, 501) or error.response["Error"].get("Code") in REFUSED_CODES
    return error.get("Code") in REFUSED_CODES


def describe_failure(error: Exception, endpoint: str | None) -> str:
    """What went wrong, as the end of a sentence that begins with the path or service."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError) or "AWS Error NETWORK_CONNECTION" in text:
        return f"cannot be reached: nothing answers at {endpoint or 'the AWS endpoint'}"
    if isinstance(error, NoCredentialsError):
        return "cannot be reached: no AWS credentials are configured"
    if isinstance(error, ClientError):
        details = error.response["Error"]
        return _words(details.get("Code", ""), details.get("Message", ""))
    if isinstance(error, PermissionError) or "AWS Error ACCESS_DENIED" in text:
        return "must not be accessed with these credentials"
    return f"failed: {text}"


def _words(code: str, message: str) -> str:
    message = "" if message.startswith("<") else " ".join(masked(message).split())[:300]
    if code in REFUSED_CODES:
        return f"was refused by the store ({code}{': ' + message if message else ''})"
    return f"failed with {code}{': ' + message if message else ''}"
