"""Servers and proxies on loopback that count, lose, or replace answers."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit

from local_stack.loopback_proxy import OF_ONE_CONNECTION, ProxyHandler, serving

# A proxy in front of an HTTP server that counts the requests on the wire, for which a store charges.


class WireRequest(NamedTuple):
    """A request on the wire."""

    kind: str
    """GET, HEAD, PUT, DELETE, LIST; CREATE, PART, COMPLETE and ABORT of a multipart upload; DELETE_MANY; POST."""
    path: str
    range: str | None
    """The header ``Range``."""
    stage: str
    """The value of :attr:`CountingProxy.stage` when the request arrived."""


@dataclass
class CountingProxy:
    """The address to use in place of the server's, and every answered request.

    A request that the server failed to answer, or whose client closed the connection, does not count: the client's
    library sends it again, and how often this happens depends on the load of the machine.
    """

    address: str
    requests: list[WireRequest] = field(default_factory=list)
    stage: str = ""

    def counts(self, stage: str | None = None) -> Counter[str]:
        """The number of requests of each kind, in a stage or in all stages."""
        return Counter(request.kind for request in self.requests if stage in (None, request.stage))


@contextmanager
def counting_proxy(server: str) -> Iterator[CountingProxy]:
    """Forward to ``server`` (``http://host:port``); signatures are valid, because the client's Host is passed on."""
    proxy = CountingProxy("")

    class Handler(Forwarder):
        upstream = urlsplit(server).netloc
        counted = proxy

    with serving(Handler) as proxy.address:
        yield proxy


class Forwarder(ProxyHandler):
    """Forwards every request unchanged, and counts it."""

    counted: CountingProxy
    now: WireRequest | None = None
    """The request that is being forwarded."""
    _swallows = False

    def serve(self) -> None:
        self.forward(self.body())

    def forward(self, body: bytes) -> None:
        """Record the request and send it to the server, with the ``body`` that was read from the client."""
        self.now = request = self.count()
        try:
            self.send_on_as_it_came(body)
        except (OSError, HTTPException):
            self.counted.requests.remove(request)
            raise

    def answer(self, status: int, headers: Iterable[tuple[str, str]], body: bytes, length: str | None) -> None:
        if self._swallows:
            return
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR and self.now is not None:
            self.counted.requests.remove(self.now)
        super().answer(status, headers, body, length)

    def count(self) -> WireRequest:
        """Record the request."""
        request = WireRequest(_kind(self.command, self.path), self.path, self.headers.get("Range"), self.counted.stage)
        self.counted.requests.append(request)
        return request

    def lose_the_answer(self, body: bytes) -> None:
        """Send the request to the server; the client gets no answer."""
        self._swallows = True
        self.send_on_as_it_came(body)
        self._swallows = False

    def send_on_as_it_came(self, body: bytes) -> None:
        """Send the request to the server, with the ``body`` that was read from the client."""
        self.send_on(body, [item for item in self.headers.items() if item[0].lower() not in OF_ONE_CONNECTION])


def _kind(method: str, path: str) -> str:
    query = parse_qs(urlsplit(path).query, keep_blank_values=True)
    if method == "GET" and ("list-type" in query or "prefix" in query):
        return "LIST"
    if "uploadId" in query:
        return {"PUT": "PART", "POST": "COMPLETE", "DELETE": "ABORT"}.get(method, method)
    if method == "POST" and "uploads" in query:
        return "CREATE"
    return "DELETE_MANY" if method == "POST" and "delete" in query else method


# A proxy in front of a store that fails while a client works: keys expire, answers are lost.

_EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"

Moment: TypeAlias = Callable[[int, WireRequest], bool]
"""Whether the fault begins with this request; requests are counted from 0."""


class Fault(Enum):
    """How the store fails."""

    EXPIRED = "every request is refused from here on, for the keys have expired"
    LOST = "the store did what was asked, and the connection broke before its answer came"
    LATE_503 = "the store did what was asked, and a proxy answered 503"


@dataclass
class FailingStore:
    """The address to use in place of the server's, and the request that the fault hit."""

    proxy: CountingProxy
    hit: WireRequest | None = None
    """The request with which the fault began."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def failing_store(server: str, fault: Fault, moment: Moment) -> Iterator[FailingStore]:
    """Forward to ``server`` (``http://host:port``) except for one request, or for all requests from one on."""
    store = FailingStore(CountingProxy(""))

    class Handler(_FailingForwarder):
        upstream = urlsplit(server).netloc
        counted = store.proxy
        failing = store
        does_wrong = fault
        begins = staticmethod(moment)

    with serving(Handler) as store.proxy.address:
        yield store


class _FailingForwarder(Forwarder):
    failing: FailingStore
    does_wrong: Fault
    begins: Moment

    def serve(self) -> None:
        body = self.body()
        if not self._is_hit():
            self.send_on_as_it_came(body)
        elif self.does_wrong is Fault.EXPIRED:
            self.answer(403, [("Content-Type", "application/xml")], _EXPIRED, str(len(_EXPIRED)))
        else:
            self.lose_the_answer(body)
            if self.does_wrong is Fault.LATE_503:
                self.answer(503, [], b"", "0")
            else:
                self.close_connection = True

    def _is_hit(self) -> bool:
        """Count this request and return whether it fails."""
        with self.failing.lock:
            request = self.count()
            if self.failing.hit is not None:
                return self.does_wrong is Fault.EXPIRED
            if self.begins(len(self.counted.requests) - 1, request):
                self.failing.hit = request
            return self.failing.hit is not None


# A proxy that sometimes delays a request, cuts its answer, or sends it twice.


@dataclass
class Troubles:
    """How often a server's answers go wrong; the shares may be changed at any time."""

    chance: random.Random
    delayed: float = 0.0
    """The share of requests that are forwarded up to 0.3 s late."""
    cut: float = 0.0
    """The share of requests that the server serves, but whose connection breaks before the answer."""
    doubled: float = 0.0
    """The share of requests that reach the server twice; the client gets the second answer."""
    counts: Counter[str] = field(default_factory=Counter)
    """The troubles so far, by kind."""

    def draw(self) -> str:
        """The trouble of the next request: the name of a share, or an empty text."""
        drawn = self.chance.random()
        for kind in ("delayed", "cut", "doubled"):
            drawn -= getattr(self, kind)
            if drawn < 0:
                self.counts[kind] += 1
                return kind
        return ""


@contextmanager
def troubled_proxy(server: str, troubles: Troubles) -> Iterator[str]:
    """Forward to ``server`` (``http://host:port``); a request that cannot be forwarded breaks the connection."""

    class Handler(_TroubledForwarder):
        upstream = urlsplit(server).netloc
        counted = CountingProxy("")
        troubled = troubles

    with serving(Handler) as address:
        yield address


class _TroubledForwarder(Forwarder):
    troubled: Troubles

    def serve(self) -> None:
        body, trouble = self.body(), self.troubled.draw()
        if trouble == "delayed":
            time.sleep(self.troubled.chance.uniform(0, 0.3))
        if trouble in ("cut", "doubled"):
            self.lose_the_answer(body)
        if trouble == "cut":
            self.close_connection = True
        else:
            self.send_on_as_it_came(body)


# A proxy that loses or replaces answers after the server has acted on the request.


@dataclass
class FaultyProxy:
    """While ``fault`` is set, requests arrive at the server, but its answers do not come back."""

    url: str = ""
    fault: bytes | None = None
    """These bytes replace the answer, then the connection is closed; empty bytes only close it."""
    faults_left: int | None = None
    """How many answers get lost; ``None`` for all."""
    clients: set[socket.socket] = field(default_factory=set)


@contextmanager
def faulty_proxy(server: str) -> Iterator[FaultyProxy]:
    """Forward to ``server`` (``http://host:port``); at the end, close all connections."""
    proxy = FaultyProxy()

    class Handler(_FaultyForwarder):
        upstream = urlsplit(server).netloc
        counted = CountingProxy("")
        faulty = proxy

    with serving(Handler) as proxy.url:
        yield proxy
    for client in proxy.clients:
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


class _FaultyForwarder(Forwarder):
    faulty: FaultyProxy

    def setup(self) -> None:
        super().setup()
        self.faulty.clients.add(self.connection)

    def answer(self, *given: Any) -> None:
        proxy = self.faulty
        if proxy.fault is None or proxy.faults_left == 0:
            super().answer(*given)
            return
        if proxy.faults_left is not None:
            proxy.faults_left -= 1
        self.wfile.write(proxy.fault)
        self.close_connection = True


@contextmanager
def closed_port() -> Iterator[str]:
    """An address that refuses connections, reserved while the context lasts."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound, but not listening
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}"


# A server on 127.0.0.1 that runs during a block.


class _Server(HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that closes the connection once it has read enough."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _ThreadingServer(ThreadingMixIn, _Server):
    daemon_threads = True


@contextmanager
def served_by(handler: type[BaseHTTPRequestHandler], *, one_by_one: bool = False) -> Iterator[str]:
    """The address of a server whose requests a handler answers, each in a new thread, or one after another."""
    handler.disable_nagle_algorithm = True  # otherwise each answer waits 40 ms between its head and its body
    server = (_Server if one_by_one else _ThreadingServer)(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


# Operations that a client of boto3 sends.


@contextmanager
def requests_of(client: Any) -> Iterator[list[str]]:
    """The operations that a client calls during the block."""
    seen: list[str] = []
    event = f"before-call.{client.meta.service_model.service_id.hyphenize()}"

    def note(model: Any, **_: Any) -> None:
        seen.append(model.name)

    client.meta.events.register(event, note)
    try:
        yield seen
    finally:
        client.meta.events.unregister(event, note)
