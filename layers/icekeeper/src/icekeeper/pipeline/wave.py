"""How large a Glue run is that maintains many tables (a *wave*): its workers, and which tables are at work. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

MOST_WORKERS = 10
_FEWEST_WORKERS = 2
"""The driver of a Glue run is one of its workers."""
CORES_PER_WORKER = 4
"""Of G.1X, the smallest worker: a DPU (AWS Glue developer guide, "Worker types")."""
MB_PER_CPU_SECOND = 60
"""What Spark's workers read and write again by the decoding path (docs/performance.md); copying is much faster."""
BUSY = 0.75
"""The part of its time in which a core works: every table ends with a commit, and its last group is one task."""
_BYTES_PER_CORE_SECOND = int(MB_PER_CPU_SECOND * BUSY * 1024**2)
# What a worker does in some five minutes: long enough that its start-up is a small part of what it costs.
_BYTES_PER_WORKER = 50 * 1024**3
# A driver has 16 GB, and needs up to some hundred megabytes for the manifests of a large table.
_MOST_AT_ONCE = 16
# What a table needs beside its bytes: planning, commit, and what its neighbours take of the workers.
_ROUND_S = 120
_SAFETY = 2
_LEAST_S = 60.0
_LAST_CUT = 0.95
"""The part of the job's time after which what still hangs is cut off."""


class Sized(Protocol):
    """A table of a wave."""

    @property
    def size_bytes(self) -> int: ...


AnySized = TypeVar("AnySized", bound=Sized)


def workers_for(size_bytes: int) -> int:
    """How many workers a Glue run has that rewrites so many bytes, its driver included."""
    wanted = 1 + -(-size_bytes // _BYTES_PER_WORKER)
    return max(_FEWEST_WORKERS, min(MOST_WORKERS, wanted))


def tables_at_once(tables: int, workers: int) -> int:
    """How many tables the driver maintains at the same time: enough to keep executors busy where each has one group."""
    return max(1, min(tables, 2 * _cores(workers), _MOST_AT_ONCE))


def in_order(tables: Iterable[AnySized]) -> tuple[AnySized, ...]:
    """The largest first: one that began last would keep all workers waiting for it, and they are paid meanwhile.

    Tables of one size stay in the order of their need.
    """
    return tuple(sorted(tables, key=lambda table: -table.size_bytes))


def may_begin(size_bytes: int, workers: int, *, elapsed_s: float, limit_s: float) -> bool:
    """Whether a table that begins now will surely end before the job's time is over.

    In the first quarter of the time everything begins: what a whole run is not long enough for never would, else.
    """
    return elapsed_s <= limit_s / 4 or elapsed_s + _needed_s(size_bytes, workers) <= limit_s


def longest_s(size_bytes: int, workers: int, *, elapsed_s: float, limit_s: float) -> float:
    """How many seconds a table that begins now may take before it is cut off (rule: cut-off-endless-tables).

    Four times what surely suffices, or a quarter of the job's time; never so long that the job is killed before it has
    told of the others.
    """
    generous_s = max(limit_s / 4, 4 * _needed_s(size_bytes, workers))
    return max(_LEAST_S, min(generous_s, _LAST_CUT * limit_s - elapsed_s))


def _needed_s(size_bytes: int, workers: int) -> float:
    return _ROUND_S + _SAFETY * size_bytes / (_BYTES_PER_CORE_SECOND * _cores(workers))


def _cores(workers: int) -> int:
    return CORES_PER_WORKER * max(1, workers - 1)
