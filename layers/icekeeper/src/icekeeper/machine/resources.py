"""Memory, cores and environment variables of this process, and how much of them a task may use.

Importing this module sets how memory is allocated.  Arrow reads its variables when it is imported, so this module must
be imported first.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Container, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

# By default, jemalloc has four arenas per core, and an arena cannot use memory that another arena has freed; freed
# memory returns to the system after ten seconds (platform: arrow-allocators).
_JEMALLOC_OPTIONS = "narenas:2,dirty_decay_ms:150,muzzy_decay_ms:0"


def choose_allocator(environment: MutableMapping[str, str], system_names: Container[str]) -> None:
    """Have Arrow use jemalloc, unless the environment chooses an allocator (platform: arrow-allocators).

    Only wheels for the GNU C library contain jemalloc; ``system_names`` are those of ``os.confstr`` and show whether
    this is that library.
    """
    if "CS_GNU_LIBC_VERSION" in system_names:
        environment.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
        environment.setdefault("JE_ARROW_MALLOC_CONF", _JEMALLOC_OPTIONS)


choose_allocator(os.environ, getattr(os, "confstr_names", ()))

# M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_ARENA_MAX of malloc.h (platform: arrow-allocators).
_GLIBC_OPTIONS = {-3: 2 * 1024 * 1024, -1: 2 * 1024 * 1024, -8: 2}


def limit_freed_memory(system_names: Container[str]) -> bool:
    """Have the GNU C library keep at most 4 MB of freed memory at the end of two arenas; false for any other C library.

    Blocks from 2 MB on return to the system as soon as they are free.  Smaller blocks must not: zstd frees 1 to 2 MB
    after each page, and a return to the system costs more than the compression of some pages.  ``system_names`` are
    those of ``os.confstr``.
    """
    if "CS_GNU_LIBC_VERSION" not in system_names:
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(option, value) for option, value in _GLIBC_OPTIONS.items())


limit_freed_memory(getattr(os, "confstr_names", ()))

_NEW_OBJECTS = 50_000


def search_cycles_seldom() -> None:
    """Run the garbage collector after every 50,000 new objects; a higher limit, or 0, stays.

    The default is 700.  A pass makes millions of manifest entries that live long and hold no cycles: the search for
    cycles took a tenth of its CPU.
    """
    new, *others = gc.get_threshold()
    if 0 < new < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *others)


def variables_set(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose values are not blank.

    A template, compose file or shell script can often leave a variable empty, but not unset; ``sam local invoke`` turns
    ``AWS::NoValue`` into an empty variable.
    """
    return {name: value for name, value in environment.items() if value.strip()}


# Linux, "Control Group v2", cpu.max and memory.max; a container sees its own limits there.
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a process may use."""

    cores: int
    memory_bytes: int


def this_machine() -> Machine:
    """Cores and memory that this process may use now, within the limits of its container or function."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    function_mb = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")  # AWS Lambda, "Runtime environment variables"
    if function_mb.isdecimal():
        memory = min(memory, int(function_mb) * 1024 * 1024)
    return Machine(limited_cores(affinity, _limit("cpu.max")), limited_memory(memory, _limit("memory.max")))


def limited_cores(cores: int, cpu_max: str) -> int:
    """The cores that a ``cpu.max`` such as ``150000 100000`` allows, rounded up; all for ``max`` or no text."""
    quota, _, period = cpu_max.partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return max(1, cores)
    return max(1, min(cores, -(-int(quota) // int(period))))


def limited_memory(memory_bytes: int, memory_max: str) -> int:
    """The bytes that a ``memory.max`` allows; all for ``max`` or no text."""
    return min(memory_bytes, int(memory_max)) if memory_max.isdecimal() else memory_bytes


def _limit(name: str) -> str:
    try:
        return (_CGROUP / name).read_text().strip()
    except OSError:
        return ""


# An engine sets the cores and the spare memory of the tasks that it runs.  Threads that a task starts do not inherit
# them: read the values before starting threads.
_CORES: ContextVar[int] = ContextVar("icekeeper_task_cores", default=1)
_SPARE: ContextVar[int] = ContextVar("icekeeper_spare_bytes", default=0)


def task_cores() -> int:
    """The number of cores that the running task may use; 1 outside a task."""
    return _CORES.get()


@contextmanager
def on_cores(cores: int) -> Iterator[None]:
    """Inside the block, this thread runs a task that may use ``cores``."""
    before = _CORES.set(max(1, cores))
    try:
        yield
    finally:
        _CORES.reset(before)


def spare_bytes() -> int:
    """Bytes that the running task may use beyond its work, to send fewer requests; 0 if the engine does not know."""
    return _SPARE.get()


@contextmanager
def with_spare_bytes(spare: int) -> Iterator[None]:
    """Inside the block, this thread runs a task that may use ``spare`` bytes beyond its work."""
    before = _SPARE.set(max(0, spare))
    try:
        yield
    finally:
        _SPARE.reset(before)
