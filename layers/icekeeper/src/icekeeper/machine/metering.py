"""Counts the requests to object stores and catalogs, and what else this process uses that AWS bills."""

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

# Counts what this process uses and AWS bills, until somebody takes the counts to record them.
#
# Process-wide on purpose: a function serves one call at a time, and what several calls in one process use together is
# recorded together.


class Amount(StrEnum):
    """What is counted; whole numbers, so that many processes can add to one total."""

    LAMBDA_CALLS = "lambda_calls"
    LAMBDA_MB_MS = "lambda_mb_ms"
    """Memory of a function, in MB, times the milliseconds that it ran; on x86."""
    LAMBDA_ARM_MB_MS = "lambda_arm_mb_ms"
    """The same on arm64."""
    GLUE_DPU_MS = "glue_dpu_ms"
    """Data processing units of a Glue job times the milliseconds that it ran."""
    GLUE_FLEX_DPU_MS = "glue_flex_dpu_ms"
    """The same of the execution class FLEX."""
    STATE_TRANSITIONS = "state_transitions"
    """States of the state machine that were entered."""
    STORE_GETS = "store_gets"
    """GET and HEAD of objects."""
    STORE_PUTS = "store_puts"
    """PUT, POST and LIST of objects."""
    STATE_READ_UNITS = "state_read_units"
    """Read request units of the state table (DynamoDB), in thousandths."""
    STATE_WRITE_UNITS = "state_write_units"
    """Write request units of the state table, in thousandths."""
    LOG_BYTES = "log_bytes"
    """What functions log, lines of metrics included."""
    TABLE_METRIC_HOURS = "table_metric_hours"
    """Metrics by table, each for the hour in which it was written."""
    COMPACTIONS = "compactions"
    """Compactions of a table that committed."""
    COMPACTED_FILES = "compacted_files"
    """Data files that compaction replaced."""
    COMPACTED_BYTES = "compacted_bytes"
    """Their size."""


class Meter:
    """Amounts that were used and not recorded yet; may be shared by threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._amounts: Counter[Amount] = Counter()

    def add(self, amount: Amount, number: int = 1) -> None:
        """Count some more of one thing."""
        with self._lock:
            self._amounts[amount] += number

    def take(self) -> Mapping[Amount, int]:
        """What was counted since it was last taken, without zeros."""
        with self._lock:
            taken, self._amounts = self._amounts, Counter()
        return {amount: number for amount, number in taken.items() if number}


process_meter = Meter()
"""What this process used."""


# Counts the requests that are sent to object stores and catalogs, for whoever caused them: requests cost money.
#
# A count is open for the work inside :func:`counting`; what sends a request calls :func:`note_request`.  Threads of
# :class:`WorkThreads` count for the work that started them.

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
