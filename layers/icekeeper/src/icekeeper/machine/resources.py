"""Memory, cores and environment variables of this process: what there is, and what a task may use."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Container, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

# Which allocator Arrow uses in every process that imports Icekeeper, and how it keeps what was freed
# (platform: arrow-allocators).
#
# Arrow asks the environment once, when it is imported; so this is imported before anything else.

_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
_OPTIONS_VARIABLE = "JE_ARROW_MALLOC_CONF"
# Threads share what they have freed: by default there are four arenas a core, and none takes what another one keeps.
_OPTIONS = "narenas:2"


def choose_allocator(environment: MutableMapping[str, str], system_names: Container[str]) -> None:
    """Have Arrow use jemalloc, unless somebody chose, or Arrow's wheel has none and would complain.

    ``system_names`` are those of ``os.confstr``; only the GNU C library has a name of its own among them.
    """
    if "CS_GNU_LIBC_VERSION" in system_names:
        environment.setdefault(_VARIABLE, "jemalloc")
        environment.setdefault(_OPTIONS_VARIABLE, _OPTIONS)


choose_allocator(os.environ, getattr(os, "confstr_names", ()))


# Which variables of an environment count as set: an empty one does not.


def variables_set(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold more than blanks.

    A template, a compose file or a shell script often cannot leave a variable out, only empty; ``sam local invoke``
    makes an empty one of ``AWS::NoValue``.
    """
    return {name: value for name, value in environment.items() if value.strip()}


# Has the C library give large blocks back to the system as soon as they are free
# (platform: freed-memory-stays-per-thread).
#
# Python's own bytes come from it, such as those that boto3's threads read and send.

# M_MMAP_THRESHOLD of malloc.h.
_MMAP_THRESHOLD = -3
_LARGE_BYTES = 256 * 1024


def give_back_freed_blocks(system_names: Container[str]) -> bool:
    """Whether this process does so from now on; no other library than GNU's is asked.

    ``system_names`` are those of ``os.confstr``; only the GNU C library has a name of its own among them.
    """
    if "CS_GNU_LIBC_VERSION" not in system_names:
        return False
    return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES))


give_back_freed_blocks(getattr(os, "confstr_names", ()))


# How often Python looks for garbage that refers to itself.
#
# By default it looks through what is new after every 700 objects, and through everything each time that has grown by a
# quarter.  A pass makes millions of entries of manifests that live on and hold no cycles: looking took a tenth of its
# CPU.

_NEW_OBJECTS = 50_000


def search_cycles_seldom() -> None:
    """Look after every 50,000 new objects, in this process and from now on; a limit that is higher, or 0, stays."""
    new, *others = gc.get_threshold()
    if 0 < new < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *others)


# What this machine gives the process: cores and memory, the limits of a container included.

# Linux, "Control Group v2", cpu.max and memory.max; a container sees its own limits there.
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a process may use."""

    cores: int
    memory_bytes: int


def this_machine() -> Machine:
    """Cores and memory that this process may use now."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    function_mb = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")  # AWS Lambda, "Runtime environment variables"
    if function_mb.isdecimal():
        memory = min(memory, int(function_mb) * 1024 * 1024)
    return Machine(limited_cores(affinity, _limit("cpu.max")), limited_memory(memory, _limit("memory.max")))


def limited_cores(cores: int, cpu_max: str) -> int:
    """The cores that a ``cpu.max`` such as ``150000 100000`` leaves, rounded up; all of them for ``max`` or no text."""
    quota, _, period = cpu_max.partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return max(1, cores)
    return max(1, min(cores, -(-int(quota) // int(period))))


def limited_memory(memory_bytes: int, memory_max: str) -> int:
    """The bytes that a ``memory.max`` leaves; all of them for ``max`` or no text."""
    return min(memory_bytes, int(memory_max)) if memory_max.isdecimal() else memory_bytes


def _limit(name: str) -> str:
    try:
        return (_CGROUP / name).read_text().strip()
    except OSError:
        return ""


# How many cores of its machine a task may use: the engine that runs the task says so, and the task asks.
#
# A task that asks nothing uses one core (rule: use-only-assigned-cores).  Threads that a task starts do not know the
# number: ask before starting them.

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


# How much memory a task may use to send fewer requests: the engine that runs the task says so, and the task asks.
#
# It is what is left beside the work itself, where the engine knows: a function has all its memory for one task.

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
