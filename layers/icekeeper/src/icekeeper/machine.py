"""What this machine gives the process: cores and memory, the limits of a container included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "limited_cores", "limited_memory", "this_machine"]

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
