"""How large a Glue run is that maintains many tables (a *wave*): its workers, and which tables are at work. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
_LARGE_AT_ONCE = 16
# The threads of small tables mostly wait for answers.  With so many of them a driver's Python is busy all the time.
_SMALL_AT_ONCE = 32
SMALL_BYTES = 64 * 1024**2
"""Up to so many bytes a table counts as small: its manifests are, too."""
# What a table needs beside its bytes: planning, commit, and what its neighbours take of the workers.
_ROUND_S = 120
_SAFETY = 2
_LEAST_S = 60.0
_USABLE = 0.9
"""The part of a Glue run's time in which tables are at work: before it Spark starts, and behind it the job tells how
they ended; Glue kills what takes longer than its whole time."""
_LAST_ROUND = 0.95
"""The part of a table's time after which it begins nothing new; what it is at has the rest to end and to commit."""


class Sized(Protocol):
    """A table of a wave."""

    @property
    def size_bytes(self) -> int: ...


AnySized = TypeVar("AnySized", bound=Sized)


def workers_for(size_bytes: int) -> int:
    """How many workers a Glue run has that rewrites so many bytes, its driver included."""
    wanted = 1 + -(-size_bytes // _BYTES_PER_WORKER)
    return max(_FEWEST_WORKERS, min(MOST_WORKERS, wanted))


def tables_at_once(sizes: Sequence[int], workers: int) -> tuple[int, int]:
    """How many tables the driver maintains at the same time, and how many of them may be large.

    Enough to keep executors busy where each large table has one group, and where small ones share their tasks.
    """
    small = sum(size <= SMALL_BYTES for size in sizes)
    large = min(len(sizes) - small, 2 * _cores(workers), _LARGE_AT_ONCE)
    return max(1, large + min(small, _SMALL_AT_ONCE - large)), large


def in_order(tables: Iterable[AnySized]) -> tuple[AnySized, ...]:
    """The largest first: one that began last would keep all workers waiting for it, and they are paid meanwhile.

    Tables of one size stay in the order of their need.
    """
    return tuple(sorted(tables, key=lambda table: -table.size_bytes))


def usable_s(job_timeout_s: float) -> float:
    """How many seconds of a job, from its beginning, tables may be at work."""
    return _USABLE * job_timeout_s


def may_begin(size_bytes: int, workers: int, *, elapsed_s: float, limit_s: float) -> bool:
    """Whether a table that begins now will surely end within the usable time, ``limit_s``.

    In the first quarter of it everything begins: what a whole run is not long enough for never would, else.
    """
    return elapsed_s <= limit_s / 4 or elapsed_s + _needed_s(size_bytes, workers) <= limit_s


def longest_s(size_bytes: int, workers: int, *, elapsed_s: float, limit_s: float, is_alone: bool) -> float:
    """How many seconds a table that begins now may take before it is cut off (rule: cut-off-endless-tables).

    Four times what surely suffices, or a quarter of the usable time, ``limit_s``; all that is left of it where no other
    table is in the job.  Never longer than that: a job that is killed tells of no table.
    """
    generous_s = limit_s if is_alone else max(limit_s / 4, 4 * _needed_s(size_bytes, workers))
    return max(_LEAST_S, min(generous_s, limit_s - elapsed_s))


def last_round_s(longest_s: float) -> float:
    """How many of the seconds that a table has may pass before it begins nothing new, commits and reports what is
    left."""
    return _LAST_ROUND * longest_s


def _needed_s(size_bytes: int, workers: int) -> float:
    return _ROUND_S + _SAFETY * size_bytes / (_BYTES_PER_CORE_SECOND * _cores(workers))


def _cores(workers: int) -> int:
    return CORES_PER_WORKER * max(1, workers - 1)
