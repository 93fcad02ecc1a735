"""PyIceberg's properties that say who talks to AWS, and where; nothing is asked of AWS here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = [
    "ENDPOINT_OF_SERVER",
    "FILES",
    "S3_CONNECT_TIMEOUT",
    "S3_ENDPOINT",
    "S3_REGION",
    "AwsIdentity",
    "identity_in",
    "is_anonymous",
    "region_of",
    "with_endpoint",
    "with_keys",
    "without_keys",
]

S3_CONNECT_TIMEOUT = "s3.connect-timeout"
S3_ENDPOINT = "s3.endpoint"
S3_REGION = "s3.region"
ENDPOINT_OF_SERVER = "icekeeper.endpoint-of-server"
"""``true``: the server of a catalog has named the endpoint, and whoever answers there is not believed to be the
operator's.  A property of our own, which only :mod:`icekeeper.catalogs.server_settings` sets."""

FILES = ("s3", "client")
"""Prefixes of the properties for files, in this order (PyIceberg, "Configuration": ``s3.*`` wins over ``client.*``)."""


@dataclass(frozen=True, slots=True)
class AwsIdentity:
    """Who sends requests; what is ``None`` comes from boto3's own chain."""

    profile: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = None
    role_session_name: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether the properties hold the keys themselves, which nobody can renew."""
        return self.access_key is not None and self.role_arn is None


def _first_of(properties: Mapping[str, str], key: str, prefixes: Sequence[str]) -> str | None:
    """The value of a key under the first prefix that has one."""
    return next((value for prefix in prefixes if (value := properties.get(f"{prefix}.{key}"))), None)


def identity_in(properties: Mapping[str, str], prefixes: Sequence[str] = FILES) -> AwsIdentity:
    """Who the properties say.

    For files, keys are used as they are, also where a role is named: PyIceberg assumes a role *instead of* using keys,
    and keys that a catalog vends may assume none.  For catalogs, keys are what a role is assumed with, as in
    PyIceberg's own (its pull request 4132).
    """
    access_key = _first_of(properties, "access-key-id", prefixes)
    keys_win = access_key is not None and prefixes[0] == FILES[0]
    return AwsIdentity(
        profile=_first_of(properties, "profile-name", prefixes),
        access_key=access_key,
        secret_key=_first_of(properties, "secret-access-key", prefixes),
        session_token=_first_of(properties, "session-token", prefixes),
        role_arn=None if keys_win else _first_of(properties, "role-arn", prefixes),
        role_session_name=_first_of(properties, "role-session-name", prefixes),
    )


def region_of(properties: Mapping[str, str], prefixes: Sequence[str] = FILES) -> str | None:
    """The region in the properties or the environment; ``us-east-1`` if only an endpoint is given, else ``None``."""
    configured = _first_of(properties, "region", prefixes)
    configured = configured or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return configured or ("us-east-1" if properties.get(f"{prefixes[0]}.endpoint") else None)


def is_anonymous(properties: Mapping[str, str]) -> bool:
    """Whether files are read without any credentials."""
    return properties.get("s3.anonymous", "").lower() == "true"


def with_keys(properties: Mapping[str, str], access_key: str, secret_key: str, token: str | None) -> dict[str, str]:
    """The properties with these keys for files in place of a profile or role."""
    askers = {f"{prefix}.{key}" for prefix in FILES for key in ("profile-name", "role-arn", "role-session-name")}
    kept = {key: value for key, value in properties.items() if key not in askers}
    keys = {"s3.access-key-id": access_key, "s3.secret-access-key": secret_key, "s3.session-token": token or ""}
    return {**kept, **keys}


def without_keys(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties without keys and roles for files, in whose place others come; a profile stays, for its region."""
    left_out = {
        f"{prefix}.{key}"
        for prefix in FILES
        for key in ("access-key-id", "secret-access-key", "session-token", "role-arn", "role-session-name")
    }
    return {key: value for key, value in properties.items() if key not in left_out}


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
