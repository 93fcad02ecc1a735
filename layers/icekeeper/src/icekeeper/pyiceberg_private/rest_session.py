"""PyIceberg's REST client, with limits for time, size and redirects, and its choice among vended credentials."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from http.cookiejar import DefaultCookiePolicy
from typing import Any, TypeAlias
from urllib.parse import unquote, urljoin

import requests
from botocore.exceptions import BotoCoreError
from pyiceberg.catalog import BOTOCORE_SESSION, URI, WAREHOUSE_LOCATION
from pyiceberg.catalog.rest import (
    DEFAULT_ENDPOINTS,
    DEFAULT_NAMESPACE_SEPARATOR,
    NAMESPACE_SEPARATOR_PROPERTY,
    ConfigResponse,
    Endpoints,
    RestCatalog,
)
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.exceptions import OAuthError, RESTError
from pyiceberg.io import AWS_ACCESS_KEY_ID, AWS_PROFILE_NAME, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from icekeeper.aws.origins import Origin, origin_of, own_origin
from icekeeper.errors import MetadataUnreadable
from icekeeper.machine.clock import steady_s
from icekeeper.machine.foreign_bytes import FileLimits, hold_values, require_fitting
from icekeeper.machine.metering import RequestKind, note_request
from icekeeper.text import address_to_show

# Limits for connecting, and between two bytes of an answer; a commit may wait for the server to write metadata.
REQUEST_TIMEOUT_S = (5.0, 60.0)
ANSWER_TIMEOUT_S = 600.0
"""For a whole answer; 100 MB of metadata take this long at 170 kB/s."""
_PIECE_BYTES = 64 * 1024
_PACKED = ("gzip", "x-gzip")
# For each invalid value, pydantic makes two more values: its message and its position.
_PYDANTIC_TIMES = 3
_LONGEST_PAUSE_S = 20.0
# Per namespace; a page has a hundred tables or more.
_MOST_PAGES = 20_000
# PyIceberg's default is ten retries without pauses.
SIGV4_RETRIES, SIGV4_RETRIES_DEFAULT = "rest.sigv4.max-retries", "2"
# 401 Unauthorized, and the REST catalog specification's 419 "authentication timeout": sign in and try once more.
EXPIRED = (401, 419)
_SIGNERS = frozenset({AWS_ACCESS_KEY_ID, AWS_PROFILE_NAME, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN})
READING = frozenset({"GET", "HEAD"})

Admit: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, str]]
"""Takes the defaults and the overrides that a server sends; returns the properties that replace the client's."""


class _ShortPauses(Retry):
    """Retries that wait as long as the server asks for (``Retry-After``), up to a limit."""

    def get_retry_after(self, response: Any) -> float | None:
        asked_s = super().get_retry_after(response)
        return None if asked_s is None else min(asked_s, _LONGEST_PAUSE_S)


class _Pages(threading.local):
    """The page tokens of a thread's current listing."""

    def __init__(self) -> None:
        self.seen: set[str] = set()


class AnswerRefused(requests.RequestException):
    """A server's answer or listing never ends, is damaged, or exceeds the limits."""


class RedirectRefused(requests.RequestException):
    """A server redirects to another origin; no request is sent there."""


class SecondAttemptFailed(requests.RequestException):
    """The server answered a request with "sign in again", and the second attempt got no answer."""


class BoundedRestCatalog(RestCatalog):
    """PyIceberg's REST client with a timeout on every request, including requests for configuration and token.

    If it signs requests, it uses the session in the property ``botocore_session``, if that is set.

    Only reads are repeated: a commit that is sent twice conflicts with itself (rule: send-commits-once).  Of the
    server's configuration, PyIceberg sees only what ``admit`` returns (rule: admit-server-settings-by-list).  Cookies
    are not kept.  A redirect to another origin is an error, because it would get the credentials
    (rule: own-keys-stay-with-own-endpoint).
    """

    def __init__(self, name: str, admit: Admit, properties: Mapping[str, Any]) -> None:
        self._admit = admit
        super().__init__(name, **properties)

    def _fetch_config(self) -> None:
        # Replaces PyIceberg's method, which merges everything that the server sends, even classes to import
        # (platform: pyiceberg-trusts-server-settings).
        warehouse = self.properties.get(WAREHOUSE_LOCATION)
        with self._create_session() as session:
            response = session.get(
                self.url(Endpoints.get_config, prefixed=False),
                params={WAREHOUSE_LOCATION: warehouse} if warehouse else {},
            )
        try:
            response.raise_for_status()
        except requests.HTTPError as error:
            _handle_non_200_response(error, {})
        sent = ConfigResponse.model_validate_json(response.text)
        self.properties = {**self.properties, **self._admit(sent.defaults or {}, sent.overrides or {})}
        self.uri = self.properties[URI]
        self._supported_endpoints = set(sent.endpoints or DEFAULT_ENDPOINTS)
        self._namespace_separator = unquote(
            self.properties.get(NAMESPACE_SEPARATOR_PROPERTY) or DEFAULT_NAMESPACE_SEPARATOR
        )

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        for adapter in session.adapters.values():
            if isinstance(adapter, HTTPAdapter):
                _end_answers(adapter)
                # other=0, because urllib3 would otherwise repeat a POST after errors of unknown kinds, such as a TLS
                # error during an answer.  An adapter that does not sign would repeat nothing, so an idle connection
                # that a server or load balancer closes would fail a whole operation.
                signs = adapter.max_retries.read is not False
                total = adapter.max_retries.total if signs else int(SIGV4_RETRIES_DEFAULT)
                adapter.max_retries = _ShortPauses(total, allowed_methods=READING, other=0)
        session.hooks["response"].append(_count)
        return session

    def _config_headers(self, session: requests.Session) -> None:
        # PyIceberg calls this first with a new session, before it signs in.
        super()._config_headers(session)
        self.properties.setdefault(SIGV4_RETRIES, SIGV4_RETRIES_DEFAULT)
        session.request = functools.partial(session.request, timeout=REQUEST_TIMEOUT_S)  # type: ignore[method-assign]
        # By default requests accepts every encoding that urllib3 can unpack.
        session.headers["Accept-Encoding"] = _PACKED[0]
        session.get = functools.partial(_next_page, session.get, _Pages())  # type: ignore[method-assign]
        session.post = functools.partial(_of_few_values, session.post)  # type: ignore[method-assign]
        for adapter in session.adapters.values():
            _end_answers(adapter)
        session.get_redirect_target = functools.partial(  # type: ignore[method-assign]
            _target_at_home, session.get_redirect_target
        )
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))

    def _init_sigv4(self, session: requests.Session) -> None:
        # PyIceberg would set the profile and keys of the properties in the given session, which already has them or
        # their role.
        properties = self.properties
        left_out = _SIGNERS if BOTOCORE_SESSION in properties else ()
        self.properties = {key: value for key, value in properties.items() if key not in left_out}
        super()._init_sigv4(session)
        self.properties = properties


def _target_at_home(target_of: Callable[[requests.Response], str | None], response: requests.Response) -> str | None:
    """The target of a redirect, which must have the origin of the answer, or be the same host through TLS.

    requests would also send headers that it does not recognise as secrets: headers that the operator configured, and
    the session token of a signature.  After a 307 or 308 it would send the body, which may contain the client's secret.
    """
    target = target_of(response)
    if target is None:
        return None
    address = urljoin(response.url, target)
    here, there = own_origin(response.url), origin_of(address)
    if here is None or there not in (here, Origin("https", here.host, 443) if here.port == 80 else here):
        raise RedirectRefused(
            f"a redirect leads to another server, {address_to_show(address)[:200]!a}; correct its uri"
        )
    return target


def _next_page(
    get: Callable[..., requests.Response], pages: _Pages, url: str, params: Mapping[str, str] | None = None, **more: Any
) -> requests.Response:
    """Request a page of a listing, but refuse a repeated token, or too many pages (rule: bound-foreign-bytes).

    PyIceberg itself continues as long as there is a token.
    """
    token = (params or {}).get("pageToken")
    if token is None:
        pages.seen = set()
    elif token in pages.seen or len(pages.seen) >= _MOST_PAGES:
        raise AnswerRefused("a listing repeats its pages and never ends")
    else:
        pages.seen.add(token)
    return _of_few_values(get, url, params=params, **more)


def _of_few_values(ask: Callable[..., requests.Response], *arguments: Any, **more: Any) -> requests.Response:
    """Limit the values in an answer that PyIceberg parses: a configuration, a token or a listing."""
    response = ask(*arguments, **more)
    try:
        hold_values(response.content, FileLimits("an answer"), _PYDANTIC_TIMES)
    except MetadataUnreadable as error:
        raise AnswerRefused(str(error)) from None
    return response


def _end_answers(adapter: Any) -> None:
    """Make an adapter read each whole answer within :data:`ANSWER_TIMEOUT_S`, even after redirects."""
    if not isinstance(adapter.send, functools.partial):
        adapter.send = functools.partial(_whole_answer, adapter.send)


def _whole_answer(
    send: Callable[..., requests.Response], request: requests.PreparedRequest, stream: bool = False, **more: Any
) -> requests.Response:
    """Send a request and read the answer within limits, because a server could send a byte a minute.

    The answer is decompressed here, because urllib3 decompresses up to five layers, and any number before release 2.6.
    """
    response = send(request, stream=True, **more)
    packing = str(response.raw.headers.pop("Content-Encoding", "")).strip().lower()
    if packing not in ("", "identity", *_PACKED):
        response.close()
        raise AnswerRefused(f"an answer has the encoding {packing[:40]!a}, which was not requested")
    until_s = steady_s() + ANSWER_TIMEOUT_S
    parts, size = [], 0
    for part in response.iter_content(_PIECE_BYTES):
        if steady_s() > until_s:
            response.close()
            raise AnswerRefused(f"an answer took longer than {ANSWER_TIMEOUT_S:.0f} s")
        parts.append(part)
        size += len(part)
        try:
            require_fitting("an answer", size)
        except MetadataUnreadable as error:
            response.close()
            raise AnswerRefused(str(error)) from None
    data = b"".join(parts)
    if packing in _PACKED and data:
        try:
            data = FileLimits("an answer", len(data)).unpack("gzip", data)
        except (MetadataUnreadable, ValueError) as error:
            raise AnswerRefused(
                str(error) if isinstance(error, MetadataUnreadable) else f"an answer is damaged: {error}"
            ) from None
    response._content = data  # where requests itself stores it
    return response


def _count(response: requests.Response, **_: Any) -> None:
    note_request(RequestKind.CATALOG)


def rest_request(
    catalog: RestCatalog, method: str, *, namespace: Sequence[str], table: str, json: Mapping[str, Any] | None = None
) -> requests.Response:
    """Send a request about a table through the authenticated session; return the answer, whatever its status.

    Redirects are followed only for reads: a redirect turns a POST into a GET, whose answer looks like success.  Reads
    bypass caches in front of the catalog (RFC 9111, "no-cache").

    Raises:
        SecondAttemptFailed: the first attempt was answered, the second was not.
        requests.RequestException: there was no answer.
    """
    path = catalog._split_identifier_for_path((*namespace, table))
    url = catalog.url("namespaces/{namespace}/tables/{table}", **path)
    reads = method in READING
    headers = {"Cache-Control": "no-cache"} if reads else None
    request = functools.partial(
        catalog._session.request, method, url, json=json, headers=headers, allow_redirects=reads
    )
    response = request()
    if response.status_code in EXPIRED and catalog.properties.get("credential"):
        try:
            catalog._refresh_token()
            response = request()
        except (requests.RequestException, BotoCoreError, RESTError, OAuthError) as error:
            raise SecondAttemptFailed(error) from error
    return response


def rest_credentials(credentials: Sequence[Mapping[str, Any]], location: str) -> Mapping[str, str]:
    """The vended credentials that have the longest prefix of the location (REST specification)."""
    parsed = [StorageCredential.model_validate(credential) for credential in credentials]
    return RestCatalog._resolve_storage_credentials(parsed, location)
