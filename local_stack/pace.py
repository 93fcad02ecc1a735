"""How fast the time of a state machine passes: a wait of 30 s need not take 30 s."""

from __future__ import annotations

import threading
import time


class Pace:
    """Waits and retry intervals, shortened, and remembered as the definition asked for them."""

    def __init__(self, longest_s: float = 0.02) -> None:
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._waits.append(seconds)
        time.sleep(min(seconds, self._longest_s))

    @property
    def waits(self) -> tuple[float, ...]:
        """Every wait so far, in the seconds of the definition."""
        with self._lock:
            return tuple(self._waits)

    def forget(self) -> None:
        with self._lock:
            self._waits.clear()


PACE = Pace()
"""A single instance per process, like moto's engine."""
