"""Deletes unneeded files in batches.

Just before each batch, everything that could need a file is read again.  A file that a snapshot, a pin or a staged load
has needed since planning is kept.  Batches are deleted in parallel.  Transient failures are retried after another
check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.retry import backoff_seconds
from icekeeper.deletion.file_needs import FileNeeds
from icekeeper.errors import SwitchedOff
from icekeeper.machine.metering import WorkThreads
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import Metrics, OperationOutcome, failed
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import ComparedPath, compared, is_tidy, real_folder
from icekeeper.storage.storage import DeleteReport, Storage

Confirm: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
"""Returns the paths that are still old enough to delete."""

_PARALLEL_LOOKS = 16
# S3's limit for one DeleteObjects request; also the number of files deleted between two reads of the catalog pointer.
_BATCH = 1000
# With more batches at once, S3 returns SlowDown (its limit is 3,500 deletions per second and prefix).
_IN_FLIGHT = 8
_ATTEMPTS = 4
# The pauses between attempts are 0.8, 1.6 and 3.2 s, because the storage layer has already made shorter pauses.
_FIRST_PAUSE = 4
# After this many batches in a row without a single deletion, the store is down rather than busy.
_HOPELESS = 8
# A batch takes seconds; the rest of this time is for the outcome and the journal.
_LEAST_S = 60.0
_NO_TIME = "was not reached: this process must end"


@dataclass(slots=True)
class DeletedFiles:
    """The deleted paths, the failed paths with the reason, and the spared paths, which are needed again."""

    deleted: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    spared: list[str] = field(default_factory=list)
    stopped: SwitchedOff | None = None
    """Why the remaining files, which count as failed, were left to a later pass."""

    @property
    def failures(self) -> tuple[str, ...]:
        """At most one sentence, without a full stop: the number of failures, and one file with its reason."""
        if not self.failed:
            return ()
        if self.stopped is not None:
            return (f"{len(self.failed)} file(s) remain for a later pass: {self.stopped}",)
        path, reason = next(iter(self.failed.items()))
        return (f"{len(self.failed)} file(s) could not be deleted and remain for the next pass: {path} {reason}",)

    def in_vain(self, operation: Operation, metrics: Metrics) -> OperationOutcome | None:
        """The outcome of an operation whose deletions all failed; ``None``: a deletion succeeded, or there was none.

        Raises:
            SwitchedOff: the operation was stopped before the first.
        """
        if self.deleted or not self.failed:
            return None
        if self.stopped is not None:
            raise self.stopped
        return failed(operation, "; ".join(self.failures), metrics=metrics)


def delete_unneeded(
    context: OperationContext,
    known: LoadedTable,
    paths: Sequence[str],
    what: str,
    needs: FileNeeds,
    confirm: Confirm | None = None,
) -> DeletedFiles:
    """Delete the unneeded files among ``paths``, in batches, while this process has time and the table's switches
    allow it.

    ``what`` names the files in progress reports.  ``confirm`` is called before ``needs`` is read again, so that nothing
    delays the request after that.

    Raises:
        OperationRefused: the table was replaced meanwhile, its files must not be deleted any more, a table that
            shares files can no longer be loaded, or another run has taken the table's lease.
        MetadataUnreadable: new references cannot be read; the remaining files are kept.
        StorageError: the catalog does not answer; the remaining files are kept.
    """
    work = _Deletion(context, context.stores.storage(known), what, len(paths), needs, confirm)
    waiting = paths
    for attempt in range(_ATTEMPTS):
        if attempt:
            context.sleep(backoff_seconds(_FIRST_PAUSE + attempt - 1))
        waiting = work.attempt(waiting, links=attempt > 0)
        if not waiting or work.has_no_time or work.result.stopped is not None:
            break
    work.result.failed.update(dict.fromkeys(waiting, _NO_TIME if work.has_no_time else work.reason))
    work.report_progress()
    return work.result


@dataclass(slots=True)
class _Deletion:
    context: OperationContext
    storage: Storage
    what: str
    total: int
    needs: FileNeeds
    confirm: Confirm | None
    result: DeletedFiles = field(default_factory=DeletedFiles)
    reason: str = ""
    """The reason of the last transient failure."""
    fruitless: int = 0
    """The number of batches in a row without a single deletion."""

    @property
    def has_no_time(self) -> bool:
        """Whether no further batch may begin, because this process must end soon."""
        left_s = self.context.limits.time_left_s()
        return left_s is not None and left_s < _LEAST_S

    def attempt(self, paths: Sequence[str], *, links: bool) -> list[str]:
        """Try every path once; return the paths that failed for a transient reason.

        Without ``links``, a local file that is a symbolic link fails for such a reason, so that the check before need
        not look at every file, while threads that delete wait for the interpreter.
        """
        again: list[str] = []
        running: deque[Future[DeleteReport]] = deque()
        self.fruitless = 0
        with WorkThreads(_IN_FLIGHT, thread_name_prefix="delete") as pool:
            for start in range(0, len(paths), _BATCH):
                if len(running) == _IN_FLIGHT:
                    again += self._settle(running.popleft().result())
                if self.fruitless >= _HOPELESS or self.has_no_time:
                    again += paths[start:]
                    break
                # A worker is free, so the batch is deleted directly after this check.
                try:
                    wanted = self._unreferenced(paths[start : start + _BATCH], links=links)
                except SwitchedOff as stop:
                    self.result.stopped, self.reason = stop, str(stop)
                    again += paths[start:]
                    break
                if wanted:
                    running.append(pool.submit(self.storage.delete, wanted, links=links))
            while running:
                again += self._settle(running.popleft().result())
        return again

    def _unreferenced(self, batch: Sequence[str], *, links: bool) -> Sequence[str]:
        if self.confirm is not None:
            batch = self.confirm(batch)
        self.context.limits.require_lease()
        self.needs.look_again()
        spared = [path for path in batch if self.needs.need(path if links else _without_link(path))]
        self.result.spared += spared
        kept = set(spared)
        return [path for path in batch if path not in kept]

    def _settle(self, report: DeleteReport) -> list[str]:
        self.result.deleted += report.deleted
        for path, reason in report.failed.items():
            if path in report.transient:
                self.reason = reason
            else:
                self.result.failed[path] = reason
        self.fruitless = self.fruitless + 1 if report.transient and not report.deleted else 0
        self.report_progress()
        return sorted(report.transient)

    def report_progress(self) -> None:
        settled = len(self.result.deleted) + len(self.result.failed) + len(self.result.spared)
        self.context.progress(self.what, settled, self.total)


def _without_link(path: str) -> ComparedPath:
    """What a path names unless its last part is a symbolic link; a local file itself is not looked at."""
    folder = path.rpartition("/")[0]
    return compared(path, is_plain=is_tidy(path) and real_folder(folder) == folder)


def still_old(storage: Storage, paths: Iterable[str], older_than_ms: int) -> list[ListedObject]:
    """The files among ``paths`` that still exist in the store and were modified before ``older_than_ms``.

    Raises:
        StorageError: the store does not answer.
    """
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="orphan-look") as pool:
        found = pool.map(storage.status, paths)
        return [f for f in found if f is not None and f.modified_ms is not None and f.modified_ms < older_than_ms]
