"""What every operation is handed: the seams and the settings of one pass over one table."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.clock import Clock
from icekeeper.commit.snapshot import SnapshotWriter
from icekeeper.commit.transaction import Committed, PreparedCommit, commit_with_retries
from icekeeper.errors import CommitStateUnknown, MaintenanceError, PolicyError, TableUnsupported
from icekeeper.metadata.document import MAIN, Snapshot, TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import Nothing, TableName
from icekeeper.pass_context.allowed_locations import require_allowed
from icekeeper.pass_context.footprint import Footprint, data_folders
from icekeeper.pass_context.jobs import Job, running_job
from icekeeper.pass_context.other_entries import metadata_of_other_entries
from icekeeper.pass_context.store_time import StoreTime
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.state.store import StateStore
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.attempt_names import is_repeated
from icekeeper.storage.sources import FileSource
from icekeeper.storage.storage import Storage
from icekeeper.storage.store_clock import StoreClock, store_now_ms

__all__ = ["Engine", "OperationContext", "Progress", "branch_head", "require_writable", "silent", "stopwatch"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")

Progress = Callable[[str, int, int], None]
"""``(what, done, total)``, called as work goes on."""

WRITABLE_FORMAT_VERSIONS = (1, 2, 3)


class Engine(Protocol):
    """Runs a pure, picklable work unit over tasks, here or elsewhere.

    What writes files, a task or a part, has a method ``in_attempt``: an engine that may begin it more than once tells
    it which attempt this is, each number once, so that attempts never touch each other's files.
    """

    @property
    def name(self) -> str: ...

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """Results in the order of ``tasks``; ``on_done`` is told how many are finished.

        Raises:
            StorageError: the engine itself broke; which tasks ran is not known.
        """
        ...

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """Send what ``split`` makes of the tasks to parts, by number, and ``merge`` what each part got.

        Results are in the order of ``parts``; a part that got nothing is merged too.  The items of a part come in any
        order, one at a time, and are never all in memory.  ``on_done`` counts tasks and then parts.

        Raises:
            StorageError: the engine itself broke; which work ran is not known.
        """
        ...


def silent(what: str, done: int, total: int) -> None:
    """Progress for nobody."""


@dataclass(slots=True)
class OperationContext:
    """One pass over one table; operations load the table themselves, so that each sees the newest head."""

    catalog: Catalog
    table: TableName
    resolved: ResolvedPolicy
    state: StateStore
    clock: Clock
    """This machine's; how old something is, :meth:`now_ms` says."""
    run_id: str
    engine: Engine
    dry_run: bool = False
    progress: Progress = silent
    sleep: Callable[[float], None] = time.sleep
    store_clock: StoreClock = store_now_ms
    memory: TableMemory = field(init=False)
    """What is remembered about this table; known when the pass has loaded it."""
    orphan_candidates: FileSource | None = None
    """What orphan removal looks at instead of listing: what a listing of this very pass has found."""
    only_lists: bool = False
    """Whether another process deletes what this one lists, and is asked there whether it may."""
    other_catalog: Callable[[str, str], Catalog | None] = lambda name, warehouse: None
    """Opens another catalog that is served here, by its name and warehouse; ``None`` where it cannot be opened."""
    footprint: Footprint = field(default_factory=Footprint)
    """Where this pass has seen files of the table."""
    store_time: StoreTime = field(init=False)
    _job: Job | None = None
    _storages: dict[tuple[tuple[str, str], ...], Storage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store_time = StoreTime(self.clock, self.store_clock)

    @property
    def policy(self) -> Policy:
        return self.resolved.policy

    def load(self) -> LoadedTable:
        """The newest state of the table."""
        return self.catalog.load(self.table)

    def storage(self, loaded: LoadedTable) -> Storage:
        """The table's files; one client per set of credentials."""
        key = tuple(sorted(loaded.io_properties.items()))
        if key not in self._storages:
            self._storages[key] = Storage(loaded.io_properties)
        return self._storages[key]

    def now_ms(self, loaded: LoadedTable) -> int:
        """Epoch milliseconds by the clock of the table's store."""
        return self.store_time.now_ms(self.storage(loaded), loaded.metadata.location, may_write=not self.dry_run)

    def trusted_now_ms(self, loaded: LoadedTable, period_ms: int, key: str) -> int:
        """As :meth:`now_ms`, for what deletes; ``key`` is the policy key that says how long to wait.

        Raises:
            OperationRefused: our clock and the store's differ by more than that.
        """
        now_ms = self.now_ms(loaded)
        skew = self.store_time.skew(self.storage(loaded), loaded.metadata.location, may_write=not self.dry_run)
        self.store_time.require_trusted(skew, period_ms, key)
        return now_ms

    def memory_of(self, loaded: LoadedTable) -> TableMemory:
        """What is remembered about a table, by the clock of its store."""
        return TableMemory(self.state, identity_of(self.catalog, loaded), partial(self.now_ms, loaded))

    def reader(self, loaded: LoadedTable) -> TableReader:
        """Reads what the table's metadata points at, and takes note of where its files lie."""
        metadata = loaded.metadata
        return TableReader(metadata, self.storage(loaded).read, partial(self.footprint.see, own=data_folders(metadata)))

    def require_allowed(self, paths: Iterable[str]) -> None:
        """Refuse work on files or folders outside the locations that the deployment allows this table.

        Raises:
            OperationRefused: names the first one; nothing was touched.
        """
        require_allowed(paths, self.resolved.allowed_prefixes)

    def snapshot_writer(self, head: LoadedTable) -> SnapshotWriter:
        """A writer for one attempt to commit to the policy's branch of this head."""
        return SnapshotWriter(
            head.metadata,
            self.reader(head),
            self.storage(head).write,
            lambda paths: self.discard(head, paths),
            self.policy.branch,
            self.run_id,
            self.now_ms(head),
        )

    @contextmanager
    def job(self, operation: Operation, planned: LoadedTable, snapshot_id: int) -> Iterator[Job]:
        """Everything between plan and report of a rewrite: its planning snapshot is pinned, and prolonged by progress.

        Raises:
            StorageError: the state store cannot be written; no work was begun.
        """
        name = f"{self.run_id}:{uuid.uuid4().hex[:8]}:{operation.value}"
        lease_ms, report = 2 * self.policy.job_timeout_s * 1000, self.progress
        with running_job(self.memory, name, planned, snapshot_id, lease_ms=lease_ms) as job:

            def progress(what: str, done: int, total: int) -> None:
                job.keep_alive()
                report(what, done, total)

            self._job, self.progress = job, progress
            try:
                yield job
            finally:
                self._job, self.progress = None, report

    def will_write(self, records: Iterable[str]) -> None:
        """Told what a running job is going to write, before it does: paths, or records of planned files.

        Raises:
            StorageError: it could not be recorded, so it must not be written.
        """
        if self._job is not None:
            self._job.will_write(records)

    def commit(
        self, head: LoadedTable, prepare: Callable[[LoadedTable], PreparedCommit | Nothing]
    ) -> Committed | Nothing:
        """Prepare and swap on the newest head until it lands; what an attempt staged that did not land is removed.

        Raises:
            MaintenanceError: as :func:`commit_with_retries` does.
        """
        return commit_with_retries(
            self.catalog,
            head,
            prepare,
            max_retries=self.policy.max_commit_retries,
            discard=lambda paths: self.discard(head, paths),
            pinned_metadata=lambda: (
                *self.memory.pinned_metadata(),
                *metadata_of_other_entries(self.state, self.catalog, head, self.other_catalog),
            ),
            sleep=self.sleep,
        )

    def commit_outputs(
        self,
        planned: LoadedTable,
        prepare: Callable[[LoadedTable], PreparedCommit | Nothing],
        outputs: Sequence[str],
    ) -> Committed | Nothing:
        """Commit what a rewrite of ``planned`` wrote; outputs go when nothing landed, and stay when they may be live.

        ``outputs`` are what workers say they wrote; what earlier attempts left is cleaned from the job's record.

        Raises:
            MaintenanceError: as :func:`commit_with_retries` does.
        """
        try:
            if self._job is not None:
                self._job.renew()
            return self.commit(self.load(), prepare)
        except CommitStateUnknown:
            if self._job is not None:
                self._job.may_have_landed()
            raise
        except MaintenanceError:
            self.discard(planned, outputs)
            raise
        finally:
            if self._job is not None and is_repeated(outputs):
                self._job.leaves_files()

    def discard(self, loaded: LoadedTable, paths: Iterable[str]) -> None:
        """Remove files that certainly no commit names; what cannot be removed is left to a later pass."""
        if self.dry_run:
            return
        report = self.storage(loaded).delete(paths)
        if report.failed and self._job is not None:
            self._job.leaves_files()


def require_writable(metadata: TableMetadata) -> None:
    """Raises TableUnsupported for tables whose format this version must not write (ICEBERG-RULES 19)."""
    if metadata.format_version not in WRITABLE_FORMAT_VERSIONS:
        raise TableUnsupported(
            f"format version {metadata.format_version} is not maintained by this version of Icekeeper; "
            "the table was left alone"
        )


def branch_head(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """The head of the branch that a policy names; ``None`` while the table has no snapshot on ``main``.

    Raises:
        PolicyError: there is no such branch.
    """
    ref = metadata.refs.get(branch)
    if (ref is None and branch != MAIN) or (ref is not None and ref.type != "branch"):
        kind = "a tag" if ref is not None else "no branch of this table"
        branches = sorted(name for name, known in metadata.refs.items() if known.type == "branch")
        raise PolicyError(
            f"policy key branch names '{branch}', which is {kind}; branches are: {', '.join(branches) or 'none yet'}"
        )
    return metadata.head(branch)


@contextmanager
def stopwatch() -> Iterator[Callable[[], int]]:
    """Whole milliseconds since entering."""
    started = time.perf_counter()
    yield lambda: int((time.perf_counter() - started) * 1000)
