"""The REST adapter against servers with arbitrary answers."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import urllib3.exceptions
from botocore.exceptions import CredentialRetrievalError
from pyiceberg.catalog.sql import SqlCatalog
from requests.adapters import HTTPAdapter

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.load import open_catalog
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    MaintenanceError,
    MetadataUnreadable,
    PartlyListed,
    PolicyError,
    StorageError,
    TableNotFound,
)
from icekeeper.pipeline.deployment import parse_catalog_file
from icekeeper.pyiceberg_private.rest_session import BoundedRestCatalog
from icekeeper.text import masked
from support.maintained_table import NAME, new_table
from support.proxies import faulty_proxy
from support.scripted_rest import (
    Answer,
    CommitScript,
    ScriptedRest,
    asked_rest,
    error_document,
    listed_namespaces,
    scripted_rest,
)

# Commits: sent once, without following redirects, and judged by the answer.

UPDATES = [{"action": "set-properties", "updates": {"ours": "yes"}}]


def commit(server: ScriptedRest, script: CommitScript, **properties: str) -> LoadedTable:
    server.scripts.append(script)
    catalog = server.open(**properties)
    return catalog.commit(catalog.load(NAME), [], UPDATES)


# Answers and the errors they raise, whether or not the commit landed; ``unit/test_catalog_swaps`` has every answer.
ANSWERS: list[tuple[int, Any, type[MaintenanceError]]] = [
    *((status, b"", CommitStateUnknown) for status in (301, 302, 303, 307, 308, 200)),
    (500, error_document(500), CommitStateUnknown),
    (501, error_document(501, "NotImplementedException"), CommitRefused),
    (404, b"<html>not here</html>", CommitStateUnknown),
    (403, {"message": "Forbidden"}, CommitStateUnknown),
    (404, error_document(404, "NoSuchTableException"), CommitRefused),
    (409, error_document(409, "CommitFailedException"), CommitConflict),
    (409, error_document(409, "CommitStateUnknownException"), CommitStateUnknown),
    (429, error_document(429), CatalogBusy),
    (200, b'{"metadata": {}, "metadata-location": "x"}', CommitStateUnknown),
]


def test_a_commit_is_sent_once_and_judged_by_its_answer(server: ScriptedRest) -> None:
    """Redirects lead to the same address, where a GET would return the table."""
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


def test_a_refusal_quotes_the_catalogs_message(server: ScriptedRest) -> None:
    script = CommitScript(acts=False, status=403, body=error_document(403, "ForbiddenException", "not you,\n not now"))
    with pytest.raises(CommitRefused) as raised:
        commit(server, script)
    assert str(raised.value) == "ns.t: catalog scripted answered HTTP 403 (not you, not now)"


def test_the_answer_after_a_new_login_counts_and_a_failed_login_leaves_the_commit_unknown(
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
    # The first request may have landed.
    with pytest.raises(CommitStateUnknown):
        commit(server, expired, **login)


def test_urllib3_does_not_repeat_a_commit(server: ScriptedRest) -> None:
    """By default it repeats a POST after a TLS error, which may follow a commit that landed."""
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


def test_a_read_on_a_broken_connection_is_sent_again_but_not_a_commit(server: ScriptedRest) -> None:
    """A server or a load balancer may close an idle connection at any moment."""
    with faulty_proxy(server.url) as proxy:
        catalog = server.open(uri=proxy.url)
        server.requests.clear()
        proxy.fault, proxy.faults_left = b"", 1
        base = catalog.load(NAME)
        assert server.requests == ["GET tables/t"] * 2
        proxy.fault, proxy.faults_left = b"", 1
        with pytest.raises(CommitStateUnknown):
            catalog.commit(base, [], UPDATES)
    assert server.requests == ["GET tables/t"] * 2 + ["POST tables/t"]


def test_a_commit_to_a_closed_port_has_failed(server: ScriptedRest) -> None:
    catalog = server.open()
    base = catalog.load(NAME)
    with scripted_rest(server.inner) as gone:
        other = gone.open()
    with pytest.raises(StorageError, match="nothing answers") as raised:
        other.commit(base, [], UPDATES)
    assert type(raised.value) is StorageError


def test_reads_bypass_http_caches(server: ScriptedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, Any]] = []
    send = requests.Session.send

    def watched(self: Any, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        sent.append((request.method, request.headers.get("Cache-Control")))
        return send(self, request, **more)

    catalog = server.open()
    monkeypatch.setattr(requests.Session, "send", watched)
    catalog.commit(catalog.load(NAME), [], UPDATES)
    assert sent == [("GET", "no-cache"), ("POST", None)]


def test_a_request_that_cannot_be_signed_is_never_sent(server: ScriptedRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, when the credentials can no longer be renewed."""
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


# Answers with status 200 that violate the specification.


class _Foreign(ScriptedRest):
    """Returns ``status`` and ``body`` for one path."""

    path = "nothing"
    status = 200
    body = b""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        if path.startswith("/v1/namespaces") and path.endswith(self.path):
            return self.status, {}, self.body
        if path.startswith("/v1/namespaces") and path.partition("?")[0] == "/v1/namespaces":
            return 200, {}, b'{"namespaces": [["ns"]]}'
        return super().answer(method, path, body)


@pytest.fixture
def foreign(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Foreign]:
    monkeypatch.setattr("support.scripted_rest.ScriptedRest", _Foreign)
    with scripted_rest(new_table(local_catalog, tmp_path).catalog) as server:
        assert isinstance(server, _Foreign)
        yield server


def test_a_malformed_listing_is_an_error(foreign: _Foreign) -> None:
    catalog = foreign.open()
    for foreign.path in ("/namespaces", "/tables"):
        for foreign.body in (b"<html>sign in</html>", b"[]", b'{"hello": 1}', b"null", b""):
            with pytest.raises(StorageError) as caught:
                list(catalog.list_tables())
            address = f"the server at {foreign.url} is not an Iceberg REST catalog"
            assert str(caught.value) == f"{address}; look for a proxy that answers in its place"


NO_SUCH = error_document(404, "NoSuchTabularError")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>404 page not found</html>",
        b'{"message": "no route"}',
        json.dumps(NO_SUCH).encode()[:-3],
        json.dumps(error_document(403, "ForbiddenException")).encode(),
        json.dumps({"error": {"message": "no", "type": "NoSuchTableException"}}).encode(),
    ],
)
def test_only_an_iceberg_error_document_shows_that_a_table_is_missing(foreign: _Foreign, body: bytes) -> None:
    """Its error type does not matter; any other 404 may come from a proxy."""
    catalog = foreign.open()
    foreign.path, foreign.status, foreign.body = "/tables/t", 404, body
    with pytest.raises(StorageError, match="it is unknown whether the table exists"):
        catalog.load(NAME)
    foreign.body = json.dumps(NO_SUCH).encode()
    with pytest.raises(TableNotFound, match=r"there is no table ns\.t in catalog scripted"):
        catalog.load(NAME)


GONE = (404, error_document(404, "NoSuchNamespaceException"))
WITHOUT_B, ROOT = (200, listed_namespaces("a")), (200, listed_namespaces("a", "b"))
ALL = ["a.sub.t", "a.t", "b.t"]
B = (("b",),)
FAILED = (500, error_document(500))


@pytest.mark.parametrize(
    ("script", "listed", "hidden"),
    [
        ({}, ALL, None),
        # Dropped during the listing: the catalog reports it, and so does a later listing.
        ({"b/tables": [GONE], "namespaces": [ROOT, WITHOUT_B]}, ["a.sub.t", "a.t"], None),
        (
            {"a.sub/tables": [GONE], "parent=a": [(200, listed_namespaces("a.sub")), (200, listed_namespaces())]},
            ["a.t", "b.t"],
            None,
        ),
        ({"parent=b": [GONE], "namespaces": [ROOT, WITHOUT_B]}, ALL, None),
        # Hidden, or unknown whether it is dropped.
        ({"b/tables": [GONE]}, ["a.sub.t", "a.t"], B),
        ({"b/tables": [GONE], "namespaces": [ROOT, (503, b"")]}, ["a.sub.t", "a.t"], B),
        ({"b/tables": [(404, b"<html>")], "namespaces": [ROOT, WITHOUT_B]}, ["a.sub.t", "a.t"], B),
        ({"b/tables": [(404, b"")], "namespaces": [ROOT, WITHOUT_B]}, ["a.sub.t", "a.t"], B),
        # The server fails for the first namespace; there may be namespaces below it.
        ({"a/tables": [FAILED]}, ["a.sub.t", "b.t"], (("a",),)),
        ({"a/tables": [FAILED], "parent=a": [FAILED]}, ["b.t"], ()),
        ({"parent=b": [GONE]}, ALL, ()),
        ({"parent=b": [(404, b"<html>")], "namespaces": [ROOT, WITHOUT_B]}, ALL, ()),
        ({"parent=b": [(400, error_document(400))]}, ALL, ()),
        ({"parent=a": [(400, b"")]}, ["a.t", "b.t"], ()),
    ],
)
def test_a_listing_skips_a_namespace_only_with_proof_that_it_is_dropped(
    local_catalog: SqlCatalog,
    tmp_path: Path,
    script: dict[str, list[Answer]],
    listed: list[str],
    hidden: tuple[tuple[str, ...], ...] | None,
) -> None:
    """Also a namespace whose children are denied (rule: partial-listings-delete-nothing).

    ``hidden``: the namespaces that were not listed, empty if there may be others; ``None``: the listing is whole.
    """
    inner, namespaces = new_table(local_catalog, tmp_path).catalog, {"a": ["t"], "a.sub": ["t"], "b": ["t"]}
    partly = None
    with asked_rest(inner, **namespaces) as server:
        catalog, found = server.open(), list[str]()
        server.scripted = {request: [*answers] for request, answers in script.items()}
        try:
            found.extend(map(str, catalog.list_tables()))
        except PartlyListed as error:
            partly = error
        server.scripted, server.is_nested = {}, False
        assert sorted(map(str, catalog.list_tables())) == ["a.t", "b.t"]  # the server has no nested namespaces
    assert (sorted(found), partly and partly.hidden) == (listed, hidden)
    assert partly is None or "the tables of 1 namespace(s) cannot be listed, for example " in str(partly)


@pytest.mark.parametrize("more", [{"storage-credentials": 1}, {"storage-credentials": [{"hello": 1}]}, {"config": 7}])
def test_malformed_credentials_are_reported(foreign: _Foreign, more: Mapping[str, Any]) -> None:
    catalog = foreign.open()
    loaded = catalog.load(NAME)
    answer = {"metadata-location": loaded.metadata_location, "metadata": dict(loaded.metadata.document), **more}
    foreign.path, foreign.body = "/tables/t", json.dumps(answer).encode()
    with pytest.raises(MetadataUnreadable, match="answered with credentials or configuration that cannot be parsed"):
        catalog.load(NAME)


def test_malformed_table_metadata_is_refused_by_the_name_of_its_file(foreign: _Foreign) -> None:
    catalog = foreign.open()
    loaded = catalog.load(NAME)
    document = {**loaded.metadata.document, "snapshots": [{"snapshot-id": "1"}]}
    answer = {"metadata-location": loaded.metadata_location, "metadata": document}
    foreign.path, foreign.body = "/tables/t", json.dumps(answer).encode()
    with pytest.raises(MetadataUnreadable) as caught:
        catalog.load(NAME)
    message = str(caught.value)
    assert (
        f"metadata file {loaded.metadata_location}, which is not valid Iceberg table metadata: snapshots[0].snapshot-id"
        in message
    )


# No error reveals a secret: failing catalogs, and servers and files that repeat secrets.

SECRETS = {
    "header.X-Api-Key": "key/of-the-header",
    "header.Authorization": "Bearer of.some.token",
    "adls.account-key": "QWNjb3VudEtleQ==",
    "adls.connection-string": "AccountName=lake;AccountKey=cXVpdGUgb3RoZXI=",
    "the-next-thing-of-pyiceberg": "something-that-signs-in",
}
REPEATED = (*SECRETS.values(), "of.some.token", "cXVpdGUgb3RoZXI=")
PARTS = (*REPEATED, "pa55code", "word-of-the-address")


def hides_secrets(error: BaseException) -> bool:
    """Neither the message nor the traceback in the log contains a secret."""
    logged = masked("".join(traceback.format_exception(error)))
    return not [part for part in PARTS for text in (str(error), repr(error), logged) if part in text]


@pytest.mark.parametrize("status", [400, 403, 500])
def test_an_error_of_a_server_that_repeats_the_request_hides_secrets(server: ScriptedRest, status: int) -> None:
    catalog = server.open(**SECRETS)
    base = catalog.load(NAME)
    assert "io_properties" not in repr(base)
    # The message is cut after about 200 characters; a secret at the cut must not leave a part.
    for message in (
        " ".join(REPEATED),
        *("x" * length + " " + SECRETS["header.X-Api-Key"] for length in (180, 190, 195)),
    ):
        for body in (error_document(status, message=message), message.encode()):
            server.scripts.append(CommitScript(acts=False, status=status, body=body))
            with pytest.raises(MaintenanceError) as raised:
                catalog.commit(base, [], [{"action": "set-properties", "updates": {"a": "b"}}])
            assert hides_secrets(raised.value)
            assert "key/" not in str(raised.value)


@pytest.mark.parametrize("kind", ["rest", "sql"])
@pytest.mark.parametrize(
    "address", ["u:pa55code/word-of-the-address@127.0.0.1:9/x", "u:pa55code/word-of-the-address@h:9x/"]
)
def test_a_password_with_a_slash_in_an_address_is_hidden(kind: str, address: str) -> None:
    uri = f"{'http' if kind == 'rest' else 'postgresql+psycopg2'}://{address}"
    with pytest.raises((PolicyError, StorageError)) as raised:
        open_catalog("closed", {"type": kind, "uri": uri, "warehouse": "file:///tmp/none", **SECRETS})
    assert hides_secrets(raised.value)


@pytest.mark.parametrize("line", ["uri: [{}", "{{a: {}}}", "uri: a\n    uri: {}", "\turi: {}"])
def test_a_catalog_file_that_cannot_be_parsed_is_not_quoted(line: str) -> None:
    """Its secrets are not known yet, so the error names only the line."""
    text = "catalog:\n  lake:\n    type: rest\n    " + line.format("something-that-signs-in") + "\n"
    with pytest.raises(PolicyError, match=r"^s3://c/f\.yaml is not a catalog file: .* in line \d$") as raised:
        parse_catalog_file(text, "s3://c/f.yaml")
    assert "signs" not in "".join(traceback.format_exception(raised.value))
