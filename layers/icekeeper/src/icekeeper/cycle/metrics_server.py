"""The HTTP server of ``icekeeper run``: ``/metrics`` for Prometheus, ``/healthz`` for probes, ``/`` for people.

It runs in the process that supervises the worker, so it answers even while the worker hangs or restarts.  It answers
reading requests only.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Event, Thread, Timer
from typing import TYPE_CHECKING, Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.report.metrics import CONTENT_TYPE, StateMetrics
from icekeeper.text import masked

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
_Answer: TypeAlias = tuple[str, list[tuple[str, str]], bytes]
"""Status, headers and body, which is not sent after HEAD and with 304."""


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


# A page of ten thousand tables takes seconds, and passes of small tables end every second.
_LEAST_PAUSE_S = 10.0
_PAUSES = 20


class ServedPage:
    """The report page, which a thread of its own writes; requests get the bytes of the last page."""

    def __init__(self, write: Callable[[], str], policy: str) -> None:
        """``write`` writes the page anew; ``policy`` is its content security policy."""
        self._write, self._policy = write, policy
        self._is_due, self._stop = Event(), Event()
        self._page: tuple[bytes, str] | None = None

    def note_change(self) -> None:
        """Something that the page shows has changed: write it soon."""
        self._is_due.set()

    @contextmanager
    def kept_current(self) -> Iterator[None]:
        """Write the page now and after changes while the block runs."""
        self._is_due.set()
        Thread(target=self._write_when_due, name="icekeeper-page", daemon=True).start()
        try:
            yield
        finally:
            self._stop.set()
            self._is_due.set()

    def _write_when_due(self) -> None:
        while self._is_due.wait() and not self._stop.is_set():
            self._is_due.clear()
            begun_s = time.monotonic()
            try:
                body = self._write().encode()
            except Exception as error:  # the last page stays, and shows its age
                log.warning("the page was not written: %s", masked(str(error)))
                continue
            self._page = body, f'"{sha256(body).hexdigest()[:32]}"'
            self._stop.wait(max(_LEAST_PAUSE_S, _PAUSES * (time.monotonic() - begun_s)))

    def answer(self, known: str) -> _Answer:
        """The page, or none if the tags ``known`` (``If-None-Match``) name it."""
        if self._page is None:
            return _sentence("503 Service Unavailable", "the page follows the first scan: reload it then")
        body, tag = self._page
        headers = [
            ("Cache-Control", "no-cache"),
            ("Content-Security-Policy", f"{self._policy}; frame-ancestors 'none'"),
            ("Content-Type", "text/html; charset=utf-8"),
            ("ETag", tag),
            ("Referrer-Policy", "no-referrer"),
        ]
        is_known = tag in (part.strip().removeprefix("W/") for part in known.split(","))
        return "304 Not Modified" if is_known else "200 OK", headers, body


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
def served(
    address: str, port: int, metrics: StateMetrics, health: CycleHealth, page: ServedPage | None = None
) -> Iterator[str]:
    """Serve while the block runs; yields the server's URL.  Port 0 is any free port.

    Raises:
        PolicyError: the port cannot be used.
    """
    is_local = address == "localhost" or address.startswith("127.")

    def found(environ: WSGIEnvironment) -> _Answer:
        host = re.sub(r":[0-9]+$", "", environ.get("HTTP_HOST", "")).lower()
        if is_local and host not in (*_LOOPBACK, address):
            return _sentence("421 Misdirected Request", f"ask for it as {address}")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, headers, body = _sentence("405 Method Not Allowed", "only GET and HEAD are answered")
            return status, [("Allow", "GET, HEAD"), *headers], body
        path = environ.get("PATH_INFO")
        if path == "/" and page is not None:
            return page.answer(environ.get("HTTP_IF_NONE_MATCH", ""))
        if path == "/metrics":
            try:
                return "200 OK", [("Content-Type", CONTENT_TYPE)], metrics.text().encode()
            except MaintenanceError as error:
                return _sentence("503 Service Unavailable", str(error))
        if path == "/healthz":
            why = health.why_not()
            return _sentence("200 OK" if why is None else "503 Service Unavailable", why or "ok")
        return _sentence("404 Not Found", f"there are {'/metrics' if page is None else '/, /metrics'} and /healthz")

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        status, headers, body = found(environ)
        headers += [("Content-Length", str(len(body))), ("X-Content-Type-Options", "nosniff")]
        start_response(status, headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" or status.startswith("304") else [body]

    try:
        server = make_server(address, port, answer, server_class=_Server, handler_class=_Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PolicyError(
            f"port {port} of {address} cannot be used: {reason}; choose another --http or --http-address"
        ) from None
    with server:
        Thread(target=server.serve_forever, name="icekeeper-http", daemon=True).start()
        try:
            yield f"http://{address}:{server.server_port}"
        finally:
            server.shutdown()


def _sentence(status: str, sentence: str) -> _Answer:
    return status, [("Content-Type", "text/plain; charset=utf-8")], f"{sentence}\n".encode()
