"""Clocks: the system's, one that tests can set in its place, and the time that a server tells."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias

__all__ = [
    "HOUR_MS",
    "TOLD_SKEW_MS",
    "Clock",
    "ServerClock",
    "ahead_ms",
    "iso_utc",
    "steady_s",
    "stopwatch",
    "system_clock",
]

HOUR_MS = 3_600_000
TOLD_SKEW_MS = 60_000
"""Clocks that differ by more milliseconds than this are reported."""
# A Date header has whole seconds, as have times of some file systems; and an answer takes a while to arrive.
_PRECISION_MS = 2_000

Clock: TypeAlias = Callable[[], int]
"""Returns epoch milliseconds."""


def system_clock() -> int:
    """Epoch milliseconds from the operating system."""
    return time.time_ns() // 1_000_000


def steady_s() -> float:
    """Seconds from an arbitrary start, which setting the clock does not change.

    On Linux they include the time that the machine was asleep.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def iso_utc(epoch_ms: int) -> str:
    """A moment for people, to the second: ``2026-01-31T12:00:00Z`` (ISO 8601)."""
    return datetime.fromtimestamp(epoch_ms // 1000, UTC).isoformat().replace("+00:00", "Z")


def ahead_ms(ours_ms: int, theirs_ms: int | None) -> int:
    """How many milliseconds our clock is ahead of another one (negative: behind it).

    0 where the other time is not known, or the difference is within the two seconds that measuring is exact to.
    """
    difference = 0 if theirs_ms is None else ours_ms - theirs_ms
    return difference if abs(difference) > _PRECISION_MS else 0


class ServerClock:
    """A server's time, by the ``Date`` header of its newest answer, which is exact to the second (RFC 9110, 6.6.1).

    Never ahead of the server's own clock; behind it by a second and the time an answer takes.  Threads may share it.
    """

    def __init__(self) -> None:
        self._heard: tuple[int, float] | None = None

    def listen(self, client: Any) -> None:
        """Take the time from every answer that a boto3 client gets, errors included."""
        client.meta.events.register("after-call", self._answered)

    def now_ms(self) -> int | None:
        """Epoch milliseconds; ``None`` while no answer has told the time."""
        if self._heard is None:
            return None
        said_ms, heard_s = self._heard
        return said_ms + int((steady_s() - heard_s) * 1000)

    def hear(self, date: str) -> None:
        """Take the time from the text of a ``Date`` header; a malformed one is ignored."""
        try:
            said = parsedate_to_datetime(date)
        except ValueError:
            return
        # Without a zone it is GMT, as the RFC wants it, and not this machine's time.
        said = said if said.tzinfo is not None else said.replace(tzinfo=UTC)
        self._heard = int(said.timestamp() * 1000), steady_s()

    def _answered(self, http_response: Any, **_: Any) -> None:
        self.hear(str(http_response.headers.get("Date", "")))


@contextmanager
def stopwatch() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the whole milliseconds since entering."""
    started_s = time.perf_counter()
    yield lambda: int((time.perf_counter() - started_s) * 1000)
