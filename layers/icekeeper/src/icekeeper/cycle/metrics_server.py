"""The HTTP server of ``icekeeper run``: ``/metrics`` for Prometheus, ``/healthz`` for probes.

It runs in the process that supervises the worker, so it answers also while the worker hangs or starts again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.report.metrics import StateMetrics

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)

# A client that sends nothing must not hold a thread.
_TIMEOUT_S = 10
_LATE_S = 300.0


class CycleHealth:
    """Whether cycles end in time: the last one ended, or the process began, within two intervals and five minutes."""

    def __init__(self, interval_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """``interval_s``: until a cycle says another one."""
        self._interval_s, self._monotonic_s = interval_s, monotonic_s
        self._ended_s = monotonic_s()

    def note(self, interval_s: float, *, has_ended: bool) -> None:
        """A cycle has begun or ended; ``interval_s`` is the time from its begin to that of the next one."""
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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that went away or sent nothing; the library would print a traceback."""
        log.debug("a request of %s broke", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


@contextmanager
def served(address: str, port: int, metrics: StateMetrics, health: CycleHealth) -> Iterator[str]:
    """Serve while the block runs; yields the server's URL.  Port 0 is any free one.

    Raises:
        PolicyError: ``prometheus_client`` is not installed, or the port cannot be used.
    """
    registry = metrics.registry()
    from prometheus_client import make_wsgi_app

    expose = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            try:
                found: Iterable[bytes] = expose(environ, start_response)
                return found
            except MaintenanceError as error:
                return _text(start_response, "503 Service Unavailable", str(error))
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
