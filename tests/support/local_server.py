"""A server of a test's own on 127.0.0.1, for as long as a block runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any


class _Server(HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """As always, but for a client that goes away once it has read enough."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _ThreadingServer(ThreadingMixIn, _Server):
    daemon_threads = True


@contextmanager
def served_by(handler: type[BaseHTTPRequestHandler], *, one_by_one: bool = False) -> Iterator[str]:
    """The address of a server whose requests a handler answers, each in a thread of its own, or one after another."""
    server = (_Server if one_by_one else _ThreadingServer)(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
