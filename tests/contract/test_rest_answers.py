"""The REST adapter's commits against a server that answers anything: sent once, followed nowhere, judged alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import urllib3.exceptions
from botocore.exceptions import CredentialRetrievalError
from pyiceberg.catalog.sql import SqlCatalog
from requests.adapters import HTTPAdapter

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    MaintenanceError,
    StorageError,
)
from icekeeper.pyiceberg_private.rest_session import BoundedRestCatalog
from support.maintained_table import NAME, new_table
from support.scripted_rest import CommitScript, ScriptedRest, error_document, scripted_rest

UPDATES = [{"action": "set-properties", "updates": {"ours": "yes"}}]


@pytest.fixture
def server(local_catalog: SqlCatalog, tmp_path: Path) -> Iterator[ScriptedRest]:
    with scripted_rest(new_table(local_catalog, tmp_path).catalog) as server:
        yield server


def commit(server: ScriptedRest, script: CommitScript, **properties: str) -> LoadedTable:
    server.scripts.append(script)
    catalog = server.open(**properties)
    return catalog.commit(catalog.load(NAME), [], UPDATES)


# What the server answers, and what is raised whether it acted or not.
ANSWERS: list[tuple[int, Any, type[MaintenanceError]]] = [
    (301, b"", CommitStateUnknown),
    (302, b"", CommitStateUnknown),
    (303, b"", CommitStateUnknown),
    (307, b"", CommitStateUnknown),
    (308, b"", CommitStateUnknown),
    (408, error_document(408), CommitStateUnknown),
    (500, error_document(500), CommitStateUnknown),
    (501, b"<html>", CommitStateUnknown),
    (501, error_document(501, "NotImplementedException"), CommitRefused),
    (404, b"<html>not here</html>", CommitStateUnknown),
    (403, {"message": "Forbidden"}, CommitStateUnknown),
    (404, error_document(404, "NoSuchTableException"), CommitRefused),
    (401, error_document(401), CommitRefused),
    (403, error_document(403), CommitRefused),
    (400, error_document(400), CommitRefused),
    (409, error_document(409, "CommitFailedException"), CommitConflict),
    (409, error_document(409, "CommitStateUnknownException"), CommitStateUnknown),
    (429, error_document(429), CatalogBusy),
    (200, b"", CommitStateUnknown),
    (200, b'{"metadata": {}, "metadata-location": "x"}', CommitStateUnknown),
]


def test_a_commit_is_sent_once_and_judged_by_its_answer(server: ScriptedRest) -> None:
    """Redirects lead to the same address, where a GET would answer with the table."""
    catalog = server.open()
    redirect = {"Location": f"{server.url}/v1/namespaces/ns/tables/t"}
    for status, body, expected in ANSWERS:
        for acts in (False, True):
            base = catalog.load(NAME)
            server.requests.clear()
            server.scripts.append(CommitScript(acts, status, body, redirect))
            with pytest.raises(MaintenanceError) as raised:
                catalog.commit(base, [], UPDATES)
            assert type(raised.value) is expected, (status, body)
            assert server.requests == ["POST tables/t"], status


def test_a_refusal_is_told_in_the_catalogs_words(server: ScriptedRest) -> None:
    script = CommitScript(acts=False, status=403, body=error_document(403, "ForbiddenException", "not you,\n not now"))
    with pytest.raises(CommitRefused) as raised:
        commit(server, script)
    assert str(raised.value) == "ns.t: catalog scripted answered HTTP 403 (not you, not now)"


def test_after_signing_in_again_the_second_answer_counts_and_no_answer_is_unknown(
    server: ScriptedRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"credential": "id:secret-of-ours", "oauth2-server-uri": f"{server.url}/v1/oauth/tokens"}
    expired = CommitScript(acts=False, status=419, body=error_document(419))
    server.scripts.append(expired)
    assert commit(server, CommitScript(), **login).metadata.properties["ours"] == "yes"
    assert server.requests.count("POST tables/t") == 2

    def unreachable(self: Any) -> None:
        raise requests.ConnectTimeout("the token server is down")

    monkeypatch.setattr(BoundedRestCatalog, "_refresh_token", unreachable)
    # The first one may have been carried out, whatever became of the second.
    with pytest.raises(CommitStateUnknown):
        commit(server, expired, **login)


def test_nothing_below_repeats_what_was_sent(server: ScriptedRest) -> None:
    """urllib3 would repeat a POST after an error of TLS, which may come when the request was carried out already."""
    signed = {"rest.sigv4-enabled": "true", "client.access-key-id": "a", "client.secret-access-key": "bbbbb"}
    for more in ({}, {**signed, "client.region": "us-east-1", "rest.sigv4.max-retries": "5"}):
        catalog = BoundedRestCatalog("scripted", lambda defaults, overrides: {}, {"uri": server.url, **more})
        adapter = catalog._session.get_adapter(f"{server.url}/v1/namespaces")
        assert isinstance(adapter, HTTPAdapter)
        for error in (
            urllib3.exceptions.SSLError("decryption failed"),
            urllib3.exceptions.ProtocolError("cut off"),
            urllib3.exceptions.ReadTimeoutError(None, "/", "late"),  # type: ignore[arg-type]
        ):
            with pytest.raises(urllib3.exceptions.HTTPError):
                adapter.max_retries.increment("POST", "/", error=error)
        assert not adapter.max_retries.is_retry("POST", 503, has_retry_after=True)


def test_what_was_never_sent_is_known_to_have_failed(server: ScriptedRest) -> None:
    catalog = server.open()
    base = catalog.load(NAME)
    with scripted_rest(server.inner) as gone:
        other = gone.open()
    with pytest.raises(StorageError, match="nothing answers") as raised:
        other.commit(base, [], UPDATES)
    assert type(raised.value) is StorageError


def test_no_cache_on_the_way_answers_for_the_catalog(server: ScriptedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, Any]] = []
    send = requests.Session.send

    def watched(self: Any, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        sent.append((request.method, request.headers.get("Cache-Control")))
        return send(self, request, **more)

    catalog = server.open()
    monkeypatch.setattr(requests.Session, "send", watched)
    catalog.commit(catalog.load(NAME), [], UPDATES)
    assert sent == [("GET", "no-cache"), ("POST", None)]


def test_what_cannot_be_signed_was_never_sent(server: ScriptedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that cannot be renewed any more."""
    catalog = server.open()
    base = catalog.load(NAME)

    def expired(*_: Any, **__: Any) -> Any:
        raise CredentialRetrievalError(provider="sso", error_msg="sign in again")

    monkeypatch.setattr(requests.Session, "send", expired)
    with pytest.raises(StorageError, match="sign in again"):
        catalog.load(NAME)
    with pytest.raises(StorageError, match="sign in again") as raised:
        catalog.commit(base, [], UPDATES)
    assert type(raised.value) is StorageError
