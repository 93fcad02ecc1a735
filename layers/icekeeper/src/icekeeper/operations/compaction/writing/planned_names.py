"""Which files a task is going to write, as far as that is known before it runs (pure).

Recorded beforehand, so that nobody takes them for orphans, and a process that dies leaves files which can be cleaned
without a listing.  Sorted outputs are cut by the size they turn out to have: here are twice as many names as they
should need.  Rows that are dealt out to partitions go into folders that only the worker finds out: such a name protects
its file in any folder, but only an orphan pass finds it, as it does any file beyond.
"""

from __future__ import annotations

from collections.abc import Iterator

from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.storage.attempt_names import PlannedFile

__all__ = ["planned_files", "planned_sorted_files"]

_SPARE_NAMES = 2


def planned_files(task: RewriteTask) -> Iterator[PlannedFile]:
    """What one worker writes."""
    if task.recipe is not None:
        size = sum(source.file_size_in_bytes for source in task.inputs)
        yield from planned_sorted_files(task, 0, task.recipe.output_count(size))
        return
    yield from (task.outputs.file(number) for number in range(task.output_count))
    if task.routing is not None:
        yield from (task.outputs.file_of_any_partition(number) for number in range(task.most_partitions))


def planned_sorted_files(task: RewriteTask, first: int, expected: int) -> Iterator[PlannedFile]:
    """What is written into about ``expected`` sorted files, numbered from ``first``."""
    return (task.outputs.file(first + number) for number in range(2 * expected + _SPARE_NAMES))
