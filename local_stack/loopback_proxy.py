"""A proxy on loopback in front of an HTTP server: it looks at each request, and sends it on or answers itself."""

from __future__ import annotations

import http.client
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "expect"})
"""Headers that concern a single connection, in lower case; they are not forwarded."""
_WITHOUT_BODY = (204, 304)


@contextmanager
def serving(handler: type[ProxyHandler]) -> Iterator[str]:
    """The address of a proxy on a free port, while this lasts."""
    with _Server(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_address[1]}"
        finally:
            httpd.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is no news."""


class ProxyHandler(BaseHTTPRequestHandler, ABC):
    """One client's requests, with a connection of its own to the server; subclasses say in ``serve`` what is done."""

    protocol_version = "HTTP/1.1"
    # Head and body of an answer go out in one piece: else Nagle's algorithm holds the second one back for 40 ms.
    wbufsize = -1
    disable_nagle_algorithm = True
    upstream = ""
    """Host and port of the server."""

    @abstractmethod
    def serve(self) -> None:
        """Answer the request that has come: its body is still to be read."""

    def do_GET(self) -> None:
        self.serve()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the same

    def setup(self) -> None:
        super().setup()
        self._connection = http.client.HTTPConnection(self.upstream, timeout=60)

    def finish(self) -> None:
        self._connection.close()
        super().finish()

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()  # the client waits a second for it
        return True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are recorded instead."""

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

    def send_on(self, body: bytes, headers: Iterable[tuple[str, str]]) -> None:
        """Send the request on with these headers, the host among them, and give the client the server's answer."""
        connection = self._connection
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if body or self.command in ("PUT", "POST"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        data = answer.read()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in OF_ONE_CONNECTION]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.answer(answer.status, headers, data, length)

    def answer(self, status: int, headers: Iterable[tuple[str, str]], body: bytes, length: str | None) -> None:
        """Answer the client; ``length`` is the body's, which an answer to HEAD has not got."""
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if length is not None and status not in _WITHOUT_BODY:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD" and status not in _WITHOUT_BODY:
            self.wfile.write(body)
        self.wfile.flush()
