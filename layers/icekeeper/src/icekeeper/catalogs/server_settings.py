"""Filters the settings that the server of a REST catalog sends (rule: admit-server-settings-by-list).

PyIceberg's client merges a server's settings with the operator's; such settings choose classes to import, files to open
and how to sign in.  Here a list names the admitted keys and the form of their values.  All other settings are ignored,
and logged once.  This module also decides which access keys are vended, and to which endpoint the operator's own access
keys may be sent (rule: own-keys-stay-with-own-endpoint).
Source: the Iceberg REST catalog specification, ``CatalogConfig``, ``LoadTableResult``, ``StorageCredential``.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeAlias, TypeGuard
from urllib.parse import unquote, urlsplit

from pyiceberg.io import ARROW_FILE_IO, FSSPEC_FILE_IO

from icekeeper.aws.origins import is_link_local, origin_of, own_origin
from icekeeper.aws.settings import (
    ENDPOINT_OF_SERVER,
    S3_ENDPOINT,
    S3_REGION,
    identity_in,
    is_anonymous,
    with_endpoint,
    without_keys,
)
from icekeeper.errors import StorageError
from icekeeper.text import mask

log = logging.getLogger(__name__)

Sent: TypeAlias = Mapping[str, Any]
"""Settings from a server; values may have any type."""

NESSIE, LAKEFS = "Nessie", "lakeFS"
# Nessie's server marks its configuration by ``nessie.is-nessie-catalog`` and others; lakeFS serves its catalog below
# these paths, at any host (platform: lakefs-shows-itself).
_OF_NESSIE = "nessie."
_OF_LAKEFS = re.compile(r"/iceberg/(api|relative_to/[^/]+/api)/*\Z")

_ACCESS_KEY, _SECRET_KEY = "s3.access-key-id", "s3.secret-access-key"
# The properties of a pair of keys; properties of two pairs are never mixed.
_OF_KEYS = (_ACCESS_KEY, _SECRET_KEY, "s3.session-token", "s3.session-token-expires-at-ms")
_LONGEST = 16 * 1024
# A region must be a valid label of a host name, because AWS's SDKs put it into host names (botocore,
# ``validate_region_name``).
_REGION = re.compile(r"(?![0-9]+\Z)(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
# Characters and segments with which a path would end early, or leave its folder.
_LEAVES_PATH = re.compile(r"[?#\\]|(?:\A|/)(?:\.|%2e){1,2}(?:/|\Z)", re.IGNORECASE)
_SEPARATOR = re.compile(r"[^/?#\\%&]{1,4}")


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isascii() and value.isprintable()


_ANY: Callable[[str], bool] = bool
_FOR_CONNECTION: Mapping[str, Callable[[str], bool]] = {
    "namespace-separator": lambda value: _SEPARATOR.fullmatch(unquote(value)) is not None,
    "prefix": lambda value: _LEAVES_PATH.search(value) is None,
    "token": _ANY,
    "uri": lambda value: _LEAVES_PATH.search(value) is None,
}
_FOR_FILES: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(_OF_KEYS[:3], _ANY),
    _OF_KEYS[3]: str.isdecimal,
    S3_ENDPOINT: _ANY,
    **dict.fromkeys((S3_REGION, "client.region"), lambda value: _REGION.fullmatch(value) is not None),
    "s3.path-style-access": lambda value: value.lower() in ("true", "false"),
    **dict.fromkeys(("s3.server-side-encryption", "s3.sse-kms-key-id"), _ANY),
}
# Beginnings of the keys that would affect PyIceberg or this package.  Servers also send keys that only other clients
# know, such as ``client.refresh-credentials-endpoint`` and ``s3.delete-enabled``.
_ACTED_ON = (
    *("adls.", "audience", "auth", "botocore", "buffer-size", "credential", "default_", "dynamodb.", "gcs.", "glue."),
    *("hdfs.", "header.", "hf.", "io.", "namespace-sep", "oauth2", "pool_", "prefix", "py-", "resource", "rest-page"),
    *("rest.", "scan-planning", "scope", "snapshot-loading", "ssl", "token", "type", "uri", "view-endpoints"),
    *("client.access-key", "client.profile", "client.region", "client.role", "client.secret", "client.session"),
    *("s3.access-key", "s3.anonymous", "s3.connect", "s3.endpoint", "s3.force", "s3.path-style", "s3.profile"),
    *("s3.proxy", "s3.region", "s3.request", "s3.resolve", "s3.retry", "s3.role", "s3.secret", "s3.server-side"),
    *("s3.session", "s3.signer", "s3.sse-kms"),
)
# Lakekeeper and Nessie send these with every table, in addition to keys.  They have no effect here: we never sign
# remotely, and choose the FileIO ourselves.
_HARMLESS = frozenset({("py-io-impl", ARROW_FILE_IO), ("py-io-impl", FSSPEC_FILE_IO), ("s3.signer", "S3V4RestSigner")})
_BESIDE_KEYS = ("s3.signer.endpoint", "s3.signer.uri")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The admitted part of the configuration that a server sends when a client connects."""

    connection: Mapping[str, str]
    """For requests to the catalog, in place of the operator's properties."""
    defaults: Sent = field(repr=False)
    """For files, if neither the operator nor the table has a value."""
    overrides: Sent = field(repr=False)
    ignored: Sent = field(repr=False)
    versioned_by: str = ""
    """:data:`NESSIE` or :data:`LAKEFS` if the server is Nessie or lakeFS, else empty."""


def server_settings(own: Sent, defaults: Sent, overrides: Sent) -> ServerSettings:
    """The admitted part of a server's configuration; a ``uri`` only if it has the origin of the operator's ``uri``."""
    connection: dict[str, str] = {}
    ours = own_origin(str(own.get("uri", "")))
    for key, is_fit in _FOR_CONNECTION.items():
        for value in (overrides.get(key), None if own.get(key) else defaults.get(key)):
            if _is_text(value) and is_fit(value) and (key != "uri" or (ours is not None and origin_of(value) == ours)):
                connection[key] = value
                break
    taken = {key: (value,) for key, value in connection.items()}
    weaker = {key: value for key, value in defaults.items() if not (key in _FOR_CONNECTION and own.get(key))}
    ignored = {
        key: value
        for key, value in {**weaker, **overrides}.items()
        if key not in _FOR_FILES and value not in taken.get(key, ()) and value != own.get(key)
    }
    by = NESSIE if any(key.startswith(_OF_NESSIE) for key in (*defaults, *overrides)) else ""
    if any(_OF_LAKEFS.search(urlsplit(uri).path) for uri in (str(own.get("uri", "")), connection.get("uri", ""))):
        by = LAKEFS
    return ServerSettings(connection, _of_files(defaults), _of_files(overrides), ignored, by)


def _of_files(sent: Sent) -> dict[str, Any]:
    return {key: value for key, value in sent.items() if key in _FOR_FILES}


def file_settings(
    what: str, own: Mapping[str, str], server: ServerSettings, table: Sequence[Sent], *, in_s3: bool
) -> tuple[dict[str, str], dict[str, str], Sent]:
    """The FileIO properties for a table's files: the operator's, and the admitted properties of the server.

    Also returns the properties of the server's vended keys (empty if the operator's keys are used), and the ignored
    settings.  ``what`` names table and catalog, and begins messages.  ``table``: the server's settings for the table;
    later settings override earlier settings.  ``in_s3``: whether the table's files are on S3.

    Raises:
        StorageError: the server names an endpoint to which the operator's keys must not be sent, or an endpoint that is
            never used; or it wants to sign requests itself.
    """
    keys: dict[str, str] = {}
    weaker: dict[str, str] = {}
    stronger: dict[str, str] = {}
    ignored: dict[str, Any] = {}
    for sent in (server.defaults, server.overrides, *table):
        fit = {k: v for k, v in sent.items() if k in _FOR_FILES and _is_text(v) and _FOR_FILES[k](v)}
        if fit.keys() >= {_ACCESS_KEY, _SECRET_KEY}:
            if sent is not server.defaults or not _names_keys(own):
                keys = {key: fit[key] for key in _OF_KEYS if key in fit}
        else:
            fit = {key: value for key, value in fit.items() if key not in _OF_KEYS}
        plain = {key: value for key, value in fit.items() if key not in _OF_KEYS}
        (weaker if sent is server.defaults else stronger).update(plain)
        ignored |= {key: value for key, value in sent.items() if key not in fit and value != own.get(key)}
    named = stronger.pop(S3_ENDPOINT, None) or (None if own.get(S3_ENDPOINT) else weaker.get(S3_ENDPOINT))
    weaker.pop(S3_ENDPOINT, None)
    if in_s3 and not keys and _signs_itself({**server.ignored, **ignored}) and not _names_keys(own):
        raise StorageError(
            f"{what} wants to sign the requests for its files itself (remote signing), which is not supported: "
            "configure it to vend credentials, or set s3.access-key-id and s3.secret-access-key, client.profile-name "
            "or client.role-arn in the catalog's configuration"
        )
    endpoint = {} if named is None else _endpoint(what, named, own, vends=bool(keys))
    mine = without_keys(own) if keys else own
    return {**weaker, **mine, **stronger, **endpoint, **keys}, keys, ignored


def _names_keys(own: Mapping[str, str]) -> bool:
    """Whether the operator's configuration chooses the identity for files."""
    identity = identity_in(own)
    return is_anonymous(own) or any((identity.access_key, identity.profile, identity.role_arn))


def _signs_itself(ignored: Sent) -> bool:
    return str(ignored.get("s3.remote-signing-enabled")).lower() == "true" or any(
        key.startswith("s3.signer") for key in ignored
    )


def _endpoint(what: str, named: str, own: Mapping[str, str], *, vends: bool) -> dict[str, str]:
    """The properties of the endpoint to use if a server names an endpoint."""
    ours = with_endpoint(own).get(S3_ENDPOINT)
    place, here = origin_of(named), own_origin(ours) if ours else None
    shown = json.dumps(mask(named, {S3_ENDPOINT: named})[:200])
    if place is None or _LEAVES_PATH.search(named):
        raise StorageError(
            f"{what} names the endpoint {shown} for its files, which is not a valid address: correct s3.endpoint"
        )
    if ours and here is not None and here.place == place.place:
        return {S3_ENDPOINT: ours}
    if not vends:
        raise StorageError(
            f"{what} names the endpoint {shown} for its files and vends no keys for it; your own keys are not sent "
            "there: if the endpoint is yours, set s3.endpoint to it in the catalog's configuration"
        )
    if is_link_local(place.host):
        raise StorageError(
            f"{what} names the endpoint {shown} for its files, which is a link-local address and therefore never used: "
            "correct s3.endpoint"
        )
    return {S3_ENDPOINT: named, ENDPOINT_OF_SERVER: "true"}


_MOST_CATALOGS, _MOST_KEYS = 256, 64


_logged: OrderedDict[tuple[str, str], set[str]] = OrderedDict()
"""The keys that were logged, by catalog and address; the numbers of catalogs and of keys per catalog are bounded."""
_logged_lock = Lock()


def log_ignored(catalog: str, address: str, ignored: Sent, *, vends: bool = False) -> None:
    """Log each ignored setting once per process; values are masked and escaped.

    A setting is logged as a warning if it would have had an effect, and at level INFO otherwise.  If a server ``vends``
    keys, its settings for remote signing are also logged at level INFO.
    """

    def is_acted_on(key: str) -> bool:
        value = ignored[key] if isinstance(ignored[key], str) else None
        is_harmless = (key, value) in _HARMLESS or (vends and key in _BESIDE_KEYS)
        return key.lower().startswith(_ACTED_ON) and not is_harmless

    for level, acted_on in ((logging.WARNING, True), (logging.INFO, False)):
        with _logged_lock:
            logged = _logged.setdefault((catalog, address), set())
            if len(_logged) > _MOST_CATALOGS:
                _logged.popitem(last=False)
            new = [key for key in sorted(ignored) if is_acted_on(key) is acted_on and key not in logged]
            fresh = new[: _MOST_KEYS - len(logged)]
            logged.update(fresh)
        if fresh:
            settings = ", ".join(f"{_shown(key)}={_shown(_value(key, ignored[key]))}" for key in fresh)
            log.log(
                level,
                "catalog %s at %s sends settings that a server may not set; they are ignored: %s; set the settings "
                "that you want in the catalog's own configuration",
                catalog,
                address,
                settings,
                extra={"event": "server_settings_ignored", "catalog": catalog, "settings": len(fresh)},
            )


def _value(key: str, value: object) -> str:
    return mask(value, {key: value}) if isinstance(value, str) else "***"


def _shown(text: str) -> str:
    return json.dumps(text)[1:-1][:100]
