"""The identity, region and endpoint in PyIceberg's properties, and the keys that a catalog vends with a table."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from icekeeper.errors import MaintenanceError, StorageError
from icekeeper.machine.clock import system_clock

S3_CONNECT_TIMEOUT = "s3.connect-timeout"
S3_ENDPOINT = "s3.endpoint"
S3_REGION = "s3.region"
ENDPOINT_OF_SERVER = "icekeeper.endpoint-of-server"
"""``true``: the server of a catalog named the endpoint, so it is trusted less than the operator's own.  An internal
property, which only :mod:`icekeeper.catalogs.server_settings` sets."""

FILES = ("s3", "client")
"""Prefixes of the properties for files, in this order (PyIceberg, "Configuration": ``s3.*`` wins over ``client.*``)."""


@dataclass(frozen=True, slots=True)
class AwsIdentity:
    """The identity that sends requests; a value that is ``None`` comes from boto3's own chain."""

    profile: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    role_arn: str | None = None
    role_session_name: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether the properties contain the keys themselves, so that boto3 does not renew them."""
        return self.access_key is not None and self.role_arn is None


def _first_of(properties: Mapping[str, str], key: str, prefixes: Sequence[str]) -> str | None:
    """The value of a key under the first prefix for which it is set."""
    return next((value for prefix in prefixes if (value := properties.get(f"{prefix}.{key}"))), None)


def identity_in(properties: Mapping[str, str], prefixes: Sequence[str] = FILES) -> AwsIdentity:
    """The identity in the properties.

    For files, keys are used directly, even if there is a role: PyIceberg would assume the role *instead*, and vended
    keys may not assume a role.  For catalogs, the keys assume the role, as in PyIceberg (its pull request 4132).
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
    """The region in the properties or the environment; ``us-east-1`` if there is only an endpoint, else ``None``."""
    configured = _first_of(properties, "region", prefixes)
    configured = configured or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return configured or ("us-east-1" if properties.get(f"{prefixes[0]}.endpoint") else None)


def is_anonymous(properties: Mapping[str, str]) -> bool:
    """Whether files are read without any credentials."""
    return properties.get("s3.anonymous", "").lower() == "true"


def with_keys(properties: Mapping[str, str], access_key: str, secret_key: str, token: str | None) -> dict[str, str]:
    """The properties with these keys for files in place of a profile or role."""
    replaced = {f"{prefix}.{key}" for prefix in FILES for key in ("profile-name", "role-arn", "role-session-name")}
    kept = {key: value for key, value in properties.items() if key not in replaced}
    keys = {"s3.access-key-id": access_key, "s3.secret-access-key": secret_key, "s3.session-token": token or ""}
    return {**kept, **keys}


def without_keys(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties without keys and roles for files, which the caller replaces; a profile remains, for its region."""
    left_out = {
        f"{prefix}.{key}"
        for prefix in FILES
        for key in ("access-key-id", "secret-access-key", "session-token", "role-arn", "role-session-name")
    }
    return {key: value for key, value in properties.items() if key not in left_out}


def with_endpoint(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties, with S3's endpoint from the environment if they name no endpoint.

    boto3 reads ``AWS_ENDPOINT_URL_S3`` and ``AWS_ENDPOINT_URL``, PyArrow 26 does not; both must reach the same store
    (platform: pyarrow-ignores-endpoint-url).  Source: AWS SDKs and tools reference, "Service-specific endpoints".
    """
    chosen = dict(properties)
    ignored = os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and not ignored and not chosen.get(S3_ENDPOINT):
        chosen[S3_ENDPOINT] = endpoint
    return chosen


# Keys that a catalog vends with a table.  To get new keys before they expire, the table is loaded again.
#
# A REST catalog sends the time at which keys expire (Iceberg-Java,
# ``S3FileIOProperties.SESSION_TOKEN_EXPIRES_AT_MS``); keys without it are never renewed.  Only the process that signed
# in to the catalog can get new keys.  A worker gets only the keys that are current when its work is sent.

_ACCESS_KEY, _SECRET_KEY, _TOKEN = "s3.access-key-id", "s3.secret-access-key", "s3.session-token"
_EXPIRES = "s3.session-token-expires-at-ms"
EARLY_S = 300.0
"""How long before their expiry keys are renewed."""
# A scan of a large fleet gets keys for each table while passes use the keys of some tables, which must be remembered.
_MOST_REMEMBERED = 4096

LoadAgain: TypeAlias = Callable[[], Mapping[str, str]]
"""Loads the table and returns the properties for its files; raises what :meth:`.Catalog.load` raises."""


@dataclass(frozen=True, slots=True)
class Vended:
    """Keys for the files of a table, and the epoch millisecond at which they expire."""

    access_key: str
    secret_key: str
    session_token: str
    expires_ms: int

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Vended | None:
        """The vended keys in the properties; ``None``: there are none, or their time of expiry is not known."""
        access_key, secret_key, token = (properties.get(key, "") for key in (_ACCESS_KEY, _SECRET_KEY, _TOKEN))
        expires = properties.get(_EXPIRES, "")
        if not (access_key and secret_key and token and expires.isdecimal()):
            return None
        return cls(access_key, secret_key, token, int(expires))

    def put_into(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The properties with these keys in place of other keys."""
        keys = {_ACCESS_KEY: self.access_key, _SECRET_KEY: self.secret_key, _TOKEN: self.session_token}
        return {**properties, **keys, _EXPIRES: str(self.expires_ms)}


class Vendor:
    """The newest keys that a catalog vended for a table, and a function that gets new keys."""

    def __init__(self, first: Vended, again: LoadAgain) -> None:
        self.newest = first
        self._again = again

    def renew(self) -> Vended:
        """Get new keys.

        Raises:
            StorageError: the catalog no longer vends keys.
            MaintenanceError: the catalog cannot be reached.
        """
        renewed = Vended.read(self._again())
        if renewed is None:
            raise StorageError("the keys that the catalog vended expire, and it no longer vends keys")
        self.newest = renewed
        return renewed

    def lasting(self) -> Vended:
        """The newest keys, renewed if they expire soon.

        Raises:
            MaintenanceError: they have expired, and the catalog vended no new keys.
        """
        left_ms = self.newest.expires_ms - system_clock()
        if left_ms > EARLY_S * 1000:
            return self.newest
        try:
            return self.renew()
        except MaintenanceError:
            if left_ms <= 0:
                raise
            return self.newest


_vendors: OrderedDict[str, Vendor] = OrderedDict()
_lock = threading.Lock()


def remember_vendor(properties: Mapping[str, str], again: LoadAgain) -> None:
    """Renew the vended keys in these properties, wherever this process uses them, through ``again``."""
    vended = Vended.read(properties)
    if vended is None:
        return
    with _lock:
        _vendors[vended.session_token] = Vendor(vended, again)
        _vendors.move_to_end(vended.session_token)
        if len(_vendors) > _MOST_REMEMBERED:
            _vendors.popitem(last=False)


def vendor_of(session_token: str | None) -> Vendor | None:
    """The vendor of the keys with this token, if this process got them."""
    with _lock:
        found = _vendors.get(session_token or "")
        if found is not None:
            _vendors.move_to_end(session_token or "")
        return found


def current_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties, with new keys in place of vended keys that expire soon, for a process that cannot renew them.

    Raises:
        MaintenanceError: they have expired, and the catalog vended no new keys.
    """
    vendor = vendor_of(properties.get(_TOKEN))
    return dict(properties) if vendor is None else vendor.lasting().put_into(properties)
