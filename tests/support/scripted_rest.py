"""A REST catalog on 127.0.0.1 over another catalog, with scripted commits and answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.load import open_catalog
from icekeeper.errors import CommitConflict, PolicyError
from icekeeper.model import TableName
from support.proxies import served_by

Rest = TypeVar("Rest", bound="ScriptedRest")


def error_document(status: int, kind: str = "SomeException", message: str = "no") -> dict[str, Any]:
    """Iceberg's error document (REST catalog specification, ``ErrorModel``)."""
    return {"error": {"message": message, "type": kind, "code": status}}


@dataclass(frozen=True, slots=True)
class CommitScript:
    """The server's action and answer for a commit; without a status, the answer is correct."""

    acts: bool = True
    status: int | None = None
    body: Any = b""
    """Bytes, or a value to encode as JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class ScriptedRest:
    """Serves one request at a time; commits beyond the scripts are committed and answered correctly."""

    inner: Catalog
    url: str = ""
    scripts: list[CommitScript] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """``GET tables/t`` and ``POST tables/t`` in the order of arrival."""
    seen_headers: list[Mapping[str, str]] = field(default_factory=list)
    """The headers of every request, with names in lower case."""

    def open(self, name: str = "scripted", **properties: str) -> Catalog:
        """Icekeeper's adapter, connected to this server."""
        return open_catalog(name, {"type": "rest", "uri": self.url, "warehouse": self.inner.id.warehouse, **properties})

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body."""
        if path.startswith("/v1/config"):
            return 200, {}, b'{"defaults": {}, "overrides": {}}'
        if path.startswith("/v1/oauth"):
            return 200, {}, b'{"access_token": "t", "token_type": "bearer", "expires_in": 3600}'
        namespace, _, name = path.removeprefix("/v1/namespaces/").partition("/tables/")
        self.requests.append(f"{method} tables/{name}")
        table = TableName((namespace,), name)
        try:
            if method == "GET":
                return 200, {}, _as_table(self.inner.load(table))
            return self._commit(table, json.loads(body))
        except PolicyError as error:
            return 404, {}, json.dumps(error_document(404, "NoSuchTableException", str(error))).encode()

    def _commit(self, table: TableName, given: Mapping[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
        script = self.scripts.pop(0) if self.scripts else CommitScript()
        if script.acts:
            requirements: Sequence[Mapping[str, Any]] = given["requirements"]
            try:
                self.inner.commit(self.inner.load(table), requirements, given["updates"])
            except CommitConflict as error:
                return 409, {}, json.dumps(error_document(409, "CommitFailedException", str(error))).encode()
        if script.status is None:
            return 200, {}, _as_table(self.inner.load(table))
        body = script.body if isinstance(script.body, bytes) else json.dumps(script.body).encode()
        return script.status, script.headers, body


@dataclass
class HostileRest(ScriptedRest):
    """A server that sends any configuration for itself and for tables, and redirects requests."""

    defaults: Any = field(default_factory=dict)
    overrides: Any = field(default_factory=dict)
    endpoints: Any = None
    config: Any = field(default_factory=dict)
    credentials: Any = field(default_factory=list)
    leads: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Status and address of the redirect by the start of a request's path."""
    paths: list[str] = field(default_factory=list)

    def send_everywhere(self, settings: Mapping[str, Any]) -> None:
        """Send these settings in every place where a server may send settings."""
        self.defaults = self.overrides = self.config = dict(settings)
        self.credentials = [{"prefix": "", "config": dict(settings)}]

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        self.paths.append(f"{method} {path}")
        for start, (status, address) in self.leads.items():
            if path.startswith(start):
                return status, {"Location": address, "Set-Cookie": "of=theirs"}, b""
        if path.startswith("/v1/config"):
            reported = {"defaults": self.defaults, "overrides": self.overrides, "endpoints": self.endpoints}
            return 200, {"Set-Cookie": "of=theirs; Path=/"}, json.dumps(reported).encode()
        if method == "GET" and path.partition("?")[0] == "/v1/namespaces":
            return 200, {}, json.dumps({"namespaces": [] if "parent=" in path else [["ns"]]}).encode()
        if method == "GET" and path.partition("?")[0] == "/v1/namespaces/ns/tables":
            names = [{"namespace": list(table.namespace), "name": table.name} for table in self.inner.list_tables()]
            return 200, {}, json.dumps({"identifiers": names}).encode()
        status, headers, text = super().answer(method, path, body)
        if method == "GET" and status == 200 and "/tables/" in path:
            more = {"config": self.config, "storage-credentials": self.credentials}
            text = json.dumps({**json.loads(text), **more}).encode()
        return status, headers, text


Answer: TypeAlias = tuple[int | None, Any]
"""A status and a body, bytes or a value to encode as JSON.  Without a status, the answer is late."""


@dataclass
class AskedRest(ScriptedRest):
    """A server whose answers to certain queries are replaced.

    A query is ``namespaces``, ``parent=a.b``, ``a.b/tables`` (lists tables) or ``a.b/tables/t``.
    """

    scripted: dict[str, list[Answer]] = field(default_factory=dict)
    """The next answers to a query; the last answer repeats."""
    late_s: float = 0.3
    namespaces: dict[str, list[str]] = field(default_factory=dict)
    """The names of the server's tables by namespace; if empty, those of the inner catalog."""
    is_nested: bool = True
    """If false, every query for the children of a namespace is a bad request."""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        question = unquote(path).removeprefix("/v1/namespaces").replace("\x1f", ".")
        if question == path or method != "GET":
            return super().answer(method, path, body)
        question = question.lstrip("/?") or "namespaces"
        if question in self.scripted:
            left = self.scripted[question]
            status, document = left.pop(0) if len(left) > 1 else left[0]
        elif question.partition("/tables/")[2]:
            return super().answer(method, path, body)
        else:
            status, document = self._known(question)
        if status is None:
            time.sleep(self.late_s)
            status = 200
        return status, {}, document if isinstance(document, bytes) else json.dumps(document).encode()

    def _known(self, question: str) -> Answer:
        known = self.namespaces or {".".join(table.namespace): [table.name] for table in self.inner.list_tables()}
        if question.endswith("/tables"):
            namespace = question.removesuffix("/tables")
            return 200, listed_tables(namespace, *known.get(namespace, ()))
        if question != "namespaces" and not self.is_nested:
            return 400, error_document(400, "BadRequestException")
        parent = question.removeprefix("parent=") if question != "namespaces" else ""
        return 200, listed_namespaces(*(name for name in known if name.rpartition(".")[0] == parent))


def listed_tables(namespace: str, *names: str) -> dict[str, Any]:
    """``ListTablesResponse``"""
    return {"identifiers": [{"namespace": namespace.split("."), "name": name} for name in names]}


def listed_namespaces(*names: str) -> dict[str, Any]:
    """``ListNamespacesResponse``"""
    return {"namespaces": [name.split(".") for name in names]}


def _as_table(table: LoadedTable) -> bytes:
    answer = {"metadata-location": table.metadata_location, "metadata": dict(table.metadata.document), "config": {}}
    return json.dumps(answer).encode()


@contextmanager
def scripted_rest(inner: Catalog) -> Iterator[ScriptedRest]:
    with _served(ScriptedRest(inner)) as catalog:
        yield catalog


@contextmanager
def asked_rest(inner: Catalog, **namespaces: list[str]) -> Iterator[AskedRest]:
    with _served(AskedRest(inner, namespaces=namespaces)) as catalog:
        yield catalog


@contextmanager
def hostile_rest(inner: Catalog) -> Iterator[HostileRest]:
    with _served(HostileRest(inner)) as catalog:
        yield catalog


@contextmanager
def _served(catalog: Rest) -> Iterator[Rest]:
    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            catalog.seen_headers.append({name.lower(): value for name, value in self.headers.items()})
            status, headers, answer = catalog.answer(self.command, self.path, body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = _handle  # noqa: N815 (http.server calls these names)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    # A late answer delays no other answer.
    with served_by(Handler, one_by_one=not isinstance(catalog, AskedRest)) as catalog.url:
        yield catalog
