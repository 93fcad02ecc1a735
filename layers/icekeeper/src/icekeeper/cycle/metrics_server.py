"""The HTTP server of ``icekeeper run``: ``/metrics`` for Prometheus, ``/healthz`` for probes.

It runs in the process that supervises the worker, so it answers even while the worker hangs or restarts.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread, Timer
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.report.metrics import CONTENT_TYPE, StateMetrics

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)

# A client that sends nothing, or only a byte at a time, must not occupy a thread.
_TIMEOUT_S = 10
_DEADLINE_S = 30.0
_MOST_HANDLERS = 16
# The names of this machine in a browser.  A request under any other name comes from a foreign page whose name resolves
# to this machine, so that the page can read the answer (DNS rebinding).
_LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
_LATE_S = 300.0


class CycleHealth:
    """Whether cycles end in time: the last cycle ended, or the process began, within two intervals and five minutes."""

    def __init__(self, interval_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """``interval_s``: the interval until a cycle reports another value."""
        self._interval_s, self._monotonic_s = interval_s, monotonic_s
        self._ended_s = monotonic_s()

    def note(self, interval_s: float, *, has_ended: bool) -> None:
        """A cycle has begun or ended; ``interval_s`` is the time from its begin to that of the next cycle."""
        self._interval_s = interval_s
        if has_ended:
            self._ended_s = self._monotonic_s()

    def why_not(self) -> str | None:
        """What is wrong, as a sentence; ``None``: cycles end in time."""
        since_s = self._monotonic_s() - self._ended_s
        limit_s = 2 * self._interval_s + _LATE_S
        return None if since_s <= limit_s else f"no cycle has ended for {since_s:.0f} s, of at most {limit_s:.0f} s"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._free = BoundedSemaphore(_MOST_HANDLERS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = Timer(_DEADLINE_S, _hang_up, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that went away or sent nothing; the library would print a traceback."""
        log.debug("a request of %s broke", client_address, exc_info=True)


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):  # it has just ended
        request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


@contextmanager
def served(address: str, port: int, metrics: StateMetrics, health: CycleHealth) -> Iterator[str]:
    """Serve while the block runs; yields the server's URL.  Port 0 is any free port.

    Raises:
        PolicyError: the port cannot be used.
    """
    is_local = address == "localhost" or address.startswith("127.")

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        host = re.sub(r":[0-9]+$", "", environ.get("HTTP_HOST", "")).lower()
        if is_local and host not in (*_LOOPBACK, address):
            return _text(start_response, "421 Misdirected Request", f"ask for it as {address}")
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            try:
                found = metrics.text()
            except MaintenanceError as error:
                return _text(start_response, "503 Service Unavailable", str(error))
            start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
            return [found.encode()]
        if path == "/healthz":
            why = health.why_not()
            return _text(start_response, "200 OK" if why is None else "503 Service Unavailable", why or "ok")
        return _text(start_response, "404 Not Found", "there are /metrics and /healthz")

    try:
        server = make_server(address, port, answer, server_class=_Server, handler_class=_Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PolicyError(
            f"metrics cannot be served at port {port} of {address}: {reason}; choose another --metrics-port or "
            "--metrics-address"
        ) from None
    with server:
        Thread(target=server.serve_forever, name="icekeeper-metrics", daemon=True).start()
        try:
            yield f"http://{address}:{server.server_port}"
        finally:
            server.shutdown()


def _text(start_response: StartResponse, status: str, sentence: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{sentence}\n".encode()]
