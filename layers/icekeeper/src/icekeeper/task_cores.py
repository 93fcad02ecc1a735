"""How many cores of its machine a task may use: the engine that runs the task says so, and the task asks.

A task that asks nothing uses one core (rule 134).  Threads that a task starts do not know the number: ask before
starting them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["on_cores", "task_cores"]

_CORES: ContextVar[int] = ContextVar("icekeeper_task_cores", default=1)


def task_cores() -> int:
    """The number of cores that the running task may use, at least 1; 1 outside of an engine's task."""
    return _CORES.get()


@contextmanager
def on_cores(cores: int) -> Iterator[None]:
    """Within the block this thread runs a task that may use so many cores."""
    before = _CORES.set(max(1, cores))
    try:
        yield
    finally:
        _CORES.reset(before)
