"""Small groups that one worker rewrites together: a table may have thousands of partitions of tiny files.

Each group would be a task of its own for the engine, and on an object store a client with connections of its own, whose
requests wait for one another.  A batch shares the client, and on a store several of its groups are rewritten at once,
because nearly all of their time is spent waiting for answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from icekeeper.machine.metering import WorkThreads
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.task import RewriteResult, RewriteTask
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

__all__ = ["RewriteBatch", "in_batches", "rewrite_batch", "small_together"]

Item = TypeVar("Item")

_SMALL_BYTES = 4 * 1024 * 1024
"""Of a group that may share a batch, as :attr:`RewriteTask.input_bytes` counts: up to fifteen tiny files."""
_BATCH_BYTES = 32 * 1024 * 1024
"""Of a batch: a third of a second's work, so that workers end together and progress is told often."""
_AT_ONCE = 8
"""Groups of a batch that are rewritten at once on a store."""
_AT_ONCE_BYTES = 8 * 1024 * 1024
"""Of data files whose rows are in memory at once; rows take several times as much there (rule 171)."""


@dataclass(frozen=True, slots=True)
class RewriteBatch:
    """Some groups of one table, at least one."""

    tasks: tuple[RewriteTask, ...]

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadsBytes`."""
        return sum(task.input_bytes for task in self.tasks)

    def in_attempt(self, attempt: int) -> RewriteBatch:
        """The same groups with the file names of that attempt."""
        return RewriteBatch(tuple(task.in_attempt(attempt) for task in self.tasks))


def in_batches(tasks: Iterable[RewriteTask]) -> list[RewriteBatch]:
    """All tasks in their order; small ones that follow one another share a batch (pure)."""
    return [RewriteBatch(tuple(batch)) for batch in small_together(tasks, lambda task: task.input_bytes)]


def small_together(groups: Iterable[Item], size_of: Callable[[Item], int]) -> list[list[Item]]:
    """All groups in their order; small ones that follow one another are together, up to the size of a batch (pure).

    ``size_of`` gives a group's bytes as :attr:`RewriteTask.input_bytes` counts them.
    """
    batches: list[list[Item]] = []
    room = 0
    for group in groups:
        size = size_of(group)
        if size > min(room, _SMALL_BYTES):
            batches.append([])
            room = _BATCH_BYTES if size <= _SMALL_BYTES else 0
        batches[-1].append(group)
        room -= size
    return batches


def rewrite_batch(batch: RewriteBatch) -> list[RewriteResult]:
    """The result of each group of a batch, in their order; never raises for one of them, as :func:`.rewrite_group`."""
    storage = Storage(batch.tasks[0].io_properties)
    if len(batch.tasks) == 1 or not any(_waits(task) for task in batch.tasks):
        return [rewrite_group(task, storage) for task in batch.tasks]
    with WorkThreads(_at_once(batch), thread_name_prefix="small-groups") as pool:
        running = [pool.submit(rewrite_group, task, storage) for task in batch.tasks]
        return [one.result() for one in running]


def _at_once(batch: RewriteBatch) -> int:
    """How many groups of the batch are in memory at once, whichever they are: at least one."""
    largest = max(sum(source.file_size_in_bytes for source in task.inputs) for task in batch.tasks)
    return max(1, min(_AT_ONCE, _AT_ONCE_BYTES // max(1, largest)))


def _waits(task: RewriteTask) -> bool:
    return not all(is_local(source.path) for source in task.inputs) or not is_local(task.outputs.folder)
