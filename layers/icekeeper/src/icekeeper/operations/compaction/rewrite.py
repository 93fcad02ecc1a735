"""The work unit of compaction: a task in, written files or an error out; run by local processes or by Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from icekeeper.errors import FileUnreadable, MaintenanceError, OutputUnproved, RowsNotKept
from icekeeper.model import DataFile
from icekeeper.operations.compaction.clustering.work import write_clustered
from icekeeper.operations.compaction.partition_rows import makes_fewer_files, write_partitions
from icekeeper.operations.compaction.proven_write import write_proven
from icekeeper.operations.compaction.task import RewriteResult, RewriteTask, Routing
from icekeeper.operations.compaction.writing.even_files import write_evenly
from icekeeper.rows.apply_deletes import deleted_rows_of
from icekeeper.rows.read import Tally, unreadable_files
from icekeeper.storage.storage import Storage

__all__ = ["rewrite_group"]


def rewrite_group(task: RewriteTask, storage: Storage | None = None) -> RewriteResult:
    """Rewrite the live rows of one task's inputs: copied, as they come, sorted, or dealt out to partitions.

    What went in and what came out is compared before anything is reported as written.  ``storage`` is one that others
    use as well; ``None``: the task has its own.
    Never raises for what concerns only this group: the result carries the error.
    """
    started = time.perf_counter()
    work = _Work(task, storage or Storage(task.io_properties))
    error: str | None = None
    unreadable: Mapping[str, str] = {}
    try:
        work.run()
    except (RowsNotKept, OutputUnproved) as problem:
        error = str(problem)
    except FileUnreadable as problem:
        error, unreadable = str(problem), unreadable_files(task, work.storage)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    return RewriteResult(
        group_id=task.group_id,
        written=() if error or work.files is None else work.files,
        rows_read=work.tally.read,
        rows_deleted=work.tally.deleted,
        bytes_copied=work.bytes_copied,
        bytes_unread=work.bytes_unread,
        spec_id=None if work.routing is None else work.routing.spec_id,
        seconds=time.perf_counter() - started,
        error=error,
        unreadable=unreadable,
        too_large=work.files is None and error is None,
    )


@dataclass(slots=True)
class _Work:
    """One attempt at a task, and what has come of it so far."""

    task: RewriteTask
    storage: Storage
    tally: Tally = field(default_factory=Tally)
    routing: Routing | None = None
    bytes_copied: int = 0
    bytes_unread: int = 0
    files: tuple[DataFile, ...] | None = ()
    """``None``: the rows must be sorted and are more than this worker can hold."""

    def run(self) -> None:
        task = self.task
        deletes = deleted_rows_of(task, self.storage)
        if task.copying is not None:
            # Workers that only decode start without it, and without Thrift.
            from icekeeper.operations.compaction.copying.work import write_copied

            copied = write_copied(task, task.copying, deletes, self.storage)
            if copied is not None:
                self.files, self.tally, self.bytes_copied = tuple(copied.files), copied.tally, copied.bytes_copied
                self.bytes_unread = copied.bytes_unread
                return
        if task.routing is not None and makes_fewer_files(task, task.routing, self.storage):
            self.routing = task.routing
        self.files = write_proven(task, self.storage, self.tally, self._write, deletes)

    def _write(self, rows: Iterator[pa.RecordBatch]) -> tuple[DataFile, ...] | None:
        if self.task.recipe is not None:
            return write_clustered(rows, self.task, self.task.recipe, self.storage)
        if self.routing is not None:
            return write_partitions(rows, self.task, self.routing, self.storage)
        return write_evenly(rows, self.task, self.storage)
