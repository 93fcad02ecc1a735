"""A proxy before an HTTP server that delays every request, and counts requests and bytes; a process of its own."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_HOST = "127.0.0.1"
_BUFFER = 1024 * 1024
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class DelayProxy:
    """Its address, and what has passed."""

    url: str
    requests: Any
    sent: Any
    received: Any

    def counts(self) -> tuple[int, int]:
        """Requests, and bytes in both directions, since the last call."""
        found = self.requests.value, self.sent.value + self.received.value
        for counter in (self.requests, self.sent, self.received):
            with counter.get_lock():
                counter.value = 0
        return found


@contextmanager
def delay_proxy(upstream: str, delay_s: float) -> Iterator[DelayProxy]:
    """Run a proxy before a server on this machine."""
    context = multiprocessing.get_context("spawn")
    address = urlsplit(upstream)
    theirs, ours = context.Pipe()
    counters = [context.Value("q", 0) for _ in range(3)]
    process = context.Process(target=_serve, args=((address.hostname, address.port), delay_s, theirs, counters))
    process.daemon = True
    process.start()
    try:
        yield DelayProxy(f"http://{_HOST}:{ours.recv()}", *counters)
    finally:
        process.terminate()
        process.join()


def _serve(upstream: tuple[str, int], delay_s: float, ready: Any, counters: list[Any]) -> None:
    listener = socket.create_server((_HOST, 0), backlog=64)
    ready.send(listener.getsockname()[1])
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_connection, args=(client, upstream, delay_s, counters), daemon=True).start()


def _connection(client: socket.socket, upstream: tuple[str, int], delay_s: float, counters: list[Any]) -> None:
    requests, sent, received = counters
    with client, suppress(OSError), socket.create_connection(upstream) as server:
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_answers, args=(server, client, received), daemon=True).start()
        data = b""
        while True:
            while _HEAD_END not in data:
                more = client.recv(_BUFFER)
                if not more:
                    return
                data += more
            head, _, data = data.partition(_HEAD_END)
            with requests.get_lock():
                requests.value += 1
            time.sleep(delay_s)
            server.sendall(head + _HEAD_END)
            left = _body_size(head)
            with sent.get_lock():
                sent.value += len(head) + left
            while left:
                body, data = data[:left], data[left:]
                server.sendall(body)
                left -= len(body)
                if left:
                    data = client.recv(min(left, _BUFFER))
                    if not data:
                        return


def _body_size(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _answers(server: socket.socket, client: socket.socket, received: Any) -> None:
    with suppress(OSError):
        while data := server.recv(_BUFFER):
            with received.get_lock():
                received.value += len(data)
            client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)
