"""The clock seam: real time for runs, a settable one for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

__all__ = ["HOUR_MS", "Clock", "iso_utc", "system_clock"]

HOUR_MS = 3_600_000

Clock: TypeAlias = Callable[[], int]
"""Returns epoch milliseconds."""


def system_clock() -> int:
    """Epoch milliseconds from the operating system."""
    return time.time_ns() // 1_000_000


def iso_utc(epoch_ms: int) -> str:
    """A moment for people, to the second: ``2026-01-31T12:00:00Z`` (ISO 8601)."""
    return datetime.fromtimestamp(epoch_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
