"""Which of several works that share one engine the calling thread's tasks belong to.

An engine that shares its workers out deals them evenly among pools, so that the tasks of a large table do not keep
those of a small one waiting.  Others ignore it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["current_pool", "in_pool"]

_current: ContextVar[str | None] = ContextVar("icekeeper_pool", default=None)


def current_pool() -> str | None:
    """The pool of this thread's tasks; ``None``: the work has the engine for itself."""
    return _current.get()


@contextmanager
def in_pool(name: str) -> Iterator[None]:
    """Hand tasks to engines in this pool, inside of the block."""
    before = _current.set(name)
    try:
        yield
    finally:
        _current.reset(before)
