"""Counts the requests that are sent to object stores and catalogs, for whoever caused them: requests cost money.

A count is open for the work inside :func:`counting`; what sends a request calls :func:`note_request`.  Threads of
:class:`WorkThreads` count for the work that started them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from enum import StrEnum
from functools import partial
from threading import Lock
from typing import ParamSpec, TypeVar

__all__ = ["RequestCount", "RequestKind", "WorkThreads", "counting", "current_count", "joined_count", "note_request"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class RequestKind(StrEnum):
    """Requests that cost about the same (Amazon S3 pricing)."""

    GET = "get"
    """GET and HEAD of an object."""
    PUT = "put"
    """PUT, POST and LIST, which cost some ten times as much: uploads and their parts, pages of listings."""
    DELETE = "delete"
    """Deletions, free of charge; a batch of objects is one request."""
    CATALOG = "catalog"
    """What is sent to a catalog over HTTP; statements to a database are not counted."""


class RequestCount:
    """How many requests of each kind were sent; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[RequestKind] = Counter()

    def add(self, kind: RequestKind, number: int = 1) -> None:
        """Count requests of one kind."""
        with self._lock:
            self._counts[kind] += number

    def add_all(self, counts: Mapping[RequestKind, int]) -> None:
        """Count what another process has counted."""
        with self._lock:
            self._counts.update(counts)

    @property
    def counts(self) -> dict[RequestKind, int]:
        """The numbers so far, without zeros."""
        with self._lock:
            return {kind: self._counts[kind] for kind in RequestKind if self._counts[kind]}


_current: ContextVar[RequestCount | None] = ContextVar("icekeeper_request_count", default=None)


def current_count() -> RequestCount | None:
    """The count that is open here; who may work in a thread of another library keeps it."""
    return _current.get()


def note_request(kind: RequestKind, number: int = 1) -> None:
    """Count requests that are sent just now, if anybody counts."""
    count = _current.get()
    if count is not None:
        count.add(kind, number)


@contextmanager
def counting(count: RequestCount | None = None) -> Iterator[RequestCount]:
    """Count the requests sent inside the block, in ``count`` if it is given; an outer block does not count them."""
    count = RequestCount() if count is None else count
    before = _current.set(count)
    try:
        yield count
    finally:
        _current.reset(before)


@contextmanager
def joined_count() -> Iterator[RequestCount]:
    """The count that is open already; where there is none, as :func:`counting`."""
    count = _current.get()
    if count is not None:
        yield count
        return
    with counting() as own:
        yield own


class WorkThreads(ThreadPoolExecutor):
    """A pool whose threads work in the context of whoever submits the work, so that they count for it."""

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        """As :class:`ThreadPoolExecutor` does; its ``map`` submits, too."""
        return super().submit(copy_context().run, partial(fn, *args, **kwargs))
