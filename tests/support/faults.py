"""A TCP proxy on loopback that loses or replaces answers after the server has acted on the request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

HOST = "127.0.0.1"


class FaultyProxy:
    """Forwards to one server.  While ``fault`` is set, requests arrive there, but the answers do not come back."""

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        self._upstream = (address.hostname or HOST, address.port or 80)
        self._listener = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._listener.getsockname()[1]}"
        self.fault: bytes | None = None
        """Sent instead of the answer, then the connection is closed; empty for closing only."""
        self.faults_left: int | None = None
        """How many answers get lost; ``None`` for all."""
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for client in tuple(self._open):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._upstream) as server:
            back = threading.Thread(target=self._answer, args=(server, client), daemon=True)
            back.start()
            while data := client.recv(65536):
                server.sendall(data)
            with suppress(OSError):
                server.shutdown(socket.SHUT_WR)
            back.join(5)
        self._open.discard(client)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if self.fault is not None and self.faults_left != 0:
                    if self.faults_left is not None:
                        self.faults_left -= 1
                    # The server answers only after it has acted: now the answer is lost.
                    client.sendall(self.fault)
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def closed_port() -> Iterator[str]:
    """An address that refuses connections, reserved while the context lasts."""
    with socket.socket() as reserved:
        reserved.bind((HOST, 0))  # bound, but not listening
        yield f"http://{HOST}:{reserved.getsockname()[1]}"
