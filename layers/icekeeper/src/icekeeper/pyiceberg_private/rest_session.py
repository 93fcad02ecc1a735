"""PyIceberg's REST client: its session, with time limits, and its choice among vended credentials."""

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

# Connecting, and then between two bytes of an answer; a commit may wait for the server to write metadata.
REQUEST_TIMEOUT_S = (5.0, 60.0)
ANSWER_TIMEOUT_S = 600.0
"""For the whole of an answer: metadata of 100 MB take that long at 170 kB/s."""
_PIECE_BYTES = 64 * 1024
_PACKED = ("gzip", "x-gzip")
# What pydantic takes for a value that is not as it should be: its message, and where it stands.
_PYDANTIC_TIMES = 3
_LONGEST_PAUSE_S = 20.0
# Of a namespace; a server sends a hundred tables and more with each.
_MOST_PAGES = 20_000
# PyIceberg's default is ten, at once.
SIGV4_RETRIES, SIGV4_RETRIES_DEFAULT = "rest.sigv4.max-retries", "2"
# 401 Unauthorized and the REST catalog specification's 419 "authentication timeout": sign in again, try once more.
EXPIRED = (401, 419)
_SIGNERS = frozenset({AWS_ACCESS_KEY_ID, AWS_PROFILE_NAME, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN})
READING = frozenset({"GET", "HEAD"})

Admit: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, str]]
"""Of the defaults and the overrides that a server sends, what replaces properties of the client."""


class _ShortPauses(Retry):
    """Repetitions that wait as long as the server asks for (``Retry-After``), but not for ever."""

    def get_retry_after(self, response: Any) -> float | None:
        asked_s = super().get_retry_after(response)
        return None if asked_s is None else min(asked_s, _LONGEST_PAUSE_S)


class _Pages(threading.local):
    """The tokens of the listing that a thread is at."""

    def __init__(self) -> None:
        self.seen: set[str] = set()


class AnswerRefused(requests.RequestException):
    """A server's answer, or its listing, does not come to an end, or unfolds as it should not."""


class LedElsewhere(requests.RequestException):
    """A server answers with a redirect to an address of another origin, where no request is sent."""


class SecondAttemptFailed(requests.RequestException):
    """A request was answered with "sign in again", and no answer came to the second attempt."""


class BoundedRestCatalog(RestCatalog):
    """PyIceberg's REST client with a timeout on every request, those for configuration and token included.

    Signs, where it does, with the session that the property ``botocore_session`` gives, if it is given.

    What was sent is repeated only if it reads: a commit that is sent twice hears of a conflict with itself
    (rule: send-commits-once).  Of what the server sends as configuration, only what ``admit`` gives back is seen by
    PyIceberg (rule: admit-server-settings-by-list).  Cookies are not kept, and a redirect to another origin, which
    would get what signs in, is an error (rule: no-cross-origin-redirects).
    """

    def __init__(self, name: str, admit: Admit, properties: Mapping[str, Any]) -> None:
        self._admit = admit
        super().__init__(name, **properties)

    def _fetch_config(self) -> None:
        # In place of PyIceberg's, which merges whatever the server sends, classes to import among it
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
                # urllib3 repeats a POST after errors that it cannot place, such as one of TLS amid an answer.
                retries = adapter.max_retries
                adapter.max_retries = _ShortPauses(retries.total, read=retries.read, allowed_methods=READING, other=0)
        session.hooks["response"].append(_count)
        return session

    def _config_headers(self, session: requests.Session) -> None:
        # The first thing that PyIceberg does with a new session, before it signs in.
        super()._config_headers(session)
        self.properties.setdefault(SIGV4_RETRIES, SIGV4_RETRIES_DEFAULT)
        session.request = functools.partial(session.request, timeout=REQUEST_TIMEOUT_S)  # type: ignore[method-assign]
        # Else requests asks for all that urllib3 can unpack.
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
        # PyIceberg would set the properties' profile and keys in the session that is given, which has them, or their
        # role, already.
        properties = self.properties
        left_out = _SIGNERS if BOTOCORE_SESSION in properties else ()
        self.properties = {key: value for key, value in properties.items() if key not in left_out}
        super()._init_sigv4(session)
        self.properties = properties


def _target_at_home(target_of: Callable[[requests.Response], str | None], response: requests.Response) -> str | None:
    """Where a redirect leads, which must be where the answer came from, or there by TLS.

    requests would take along what it does not know to be a secret: the headers that the operator has configured, and a
    session token that signed; after a 307 or 308 also the body, which may hold the client's secret.
    """
    target = target_of(response)
    if target is None:
        return None
    address = urljoin(response.url, target)
    here, there = own_origin(response.url), origin_of(address)
    if here is None or there not in (here, Origin("https", here.host, 443) if here.port == 80 else here):
        raise LedElsewhere(f"a redirect leads elsewhere, to {address_to_show(address)[:200]!a}; correct its uri")
    return target


def _next_page(
    get: Callable[..., requests.Response],
    pages: _Pages,
    url: str,
    params: Mapping[str, str] | None = None,
    **more: Any,
) -> requests.Response:
    """Ask for one page of a listing; one that is asked for again, or comes after very many, belongs to no honest one
    (rule: bounded-answers).

    PyIceberg asks as long as there is a token.
    """
    token = (params or {}).get("pageToken")
    if token is None:
        pages.seen = set()
    elif token in pages.seen or len(pages.seen) >= _MOST_PAGES:
        raise AnswerRefused("a listing goes round and comes to no end")
    else:
        pages.seen.add(token)
    return _of_few_values(get, url, params=params, **more)


def _of_few_values(ask: Callable[..., requests.Response], *arguments: Any, **more: Any) -> requests.Response:
    """An answer that PyIceberg itself parses: a configuration, a token or a listing."""
    response = ask(*arguments, **more)
    try:
        hold_values(response.content, FileLimits("an answer"), _PYDANTIC_TIMES)
    except MetadataUnreadable as error:
        raise AnswerRefused(str(error)) from None
    return response


def _end_answers(adapter: Any) -> None:
    """Have an adapter read each answer whole, within :data:`ANSWER_TIMEOUT_S`, whoever asks and is led where."""
    if not isinstance(adapter.send, functools.partial):
        adapter.send = functools.partial(_whole_answer, adapter.send)


def _whole_answer(
    send: Callable[..., requests.Response], request: requests.PreparedRequest, stream: bool = False, **more: Any
) -> requests.Response:
    """Send a request and read the answer; a server that sends a byte a minute must not hold us for ever.

    It is unpacked here: urllib3 unpacks what is packed five times, and releases before 2.6 without any limit.
    """
    response = send(request, stream=True, **more)
    packing = str(response.raw.headers.pop("Content-Encoding", "")).strip().lower()
    if packing not in ("", "identity", *_PACKED):
        response.close()
        raise AnswerRefused(f"an answer is packed as {packing[:40]!a}, which was not asked for")
    until_s = steady_s() + ANSWER_TIMEOUT_S
    parts, size = [], 0
    for part in response.iter_content(_PIECE_BYTES):
        if steady_s() > until_s:
            response.close()
            raise AnswerRefused(f"an answer does not end within {ANSWER_TIMEOUT_S:.0f} s")
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
    response._content = data  # as requests itself keeps it
    return response


def _count(response: requests.Response, **_: Any) -> None:
    """Count a request that was answered."""
    note_request(RequestKind.CATALOG)


def rest_request(
    catalog: RestCatalog,
    method: str,
    endpoint: str,
    *,
    namespace: Sequence[str],
    table: str,
    json: Mapping[str, Any] | None = None,
) -> requests.Response:
    """Send one request about a table through the authenticated session; any status is returned.

    A redirect is followed only while reading: of a POST it makes a GET, whose answer looks like success.  What is read
    is asked of the catalog itself, not of a cache on the way (RFC 9111, "no-cache").

    Raises:
        SecondAttemptFailed: the first one was answered, the second was not.
        requests.RequestException: no answer came.
    """
    path = catalog._split_identifier_for_path((*namespace, table))
    url = catalog.url(endpoint, **path)
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
    """Of the credentials a catalog vends, those with the longest prefix of the location (REST specification)."""
    parsed = [StorageCredential.model_validate(credential) for credential in credentials]
    return RestCatalog._resolve_storage_credentials(parsed, location)
