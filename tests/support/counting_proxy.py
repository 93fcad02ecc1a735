"""A proxy in front of an HTTP server that counts what really goes over the wire: what a store charges for."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

__all__ = ["CountingProxy", "Forwarder", "QuietServer", "WireRequest", "counting_proxy"]

_NOT_FORWARDED = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "expect"})


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
    target = urlsplit(server).netloc
    proxy = CountingProxy("")

    class Handler(Forwarder):
        upstream = target
        counted = proxy

    with QuietServer(("127.0.0.1", 0), Handler) as httpd:
        proxy.address = f"http://127.0.0.1:{httpd.server_address[1]}"
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            httpd.shutdown()
            thread.join()


class QuietServer(ThreadingHTTPServer):
    """A server of many clients on loopback."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is no news."""


class Forwarder(BaseHTTPRequestHandler):
    """Sends every request on to ``upstream``, and counts it."""

    protocol_version = "HTTP/1.1"
    # Headers and body go out in one piece: else Nagle's algorithm holds the second one back for 40 ms.
    wbufsize = -1
    disable_nagle_algorithm = True
    upstream = ""
    counted: CountingProxy

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()  # the client waits a second for it
        return True

    def setup(self) -> None:
        super().setup()
        self._connection = http.client.HTTPConnection(self.upstream, timeout=60)

    def finish(self) -> None:
        self._connection.close()
        super().finish()

    def forward(self) -> None:
        self.send_on(self.body())

    def send_on(self, body: bytes) -> None:
        """Forward a request whose body was read."""
        self.counted.requests.append(
            WireRequest(_kind(self.command, self.path), self.path, self.headers.get("Range"), self.counted.stage)
        )
        headers = [(key, value) for key, value in self.headers.items() if key.lower() not in _NOT_FORWARDED]
        answer = self._send(headers, body)
        data = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for key, value in answer.getheaders():
            if key.lower() not in _NOT_FORWARDED:
                self.send_header(key, value)
        has_no_body = self.command == "HEAD" or answer.status in (204, 304)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        if length is not None and answer.status not in (204, 304):
            self.send_header("Content-Length", length)
        self.end_headers()
        if not has_no_body:
            self.wfile.write(data)
        self.wfile.flush()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward  # noqa: N815 - as http.server wants them named

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests are counted, not told."""

    def _send(self, headers: Sequence[tuple[str, str]], body: bytes) -> http.client.HTTPResponse:
        connection = self._connection
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for key, value in headers:
            connection.putheader(key, value)
        if body or self.command in ("PUT", "POST"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        return connection.getresponse()

    def body(self) -> bytes:
        """What the client sends; it can be read once."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return b"".join(chunks)


def _kind(method: str, path: str) -> str:
    query = parse_qs(urlsplit(path).query, keep_blank_values=True)
    if method == "GET" and ("list-type" in query or "prefix" in query):
        return "LIST"
    if "uploadId" in query:
        return {"PUT": "PART", "POST": "COMPLETE", "DELETE": "ABORT"}.get(method, method)
    if method == "POST" and "uploads" in query:
        return "CREATE"
    return "DELETE_MANY" if method == "POST" and "delete" in query else method
