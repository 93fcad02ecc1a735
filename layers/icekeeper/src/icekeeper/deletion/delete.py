"""Deletes files that nobody needs, in batches.

Just before each batch, everything that could need a file is read again.  A file that a snapshot, a pin or a staged load
needs since planning is kept.  Batches are deleted in parallel.  Transient failures are tried again after another check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.resolve_outcome import backoff_seconds
from icekeeper.deletion.file_needs import FileNeeds
from icekeeper.machine.metering import WorkThreads
from icekeeper.pass_context.context import OperationContext
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.storage import DeleteReport, Storage

Confirm: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
"""Returns those of the paths that are still old enough to delete."""

_PARALLEL_LOOKS = 16
# S3's limit for one DeleteObjects request; also the number of files deleted between two reads of the catalog pointer.
_BATCH = 1000
_ATTEMPTS = 4
# The pauses between attempts are 0.8, 1.6 and 3.2 s: the storage layer has retried with its own pauses before.
_FIRST_PAUSE = 4
# After this many batches in a row without a single deletion, the store is down rather than busy.
_HOPELESS = 8


@dataclass(slots=True)
class DeletedFiles:
    """The deleted paths, the failed ones with the reason, and the spared ones, which are needed again."""

    deleted: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    spared: list[str] = field(default_factory=list)

    @property
    def settled(self) -> int:
        return len(self.deleted) + len(self.failed) + len(self.spared)

    @property
    def failures(self) -> tuple[str, ...]:
        """At most one sentence, without a full stop: the number of failures, and one file with its reason."""
        if not self.failed:
            return ()
        path, reason = next(iter(self.failed.items()))
        return (f"{len(self.failed)} file(s) could not be deleted and wait for the next pass: {path} {reason}",)

    @property
    def is_in_vain(self) -> bool:
        """Whether deletions failed and none succeeded."""
        return bool(self.failed) and not self.deleted


def delete_unneeded(
    context: OperationContext,
    known: LoadedTable,
    paths: Sequence[str],
    what: str,
    needs: FileNeeds,
    confirm: Confirm | None = None,
) -> DeletedFiles:
    """Delete those of the paths that nobody needs, in batches.

    ``what`` names the files in progress reports.  ``confirm`` is called before ``needs`` is read again, so that nothing
    comes between that reading and the request.

    Raises:
        OperationRefused: the table was replaced meanwhile, its files must not be deleted any more, a table that
            shares files can no longer be loaded, or another run has taken the table's lease.
        MetadataUnreadable: new references cannot be read; the remaining files are kept.
        StorageError: the catalog does not answer; the remaining files are kept.
    """
    work = _Deletion(context, known, what, len(paths), needs, confirm)
    waiting = paths
    for attempt in range(_ATTEMPTS):
        if attempt:
            context.sleep(backoff_seconds(_FIRST_PAUSE + attempt - 1))
        waiting = work.attempt(waiting)
        if not waiting:
            break
    work.give_up(waiting)
    return work.result


class _Deletion:
    def __init__(
        self,
        context: OperationContext,
        known: LoadedTable,
        what: str,
        total: int,
        needs: FileNeeds,
        confirm: Confirm | None,
    ) -> None:
        self.result = DeletedFiles()
        self._confirm = confirm
        self._context, self._what, self._total = context, what, total
        self._storage = context.storage(known)
        self._needs = needs
        self._reason = ""
        self._fruitless = 0

    def attempt(self, paths: Sequence[str]) -> list[str]:
        """Try every path once; return those that failed for a transient reason."""
        again: list[str] = []
        running: deque[Future[DeleteReport]] = deque()
        self._fruitless = 0
        in_flight = self._context.policy.delete_threads
        with WorkThreads(in_flight, thread_name_prefix="delete") as pool:
            for start in range(0, len(paths), _BATCH):
                if len(running) == in_flight:
                    again += self._settle(running.popleft().result())
                if self._fruitless >= _HOPELESS:
                    again += paths[start:]
                    break
                # A worker is free, so the batch is deleted directly after this check.
                wanted = self._unreferenced(paths[start : start + _BATCH])
                if wanted:
                    running.append(pool.submit(self._storage.delete, wanted))
            while running:
                again += self._settle(running.popleft().result())
        return again

    def give_up(self, paths: Sequence[str]) -> None:
        self.result.failed.update(dict.fromkeys(paths, self._reason))
        self._report_progress()

    def _unreferenced(self, batch: Sequence[str]) -> Sequence[str]:
        if self._confirm is not None:
            batch = self._confirm(batch)
        self._context.require_lease()
        self._needs.look_again()
        spared = [path for path in batch if self._needs.need(path)]
        self.result.spared += spared
        kept = set(spared)
        return [path for path in batch if path not in kept]

    def _settle(self, report: DeleteReport) -> list[str]:
        self.result.deleted += report.deleted
        for path, reason in report.failed.items():
            if path in report.transient:
                self._reason = reason
            else:
                self.result.failed[path] = reason
        self._fruitless = self._fruitless + 1 if report.transient and not report.deleted else 0
        self._report_progress()
        return sorted(report.transient)

    def _report_progress(self) -> None:
        self._context.progress(self._what, self.result.settled, self._total)


def still_old(storage: Storage, paths: Iterable[str], older_than_ms: int) -> list[ListedObject]:
    """Those of the files that still exist in the store and were modified before ``older_than_ms``.

    Raises:
        StorageError: the store does not answer.
    """
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="orphan-look") as pool:
        found = pool.map(storage.status, paths)
        return [f for f in found if f is not None and f.modified_ms is not None and f.modified_ms < older_than_ms]
