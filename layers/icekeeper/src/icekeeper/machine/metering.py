"""Counts the requests to object stores and catalogs by their cause.

A :class:`RequestCount` counts for the work inside :func:`counting`; code that sends a request calls
:func:`note_request`.  Threads of :class:`WorkThreads` count for the work that submitted to them.
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

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


GETS_PER_FILE = 2
"""Readers and rewrites request a Parquet file's footer and its data."""


class RequestKind(StrEnum):
    """Requests grouped by price (Amazon S3 pricing)."""

    GET = "get"
    """GET and HEAD of an object."""
    PUT = "put"
    """PUT, POST and LIST (uploads, their parts, pages of listings), about ten times the price of GET."""
    DELETE = "delete"
    """Free of charge; a batch of objects is one request."""
    CATALOG = "catalog"
    """HTTP requests to a catalog; SQL statements are not counted."""


class RequestCount:
    """How many requests of each kind were sent; threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[RequestKind] = Counter()

    def add(self, kind: RequestKind, number: int = 1) -> None:
        with self._lock:
            self._counts[kind] += number

    def add_all(self, counts: Mapping[RequestKind, int]) -> None:
        """Add the counts of another process."""
        with self._lock:
            self._counts.update(counts)

    @property
    def counts(self) -> dict[RequestKind, int]:
        """The counts so far, without zeros."""
        with self._lock:
            return {kind: self._counts[kind] for kind in RequestKind if self._counts[kind]}


_current: ContextVar[RequestCount | None] = ContextVar("icekeeper_request_count", default=None)


def current_count() -> RequestCount | None:
    """The open count of this context; work that runs in a thread of another library must keep a reference to it."""
    return _current.get()


def note_request(kind: RequestKind, number: int = 1) -> None:
    """Count requests that are being sent, if a count is open."""
    count = _current.get()
    if count is not None:
        count.add(kind, number)


@contextmanager
def counting(count: RequestCount | None = None) -> Iterator[RequestCount]:
    """Count the requests sent inside the block, in ``count`` if given; an outer block does not count them."""
    count = RequestCount() if count is None else count
    before = _current.set(count)
    try:
        yield count
    finally:
        _current.reset(before)


@contextmanager
def joined_count() -> Iterator[RequestCount]:
    """The open count; if there is none, as :func:`counting`."""
    count = _current.get()
    if count is not None:
        yield count
        return
    with counting() as own:
        yield own


class WorkThreads(ThreadPoolExecutor):
    """A pool that runs work in the context of its submitter, so that requests count for the submitter."""

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        """As :class:`ThreadPoolExecutor`; its ``map`` calls this method."""
        return super().submit(copy_context().run, partial(fn, *args, **kwargs))
