"""PyIceberg's properties that say where S3 is, and the defaults for those that are left out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

__all__ = ["S3_CONNECT_TIMEOUT", "S3_ENDPOINT", "S3_REGION", "first_of", "region_of", "with_endpoint"]

S3_CONNECT_TIMEOUT = "s3.connect-timeout"
S3_ENDPOINT = "s3.endpoint"
S3_REGION = "s3.region"


def first_of(properties: Mapping[str, str], key: str, prefixes: Sequence[str]) -> str | None:
    """The value of a key under the first prefix that has one."""
    return next((value for prefix in prefixes if (value := properties.get(f"{prefix}.{key}"))), None)


def region_of(properties: Mapping[str, str], prefixes: Sequence[str] = ("s3", "client")) -> str | None:
    """The region in the properties or the environment; ``us-east-1`` if only an endpoint is given, else ``None``."""
    configured = first_of(properties, "region", prefixes)
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
