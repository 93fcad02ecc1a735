"""The size of a *wave*, the Glue run that maintains many tables: its workers, and how many tables are in work. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeVar

from icekeeper.engines.engine import USED_DISK_SHARE

CORES: Mapping[str, int] = MappingProxyType({"G.1X": 4, "G.2X": 8, "G.4X": 16, "G.8X": 32})
"""Cores of a Glue worker by its type; each core has 4 GB of memory (AWS Glue developer guide, "Worker types")."""
_FREE_DISK_GB = {"G.1X": 44, "G.2X": 78, "G.4X": 230, "G.8X": 485}
_SPACIOUS = {"G.1X": "G.2X"}
"""The type with larger disks that may replace a type; FLEX takes both."""
# Bytes on disk per byte of a group that all workers sort at once.  Measured with groups of 200 MB on local Spark: 1.6
# (three narrow columns, or long texts) or 2.4 (51 columns, most of them of few values) wait for the workers that sort
# them, and as many again while these sort.
_DISK_PER_SORTED_BYTE = 5
_FEWEST_WORKERS = 2
"""The driver of a Glue run is one of its workers."""
MB_PER_CPU_SECOND = 60
"""What a core reads and writes per second when it decodes rows (docs/performance.md); copying is much faster."""
BUSY = 0.75
"""The share of its time in which a core works: every table ends with a commit, and its last group is a single task."""
_BYTES_PER_CORE_SECOND = int(MB_PER_CPU_SECOND * BUSY * 1024**2)
# What a worker of four cores does in about five minutes: long enough that its start-up is a small part of its cost.
_BYTES_PER_CORE = 50 * 1024**3 // 4
# Tables in work share the workers, and each must end in its time (:func:`longest_s`).
_LARGE_AT_ONCE = 16
# The threads of small tables mostly wait for answers.  This many threads keep a driver's Python busy.
_SMALL_AT_ONCE = 32
SMALL_BYTES = 64 * 1024**2
"""A table up to this size counts as small."""
# What the driver needs for a table, without Python and its modules (tests/nightly/test_driver_memory.py): 480 MB with
# 82 MB of manifests.  Of tables of more than half a million files, workers hold most.
_TABLE_BYTES = 64 * 1024**2
_PER_MANIFEST_BYTE = 5
_MOST_TABLE_BYTES = 1024**3
# The JVM of a Glue driver takes most of its machine.
_TABLES_SHARE = 0.25
# The seconds that a table needs besides its bytes: for planning, for the commit, and while other tables use the
# workers.
_ROUND_S = 120
_SAFETY = 2
_LEAST_S = 60.0
_USABLE = 0.9
"""The share of a Glue run's time in which tables are in work.  Spark starts before it, and the job reports the outcomes
after it; Glue kills a run that exceeds its whole time."""
_LAST_ROUND = 0.95
"""The share of a table's time after which it begins no new group; the rest is for ending and committing those in
work."""


class Sized(Protocol):
    """A table of a wave."""

    @property
    def size_bytes(self) -> int: ...


AnySized = TypeVar("AnySized", bound=Sized)


def workers_for(size_bytes: int, worker_type: str, most: int) -> int:
    """How many workers, including the driver, a Glue run needs to rewrite this many bytes; ``most`` at the most."""
    wanted = 1 + -(-size_bytes // (_BYTES_PER_CORE * CORES[worker_type]))
    return max(_FEWEST_WORKERS, min(most, wanted))


def disk_bytes(worker_type: str) -> int:
    """The free bytes of a Glue worker's disk (AWS Glue developer guide, "AWS Glue worker types")."""
    return _FREE_DISK_GB[worker_type] * 1024**3


def run_size(size_bytes: int, sorted_bytes: int, worker_type: str, most: int) -> tuple[int, str]:
    """How many workers a Glue run needs, including the driver, and of which type.

    It rewrites ``size_bytes``, and its largest file group to be sorted has ``sorted_bytes``, which are to fit on the
    workers' disks.  If the ``most`` workers of a type have too small disks, the type with larger disks replaces it; if
    these are too small, too, the group is sorted in several exchanges.
    """
    for kind in filter(None, (worker_type, _SPACIOUS.get(worker_type))):
        disks = math.ceil(sorted_bytes * _DISK_PER_SORTED_BYTE / (USED_DISK_SHARE * disk_bytes(kind)))
        if disks < most:
            break
    return max(workers_for(size_bytes, kind, most), min(most, 1 + disks)), kind


def cores_of(workers: int, worker_type: str) -> int:
    """The cores of a Glue run that run tasks: all but its driver's."""
    return CORES[worker_type] * max(1, workers - 1)


def tables_at_once(sizes: Sequence[int], cores: int) -> tuple[int, int]:
    """How many tables the driver maintains at the same time, and how many of them may be large.

    Enough to keep executors busy if each large table has only one group and small tables share their tasks.
    """
    small = sum(size <= SMALL_BYTES for size in sizes)
    large = min(len(sizes) - small, 2 * cores, _LARGE_AT_ONCE)
    return max(1, large + min(small, _SMALL_AT_ONCE - large)), large


def driver_need(manifest_bytes: int) -> int:
    """The most memory that the driver needs for a table with so many bytes of manifests."""
    return min(_TABLE_BYTES + _PER_MANIFEST_BYTE * manifest_bytes, _MOST_TABLE_BYTES)


def memory_for_tables(machine_bytes: int) -> int:
    """How much memory of the driver's machine the tables in work may need together."""
    return int(_TABLES_SHARE * machine_bytes)


def in_order(tables: Iterable[AnySized]) -> tuple[AnySized, ...]:
    """The largest table first: if it began last, all workers, which cost money, would wait for it.

    Tables of the same size keep their order of priority.
    """
    return tuple(sorted(tables, key=lambda table: -table.size_bytes))


def usable_s(job_timeout_s: float) -> float:
    """How many seconds after the start of a job tables may be in work."""
    return _USABLE * job_timeout_s


def may_begin(size_bytes: int, cores: int, *, elapsed_s: float, limit_s: float) -> bool:
    """Whether a table that begins now is certain to end within the usable time, ``limit_s``.

    In the first quarter of that time every table may begin: otherwise a table that needs more than a whole run would
    never begin.
    """
    return elapsed_s <= limit_s / 4 or elapsed_s + _needed_s(size_bytes, cores) <= limit_s


def longest_s(size_bytes: int, cores: int, *, elapsed_s: float, limit_s: float, is_alone: bool) -> float:
    """How many seconds a table that begins now may take before it is cut off.

    Four times the time that is certain to suffice, or a quarter of the usable time, ``limit_s``; for a table that keeps
    no other one waiting, all that is left.  Never more than what is left: a killed job reports no table.
    """
    generous_s = limit_s if is_alone else max(limit_s / 4, 4 * _needed_s(size_bytes, cores))
    return max(_LEAST_S, min(generous_s, limit_s - elapsed_s))


def last_round_s(longest_s: float) -> float:
    """After how many of its seconds a table begins no new group, commits, and reports what is left."""
    return _LAST_ROUND * longest_s


def _needed_s(size_bytes: int, cores: int) -> float:
    return _ROUND_S + _SAFETY * size_bytes / (_BYTES_PER_CORE_SECOND * cores)
