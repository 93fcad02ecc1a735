"""What stands between a list of files and their deletion (DESIGN 6.4).

Just before each batch the catalog's pointer is read again: a file that some new snapshot came to reference between
planning and now is spared, and so is what a pin or a staged load holds by now.  Batches are deleted in parallel, and
what failed for a reason that passes is tried again, after yet another look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.transaction import backoff_seconds
from icekeeper.deletion.held_files import HeldFiles
from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.reachability import References, reachable_files
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import gc_enabled
from icekeeper.storage.paths import is_under, leads_out, normalise
from icekeeper.storage.storage import DeleteReport

__all__ = ["GC_DISABLED", "Confirm", "DeletedFiles", "delete_unreferenced", "owned_locations"]

GC_DISABLED = "gc.enabled is false: this table's files must not be deleted"

Confirm: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
"""Which of some paths may still go, for all that their own table does not know."""

# S3's limit for one DeleteObjects request; also how much is deleted between two looks at the pointer.
_BATCH = 1000
# So many requests keep a store busy; more only make S3 answer SlowDown (3,500 deletions a second and prefix).
_IN_FLIGHT = 8
_ATTEMPTS = 4
# The pauses between attempts are 0.8, 1.6 and 3.2 s: storage has waited and tried again by itself before.
_FIRST_PAUSE = 4
# So many batches in a row of which nothing could be deleted: the store is down, not busy.
_HOPELESS = _IN_FLIGHT


@dataclass(slots=True)
class DeletedFiles:
    """Paths really deleted, those that could not be, with the reason, and those that are needed again."""

    deleted: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    spared: list[str] = field(default_factory=list)

    @property
    def settled(self) -> int:
        return len(self.deleted) + len(self.failed) + len(self.spared)


def owned_locations(metadata: TableMetadata) -> tuple[str, ...]:
    """Where this table's files live; nothing outside is ever deleted.  Nested locations are listed once.

    A folder below one of them that is a symbolic link to somewhere else is not owned: who else uses it is not known.
    """
    locations: list[str] = []
    for location in sorted({metadata.location, metadata.data_location, metadata.metadata_directory}, key=len):
        if not any(is_under(location, other) or leads_out(location, other) for other in locations):
            locations.append(location)
    return tuple(locations)


def delete_unreferenced(
    context: OperationContext,
    known: LoadedTable,
    paths: Sequence[str],
    what: str,
    references: References,
    confirm: Confirm | None = None,
) -> DeletedFiles:
    """Delete files that none of ``references`` needs, batch by batch, each after another look.

    Whatever else the table references by now, protects its files: also a snapshot that a commit should have removed.
    ``confirm`` is asked before that look, which so stays the last thing before a request.  Memory grows by a few
    pointers per path.

    Raises:
        OperationRefused: the table was replaced meanwhile, or its files must not be deleted any more.
        MetadataUnreadable: new references cannot be read; what was not yet deleted stays.
        StorageError: the catalog does not answer; what was not yet deleted stays.
    """
    work = _Deletion(context, known, what, len(paths), references, confirm)
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
    """One list of files on its way out."""

    def __init__(
        self,
        context: OperationContext,
        known: LoadedTable,
        what: str,
        total: int,
        references: References,
        confirm: Confirm | None,
    ) -> None:
        self.result = DeletedFiles()
        self._confirm = confirm
        self._context, self._what, self._total = context, what, total
        self._storage = context.storage(known)
        self._guard = _Guard(context, known, references)
        self._reason = ""
        self._fruitless = 0

    def attempt(self, paths: Sequence[str]) -> list[str]:
        """Every path once; those that may go when tried again later."""
        again: list[str] = []
        running: deque[Future[DeleteReport]] = deque()
        self._fruitless = 0
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="delete") as pool:
            for start in range(0, len(paths), _BATCH):
                if len(running) == _IN_FLIGHT:
                    again += self._settle(running.popleft().result())
                if self._fruitless >= _HOPELESS:
                    again += paths[start:]
                    break
                # A worker is free: what is found to be unreferenced now is deleted now.
                wanted = self._unreferenced(paths[start : start + _BATCH])
                if wanted:
                    running.append(pool.submit(self._storage.delete, wanted))
            while running:
                again += self._settle(running.popleft().result())
        return again

    def give_up(self, paths: Sequence[str]) -> None:
        self.result.failed.update(dict.fromkeys(paths, self._reason))
        self._tell()

    def _unreferenced(self, batch: Sequence[str]) -> Sequence[str]:
        if self._confirm is not None:
            batch = self._confirm(batch)
        referenced, held = self._guard.referenced_since(), self._guard.held
        spared = [path for path in batch if normalise(path) in referenced or held.hold(path)]
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
        self._tell()
        return sorted(report.transient)

    def _tell(self) -> None:
        self._context.progress(self._what, self.result.settled, self._total)


class _Guard:
    """Follows the pointer and collects every reference that came after those already known."""

    def __init__(self, context: OperationContext, known: LoadedTable, references: References) -> None:
        self._context = context
        self._uuid = known.metadata.uuid
        self._references = references
        self._seen: str | None = None
        self._referenced: set[str] = set()
        self.held = HeldFiles(context.memory, context.storage(known).read)
        """What pins and staged loads hold, as of the last :meth:`referenced_since`."""

    def referenced_since(self) -> set[str]:
        """Normalised paths."""
        now = self._context.load()
        if now.metadata.uuid != self._uuid:
            raise OperationRefused(f"table {now.name} was replaced by another one; nothing more was deleted")
        if not gc_enabled(now.metadata):
            raise OperationRefused(f"{GC_DISABLED}; nothing more was deleted")
        if now.metadata_location != self._seen:
            new = reachable_files(self._context.reader(now), now.metadata_location, self._references)
            self._referenced.update(map(normalise, new))
            self._seen = now.metadata_location
        self.held.look(now.metadata)
        return self._referenced
