"""Small groups that one worker rewrites together: a table may have thousands of partitions of tiny files.

Each group would be a task of its own for the engine, and on an object store a client with connections of its own, whose
requests wait for one another.  A batch shares the client, and on a store several of its groups are rewritten at once,
because nearly all of their time is spent waiting for answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.task import RewriteResult, RewriteTask
from icekeeper.request_count import WorkThreads
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

__all__ = ["RewriteBatch", "in_batches", "rewrite_batch"]

_SMALL_BYTES = 4 * 1024 * 1024
"""Of a group that may share a batch, as :attr:`RewriteTask.input_bytes` counts: up to fifteen tiny files."""
_BATCH_BYTES = 32 * 1024 * 1024
"""Of a batch: a third of a second's work, so that workers end together and progress is told often."""
_AT_ONCE = 8
"""Groups of a batch that are rewritten at once on a store; each holds some MB of rows."""


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
    batches: list[list[RewriteTask]] = []
    room = 0
    for task in tasks:
        size = task.input_bytes
        if size > min(room, _SMALL_BYTES):
            batches.append([])
            room = _BATCH_BYTES if size <= _SMALL_BYTES else 0
        batches[-1].append(task)
        room -= size
    return [RewriteBatch(tuple(batch)) for batch in batches]


def rewrite_batch(batch: RewriteBatch) -> list[RewriteResult]:
    """The result of each group of a batch, in their order; never raises for one of them, as :func:`.rewrite_group`."""
    storage = Storage(batch.tasks[0].io_properties)
    if len(batch.tasks) == 1 or not any(_waits(task) for task in batch.tasks):
        return [rewrite_group(task, storage) for task in batch.tasks]
    with WorkThreads(_AT_ONCE, thread_name_prefix="small-groups") as pool:
        running = [pool.submit(rewrite_group, task, storage) for task in batch.tasks]
        return [one.result() for one in running]


def _waits(task: RewriteTask) -> bool:
    return not all(is_local(source.path) for source in task.inputs) or not is_local(task.outputs.folder)
