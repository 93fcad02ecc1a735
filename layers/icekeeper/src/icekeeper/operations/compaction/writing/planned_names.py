"""Which files a task is going to write, as far as that is known before it runs (pure).

Recorded beforehand, so that a process that dies leaves files which can be cleaned without a listing.  Sorted outputs
are cut by the size they turn out to have: here are twice as many names as they should need.  Rows that are dealt out
to partitions go under paths that only the worker finds out; those, and any file beyond, an orphan pass finds.
"""

from __future__ import annotations

from collections.abc import Iterator

from icekeeper.operations.compaction.task import RewriteTask

__all__ = ["planned_names", "planned_sorted_names"]

_SPARE_NAMES = 2


def planned_names(task: RewriteTask) -> Iterator[str]:
    """What one worker writes."""
    if task.recipe is None:
        return (task.outputs.path(number) for number in range(task.output_count))
    size = sum(source.file_size_in_bytes for source in task.inputs)
    return planned_sorted_names(task, 0, task.recipe.output_count(size))


def planned_sorted_names(task: RewriteTask, first: int, expected: int) -> Iterator[str]:
    """What is written into about ``expected`` sorted files, numbered from ``first``."""
    return (task.outputs.path(first + number) for number in range(2 * expected + _SPARE_NAMES))
