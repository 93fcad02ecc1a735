"""How much memory a task may use to send fewer requests: the engine that runs the task says so, and the task asks.

It is what is left beside the work itself, where the engine knows: a function has all its memory for one task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["spare_bytes", "with_spare_bytes"]

_SPARE: ContextVar[int] = ContextVar("icekeeper_spare_bytes", default=0)


def spare_bytes() -> int:
    """Bytes that the running task may hold beside its work; 0 where nothing is known of the process's memory."""
    return _SPARE.get()


@contextmanager
def with_spare_bytes(spare: int) -> Iterator[None]:
    """Within the block this thread runs a task that may hold so many bytes beside its work."""
    before = _SPARE.set(max(0, spare))
    try:
        yield
    finally:
        _SPARE.reset(before)
