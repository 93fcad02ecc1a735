"""Lists the files that a task is going to write, as far as that is known before it runs (pure).

The names are recorded beforehand, so that no orphan pass takes the files for orphans, and what a process leaves that
dies can be removed without a listing.  How many sorted outputs there will be depends on the sizes that they turn out to
have, so twice as many names are recorded as should be needed.  Rows that are dealt out to partitions go into folders
that only the worker finds out: such a name protects its file in any folder, but only an orphan pass can find the file.
"""

from __future__ import annotations

from collections.abc import Iterator

from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.storage.attempt_names import PlannedFile

__all__ = ["planned_files", "planned_sorted_files"]

_SPARE_NAMES = 2


def planned_files(task: RewriteTask) -> Iterator[PlannedFile]:
    """The files that a task may write when one worker does it."""
    if task.recipe is not None:
        size = sum(source.file_size_in_bytes for source in task.inputs)
        yield from planned_sorted_files(task, 0, task.recipe.output_count(size))
        return
    yield from (task.outputs.file(number) for number in range(task.output_count))
    if task.routing is not None:
        yield from (task.outputs.file_of_any_partition(number) for number in range(task.most_partitions))


def planned_sorted_files(task: RewriteTask, first: int, expected: int) -> Iterator[PlannedFile]:
    """The names for about ``expected`` sorted files, numbered from ``first``."""
    return (task.outputs.file(first + number) for number in range(2 * expected + _SPARE_NAMES))
