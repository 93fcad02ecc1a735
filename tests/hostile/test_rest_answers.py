"""Endless or malformed answers of a REST catalog are named errors (rule: bound-foreign-bytes)."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import CommitStateUnknown, MetadataUnreadable, StorageError
from icekeeper.machine.foreign_bytes import MAX_UNPACKED_MB
from support.maintained_table import NAME, new_table
from support.scripted_rest import HostileRest, hostile_rest

SIGNED = {
    "rest.sigv4-enabled": "true",
    "client.region": "eu-west-1",
    "client.access-key-id": "OURS",
    "client.secret-access-key": "our-own-secret-key",
}


@pytest.fixture
def server(local_catalog: SqlCatalog, tmp_path: Path) -> Iterator[HostileRest]:
    with hostile_rest(new_table(local_catalog, tmp_path).catalog) as server:
        yield server


class Answering:
    """Answers requests below ``/v1/namespaces`` by their path and query."""

    def __init__(self, server: HostileRest, answer: Callable[[str, Mapping[str, str]], Any]) -> None:
        self.asked, self._told, self._else = 0, answer, server.answer
        server.answer = self  # type: ignore[method-assign]  # replaces the method

    def __call__(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        address = urlsplit(path)
        if not address.path.startswith("/v1/namespaces"):
            return self._else(method, path, body)
        self.asked += 1
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        result = self._told(address.path, query)
        return 200, {}, result if isinstance(result, bytes) else json.dumps(result).encode()


@pytest.mark.parametrize("listing", ["namespaces", "tables"])
@pytest.mark.parametrize("token", [lambda number: "again", lambda number: "ab"[number % 2], str])
def test_a_listing_with_endless_pages_is_an_error(
    server: HostileRest, listing: str, token: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icekeeper.pyiceberg_private.rest_session._MOST_PAGES", 20)
    count = itertools.count()

    def respond(path: str, query: Mapping[str, str]) -> Any:
        more = {"next-page-token": token(next(count))} if path.endswith(listing) else {}
        return {"namespaces": [["ns"]], "identifiers": [], **more}

    server.open()
    answering = Answering(server, respond)
    with pytest.raises(StorageError, match=r"cannot be used: a listing repeats its pages and never ends"):
        list(server.open().list_tables())
    assert answering.asked < 30


def test_all_pages_of_a_finite_listing_are_read(server: HostileRest) -> None:
    def respond(path: str, query: Mapping[str, str]) -> Any:
        page = int(query.get("pageToken", 0))
        more = {"next-page-token": str(page + 1)} if page < 3 else {}
        if path.endswith("/namespaces"):
            return {"namespaces": [] if query.get("parent") else [[f"n{page}"]], **more}
        namespace = [path.split("/")[3]]
        return {"identifiers": [{"namespace": namespace, "name": f"t{page}"}, {"namespace": [], "name": "x"}], **more}

    catalog = server.open()
    Answering(server, respond)
    for _ in range(2):
        tables = [str(table) for table in catalog.list_tables()]
        assert tables == [f"n{n}.t{t}" for n in range(4) for t in range(4)]


@pytest.mark.parametrize("children", [1, 2])
def test_endless_namespaces_are_an_error(server: HostileRest, children: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.catalogs.rest._MOST_NAMESPACES", 30)
    monkeypatch.setattr("icekeeper.catalogs.rest._MOST_LEVELS", 10)

    def respond(path: str, query: Mapping[str, str]) -> Any:
        parent = query["parent"].split("\x1f") if "parent" in query else []
        return {"namespaces": [[*parent, f"n{n}"] for n in range(children)], "identifiers": []}

    answering = Answering(server, respond)
    with pytest.raises(StorageError, match="more than 30 namespaces, or namespaces with more than 10 levels"):
        list(server.open().list_tables())
    assert answering.asked < 80


def test_a_slow_answer_is_an_error(server: HostileRest, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = server.open()
    monkeypatch.setattr("icekeeper.pyiceberg_private.rest_session.ANSWER_TIMEOUT_S", -1.0)
    with pytest.raises(StorageError, match="cannot be used: an answer took longer than"):
        catalog.load(NAME)
    with pytest.raises(StorageError, match="cannot be used: an answer took longer than"):
        server.open(**SIGNED)


def test_an_answer_that_unpacks_to_more_than_the_limit_is_not_read(
    server: HostileRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = server.open()
    monkeypatch.setenv(MAX_UNPACKED_MB, "1")
    packed = gzip.compress(bytes(64 << 20))
    server.answer = lambda method, path, body: (200, {"Content-Encoding": "gzip"}, packed)  # type: ignore[method-assign]
    tracemalloc.start()
    with pytest.raises(
        StorageError, match=f"cannot be used: an answer unpacks to more than .* 1 MB, .* set {MAX_UNPACKED_MB}"
    ):
        catalog.load(NAME)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


def test_an_answer_with_too_many_values_is_not_parsed(server: HostileRest, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = server.open()
    base = catalog.load(NAME)
    monkeypatch.setenv(MAX_UNPACKED_MB, "16")
    many = b"[" + b"{}," * 4_000_000 + b"{}]"
    server.answer = lambda method, path, body: (200, {}, many)  # type: ignore[method-assign]
    with pytest.raises(MetadataUnreadable, match=f"^ns.t: the answer of catalog scripted .* set {MAX_UNPACKED_MB}"):
        catalog.load(NAME)
    with pytest.raises(CommitStateUnknown):
        catalog.commit(base, [], [{"action": "set-properties", "updates": {"a": "b"}}])


@pytest.mark.parametrize("path", ["/v1/config", "/v1/oauth/tokens", "/v1/namespaces"])
def test_pyiceberg_does_not_parse_an_answer_with_too_many_values(
    server: HostileRest, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg parses configurations, tokens and listings, and their errors, into objects."""
    monkeypatch.setenv(MAX_UNPACKED_MB, "16")
    honest = server.answer
    many = b'{"overrides": {"a": [' + b"{}," * 3_000_000 + b"{}]}}"

    def answer(method: str, at: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        return (200, {}, many) if at.startswith(path) else honest(method, at, body)

    server.answer = lambda method, path, body: answer(method, path, body)  # type: ignore[method-assign]
    login = {"credential": "id:secret", "oauth2-server-uri": f"{server.url}/v1/oauth/tokens"}

    def listed() -> list[object]:
        return list(server.open(**login).list_tables())

    with pytest.raises(StorageError, match=f"cannot be used: an answer holds more values .* set {MAX_UNPACKED_MB}"):
        listed()


@pytest.mark.parametrize("encoding", ["gzip, gzip", "identity, gzip", "zstd", "br", "deflate"])
def test_an_answer_in_an_encoding_that_was_not_requested_is_refused(server: HostileRest, encoding: str) -> None:
    """urllib3 unpacks five nested encodings, and older versions have no limit: 9 kB took 4 GB."""
    catalog, honest = server.open(), server.answer
    base = catalog.load(NAME)

    def answer(method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        status, _, text = honest(method, path, body)
        return status, {"Content-Encoding": encoding}, gzip.compress(gzip.compress(text))

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(StorageError, match=f"cannot be used: an answer has the encoding '{encoding}', which was not"):
        catalog.load(NAME)
    with pytest.raises(CommitStateUnknown):
        catalog.commit(base, [], [{"action": "set-properties", "updates": {"a": "b"}}])
    assert server.seen_headers[-1]["accept-encoding"] == "gzip"


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "identity", ""])
def test_a_gzip_answer_is_read(server: HostileRest, encoding: str) -> None:
    catalog, honest = server.open(), server.answer

    def answer(method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        status, _, text = honest(method, path, body)
        is_packed = encoding.lower() in ("gzip", "x-gzip")
        return status, {"Content-Encoding": encoding}, gzip.compress(text) if is_packed else text

    expected = catalog.load(NAME).metadata.document
    server.answer = answer  # type: ignore[method-assign]
    assert server.open().load(NAME).metadata.document == catalog.load(NAME).metadata.document == expected


@pytest.mark.parametrize(
    "packed",
    [b"no gzip", gzip.compress(b"{}" * 500)[:-9], gzip.compress(b"{}")[:15]],
    ids=["none", "cut at its end", "cut in its midst"],
)
def test_a_damaged_gzip_answer_is_a_named_error(server: HostileRest, packed: bytes) -> None:
    catalog = server.open()
    server.answer = lambda method, path, body: (200, {"Content-Encoding": "gzip"}, packed)  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="cannot be used: an answer is damaged: its gzip data"):
        catalog.load(NAME)


def test_a_pause_that_a_server_requests_is_capped(server: HostileRest, monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3 repeats PyIceberg's signed requests after ``Retry-After``."""
    pauses: list[float] = []
    here, sleep = threading.get_ident(), time.sleep

    def note(seconds: float) -> None:
        """Record pauses of this thread; leftover threads of other tests sleep as before."""
        pauses.append(seconds) if threading.get_ident() == here else sleep(seconds)

    monkeypatch.setattr("urllib3.util.retry.time.sleep", note)
    catalog = server.open(**SIGNED)
    server.answer = lambda method, path, body: (503, {"Retry-After": "99999999"}, b"")  # type: ignore[method-assign]
    with pytest.raises(StorageError, match=r"cannot be used|answered HTTP 503"):
        catalog.load(NAME)
    assert pauses == [20.0, 20.0]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"metadata": ' + b'{"a":' * 100_000,
        b'{"metadata": {}, "metadata-location": 7}',
        b"\xff\xfe{",
        b'{"metadata": {"format-version": 1e400}, "metadata-location": "x"}',
        b'{"metadata": {"format-version": ' + b"9" * 5000 + b'}, "metadata-location": "x"}',
    ],
    ids=["deep", "deep object", "number for a location", "no UTF-8", "infinite", "long number"],
)
def test_an_answer_that_is_not_a_table_is_a_named_error(server: HostileRest, body: bytes) -> None:
    catalog = server.open()
    Answering(server, lambda path, query: body)
    with pytest.raises(MetadataUnreadable, match=r"ns.t: catalog scripted (answered|did not answer)"):
        catalog.load(NAME)
    with pytest.raises(StorageError, match="is not an Iceberg REST catalog"):
        list(catalog.list_tables())
