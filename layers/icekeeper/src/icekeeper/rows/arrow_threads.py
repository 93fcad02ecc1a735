"""Arrow's own threads inside a task, never more of them than the cores that the task was given (rule 134)."""

from __future__ import annotations

import pyarrow as pa

from icekeeper.machine.resources import task_cores

__all__ = ["arrow_threads"]


def arrow_threads() -> bool:
    """What this task passes to Arrow as ``use_threads``.

    Arrow has one pool of threads for the whole process, as large as the machine has cores.  A worker runs one task at a
    time, so the pool is made as large as the task's share.
    """
    cores = task_cores()
    if cores > 1 and pa.cpu_count() != cores:
        pa.set_cpu_count(cores)
    return cores > 1
