"""The clock seam: real time for runs, a settable one for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["HOUR_MS", "Clock", "system_clock"]

HOUR_MS = 3_600_000

Clock: TypeAlias = Callable[[], int]
"""Returns epoch milliseconds."""


def system_clock() -> int:
    """Epoch milliseconds from the operating system."""
    return time.time_ns() // 1_000_000
