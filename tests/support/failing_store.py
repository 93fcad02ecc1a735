"""A proxy in front of a store that fails in the midst of what a client does: keys expire, answers are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from local_stack.loopback_proxy import serving
from support.counting_proxy import CountingProxy, Forwarder, WireRequest

_EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"

Moment: TypeAlias = Callable[[int, WireRequest], bool]
"""Whether the fault begins with this request, told its number from 0."""


class Fault(Enum):
    """What the store does wrong."""

    EXPIRED = "every request is refused from here on, for the keys have expired"
    LOST = "the store did what was asked, and the connection broke before its answer came"
    LATE_503 = "the store did what was asked, and a proxy answered 503"


@dataclass
class FailingStore:
    """The address to use in place of the server's, and what came of the fault."""

    proxy: CountingProxy
    hit: WireRequest | None = None
    """The request with which the fault began."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def failing_store(server: str, fault: Fault, moment: Moment) -> Iterator[FailingStore]:
    """Forwards to ``server`` (``http://host:port``) but for one request, or all from one on."""
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
    _swallows = False

    def serve(self) -> None:
        body = self.body()
        if not self._is_hit():
            self.send_on_as_it_came(body)
        elif self.does_wrong is Fault.EXPIRED:
            self.answer(403, [("Content-Type", "application/xml")], _EXPIRED, str(len(_EXPIRED)))
        else:
            self._swallows = True
            self.send_on_as_it_came(body)
            self._swallows = False
            if self.does_wrong is Fault.LATE_503:
                self.answer(503, [], b"", "0")
            else:
                self.close_connection = True

    def answer(self, *told: Any) -> None:
        if not self._swallows:
            super().answer(*told)

    def _is_hit(self) -> bool:
        """Whether this request fails; it is counted in either case."""
        with self.failing.lock:
            request = self.count()
            if self.failing.hit is not None:
                return self.does_wrong is Fault.EXPIRED
            if self.begins(len(self.counted.requests) - 1, request):
                self.failing.hit = request
            return self.failing.hit is not None
