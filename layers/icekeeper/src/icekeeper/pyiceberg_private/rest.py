"""PyIceberg's REST client: its session, with time limits, and its choice among vended credentials."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import requests
from botocore.exceptions import BotoCoreError
from pyiceberg.catalog import BOTOCORE_SESSION
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.exceptions import OAuthError, RESTError
from pyiceberg.io import AWS_ACCESS_KEY_ID, AWS_PROFILE_NAME, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
from requests.adapters import HTTPAdapter

from icekeeper.request_count import RequestKind, note_request

__all__ = ["BoundedRestCatalog", "SecondAttemptFailed", "rest_credentials", "rest_request"]

# Connecting, and then between two bytes of an answer; a commit may wait for the server to write metadata.
REQUEST_TIMEOUT_S = (5.0, 60.0)
# PyIceberg's default is ten, at once.
SIGV4_RETRIES, SIGV4_RETRIES_DEFAULT = "rest.sigv4.max-retries", "2"
# 401 Unauthorized and the REST catalog specification's 419 "authentication timeout": sign in again, try once more.
EXPIRED = (401, 419)
_SIGNERS = frozenset({AWS_ACCESS_KEY_ID, AWS_PROFILE_NAME, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN})
READING = frozenset({"GET", "HEAD"})


class SecondAttemptFailed(requests.RequestException):
    """A request was answered with "sign in again", and no answer came to the second attempt."""


class BoundedRestCatalog(RestCatalog):
    """PyIceberg's REST client with a timeout on every request, those for configuration and token included.

    Signs, where it does, with the session that the property ``botocore_session`` gives, if it is given.

    What was sent is repeated only if it reads: a commit that is sent twice hears of a conflict with itself (rule 66).
    """

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        for adapter in session.adapters.values():
            if isinstance(adapter, HTTPAdapter):
                # urllib3 repeats a POST after errors that it cannot place, such as one of TLS amid an answer.
                adapter.max_retries = adapter.max_retries.new(allowed_methods=READING, other=0)
        session.hooks["response"].append(_count)
        return session

    def _config_headers(self, session: requests.Session) -> None:
        # The first thing that PyIceberg does with a new session, before it signs in.
        super()._config_headers(session)
        self.properties.setdefault(SIGV4_RETRIES, SIGV4_RETRIES_DEFAULT)
        session.request = functools.partial(session.request, timeout=REQUEST_TIMEOUT_S)  # type: ignore[method-assign]

    def _init_sigv4(self, session: requests.Session) -> None:
        # PyIceberg would set the properties' profile and keys in the session that is given, which has them, or their
        # role, already.
        properties = self.properties
        left_out = _SIGNERS if BOTOCORE_SESSION in properties else ()
        self.properties = {key: value for key, value in properties.items() if key not in left_out}
        super()._init_sigv4(session)
        self.properties = properties


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
