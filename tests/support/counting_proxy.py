"""A proxy in front of an HTTP server that counts what really goes over the wire: what a store charges for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from local_stack.loopback_proxy import OF_ONE_CONNECTION, ProxyHandler, serving


class WireRequest(NamedTuple):
    """One request as it came."""

    kind: str
    """GET, HEAD, PUT, DELETE, LIST; CREATE, PART, COMPLETE and ABORT of a multipart upload; DELETE_MANY; POST."""
    path: str
    range: str | None
    """The header ``Range``."""
    stage: str
    """What :attr:`CountingProxy.stage` said when it came."""


@dataclass
class CountingProxy:
    """The address to use in place of the server's, and every request that came."""

    address: str
    requests: list[WireRequest] = field(default_factory=list)
    stage: str = ""

    def counts(self, stage: str | None = None) -> Counter[str]:
        """How many requests of each kind came, of one stage or of all."""
        return Counter(request.kind for request in self.requests if stage in (None, request.stage))


@contextmanager
def counting_proxy(server: str) -> Iterator[CountingProxy]:
    """Forwards to ``server`` (``http://host:port``); signatures stay valid, because the client's Host is passed on."""
    proxy = CountingProxy("")

    class Handler(Forwarder):
        upstream = urlsplit(server).netloc
        counted = proxy

    with serving(Handler) as proxy.address:
        yield proxy


class Forwarder(ProxyHandler):
    """Sends every request on as it came, and counts it."""

    counted: CountingProxy

    def serve(self) -> None:
        self.forward(self.body())

    def forward(self, body: bytes) -> None:
        """Record the request and send it to the server, with the ``body`` that was read from the client."""
        self.count()
        self.send_on_as_it_came(body)

    def count(self) -> WireRequest:
        """Record the request."""
        request = WireRequest(_kind(self.command, self.path), self.path, self.headers.get("Range"), self.counted.stage)
        self.counted.requests.append(request)
        return request

    def send_on_as_it_came(self, body: bytes) -> None:
        """Send the request to the server, with the ``body`` that was read from the client."""
        self.send_on(body, [one for one in self.headers.items() if one[0].lower() not in OF_ONE_CONNECTION])


def _kind(method: str, path: str) -> str:
    query = parse_qs(urlsplit(path).query, keep_blank_values=True)
    if method == "GET" and ("list-type" in query or "prefix" in query):
        return "LIST"
    if "uploadId" in query:
        return {"PUT": "PART", "POST": "COMPLETE", "DELETE": "ABORT"}.get(method, method)
    if method == "POST" and "uploads" in query:
        return "CREATE"
    return "DELETE_MANY" if method == "POST" and "delete" in query else method
