"""What every operation of a pass is handed: catalog, stores, engine, state, settings, a protected job."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.conflict_detection import GroupClaim, PlanningState, RebaseResult, rebase
from icekeeper.commit.snapshot import FileReplacement, SnapshotWriter
from icekeeper.commit.transaction import Committed, CommitTerms, commit_with_retries, patience_of
from icekeeper.engines.choose import AutoEngine
from icekeeper.engines.engine import Engine
from icekeeper.errors import CommitStateUnknown, MaintenanceError, PlanStale, StorageError
from icekeeper.machine.clock import Clock, steady_s
from icekeeper.machine.metering import RequestCount, RequestKind, counting, current_count
from icekeeper.metadata.document import TableMetadata, require_writable, table_digest
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import Nothing, TableName
from icekeeper.pass_context.metadata_listing import metadata_of_other_entries, newer_metadata
from icekeeper.pass_context.planned_table import PlannedTable
from icekeeper.pass_context.stores import Footprint, MetadataCache, Stores, data_folders, shared_reads
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.report.activity import Progress, silent
from icekeeper.state.held_lease import HeldLease
from icekeeper.state.store import IdleSince, LoadOrigin, LoadState, Pin, PinKind, StagedLoad, StateStore
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.paths import is_repeated
from icekeeper.storage.storage import FileSource, Storage, StoreClock, store_now_ms

# An engine whose workers' requests are counted here: they come back with the results, from whatever machine.

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")
Counts = Mapping[RequestKind, int]


class _Counted(NamedTuple):
    """What work gave, and the requests that it took."""

    result: Any
    counts: Counts


class CountedEngine:
    """The same engine; what its work sends is added to the count that is open where the work is given to it.

    Of work that failed nothing is counted.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def name(self) -> str:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._engine.name

    @property
    def reason(self) -> str | None:
        """Why this engine did the work; ``None``: somebody named it."""
        return self._engine.reason if isinstance(self._engine, AutoEngine) else None

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return _added(self._engine.map(_CountedTask(function), tasks, on_done))

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return _added(self._engine.exchange(_CountedSplit(split), tasks, _CountedMerge(merge), parts, on_done))


def _added(done: Sequence[_Counted]) -> list[Any]:
    count = current_count()
    if count is not None:
        for one in done:
            count.add_all(one.counts)
    return [one.result for one in done]


@dataclass(frozen=True, slots=True)
class _CountedTask(Generic[Task, Result]):
    function: Callable[[Task], Result]

    @property
    def __wrapped__(self) -> Callable[[Task], Result]:
        """Python's name for what a callable stands for: engines ask for the module of the work
        (platform: forked-workers-start-cheap)."""
        return self.function

    def __call__(self, task: Task) -> _Counted:
        with counting() as count:
            result = self.function(task)
        return _Counted(result, count.counts)


@dataclass(frozen=True, slots=True)
class _CountedSplit(Generic[Task, Item]):
    """Gives the items, and after them what they took, to part 0."""

    function: Callable[[Task], Iterable[tuple[int, Item]]]

    @property
    def __wrapped__(self) -> Callable[[Task], Iterable[tuple[int, Item]]]:
        """As above."""
        return self.function

    def __call__(self, task: Task) -> Iterator[tuple[int, Any]]:
        items, count = iter(self.function(task)), RequestCount()
        while True:
            with counting(count):  # and not while the engine carries the item away
                item = next(items, None)
            if item is None:
                break
            yield item
        yield 0, _Counted(None, count.counts)


@dataclass(frozen=True, slots=True)
class _CountedMerge(Generic[Part, Item, Result]):
    function: Callable[[Part, Iterator[Item]], Result]

    def __call__(self, part: Part, items: Iterator[Any]) -> _Counted:
        with counting() as count:

            def given() -> Iterator[Item]:
                for item in items:
                    if isinstance(item, _Counted):
                        count.add_all(item.counts)
                    else:
                        yield item

            found = given()
            result = self.function(part, found)
            for _ in found:  # whatever the work left unread
                continue
        return _Counted(result, count.counts)


# Protects a running rewrite: what it reads from expiry, and what it writes from orphan removal.
#
# A pin in the state store holds the planning snapshot and all above it, so that an expiry of another process does not
# delete what is being read.  A staged load names the files that the rewrite will write, *before* it writes them: the
# orphan removal of another process leaves them alone, and when this process dies they are cleaned from that record.
# Both run out by themselves.  Modak protects its readers and loads likewise (rule: rewrites-pin-and-record).

log = logging.getLogger(__name__)

# A job that shows no progress for three quarters of its lease may lose it.
_RENEWALS_PER_LEASE = 4


class Job:
    """One rewrite while it runs; see :func:`running_job`."""

    def __init__(self, memory: TableMemory, pin: Pin, lease_ms: int) -> None:
        self._memory = memory
        self._pin = pin
        self._lease_ms = lease_ms
        self._load: StagedLoad | None = None
        self._leaves_files = self._may_have_landed = False

    def will_write(self, records: Iterable[str]) -> None:
        """Record files before they are written: paths, or records of planned files for all attempts at a task.

        Raises:
            PlanStale: as :meth:`renew`; a new record would hide that files of this job were deleted.
            StorageError: the record cannot be written; nothing must be written without it.
        """
        self.renew()
        now_ms = self._memory.clock()
        load = StagedLoad(
            identity=self._memory.identity,
            name=self._pin.name,
            origin=LoadOrigin.JOB,
            changed_ms=now_ms,
            expires_ms=now_ms + self._lease_ms,
        )
        self._load = self._memory.store.staging.stage(load, records)

    def leaves_files(self) -> None:
        """Note that some of the files may exist without being in the table: a later pass cleans them by the record."""
        self._leaves_files = True

    def may_have_landed(self) -> None:
        """Note that a commit of the files may have landed: the record stays as it is until its lease runs out."""
        self._may_have_landed = True

    def renew(self) -> None:
        """Prolong pin and record once a quarter of the lease has passed; called before every commit.

        Raises:
            PlanStale: the record ran out and another pass took the files for those of a dead job.
            StorageError: the state store cannot be used.
        """
        now_ms = self._memory.clock()
        if self._pin.expires_ms - now_ms > self._lease_ms * (_RENEWALS_PER_LEASE - 1) // _RENEWALS_PER_LEASE:
            return
        expires_ms = now_ms + self._lease_ms
        if self._load is not None:
            prolonged = replace(self._load, expires_ms=expires_ms)
            if not self._memory.store.staging.change(self._load, prolonged):
                raise PlanStale(f"job {self._pin.name} stood still for so long that its files were cleaned; plan again")
            self._load = prolonged
        self._pin = replace(self._pin, expires_ms=expires_ms)
        self._memory.store.add_pin(self._pin)

    def keep_alive(self) -> None:
        """:meth:`renew` as work goes on; what is wrong is found out again before the commit."""
        with suppress(MaintenanceError):
            self.renew()

    def _begin(self) -> None:
        self._memory.store.add_pin(self._pin)

    def _settle(self) -> None:
        """Forget the record when every file is in the table or deleted; else mark the job as failed."""
        if self._load is None or self._may_have_landed:
            return
        staging = self._memory.store.staging
        try:
            if self._leaves_files:
                now_ms = self._memory.clock()
                staging.change(self._load, replace(self._load, state=LoadState.FAILED, changed_ms=now_ms))
            else:
                staging.forget(self._load)
        except StorageError as error:  # the work is done; the record runs out by itself
            log.warning("the record of what job %s staged could not be settled: %s", self._pin.name, error)

    def _end(self) -> None:
        try:
            self._memory.store.remove_pin(self._memory.identity, self._pin.name)
        except StorageError as error:
            log.warning("the pin of job %s could not be removed, and runs out by itself: %s", self._pin.name, error)


@contextmanager
def running_job(
    memory: TableMemory, name: str, planned: LoadedTable, snapshot_id: int, *, lease_ms: int
) -> Iterator[Job]:
    """Pin the snapshot that a rewrite was planned at until the block is left.

    The name must be this attempt's alone: several may be under way in one run, and the first to end gives up its pin.
    What the job recorded is forgotten when the block ends well, and counts as failed after an error.  It stays pending
    when a commit may have landed, and when the block is left by anything that is no error of ours (an interrupt, a
    bug): workers may still be writing.

    Raises:
        StorageError: the state store cannot be written; no work was begun.
    """
    pin = Pin(
        identity=memory.identity,
        name=name,
        snapshot_id=snapshot_id,
        metadata_location=planned.metadata_location,
        expires_ms=memory.clock() + lease_ms,
        kind=PinKind.JOB,
    )
    job = Job(memory, pin, lease_ms)
    job._begin()
    try:
        yield job
    except CommitStateUnknown:
        raise
    except MaintenanceError:
        job.leaves_files()
        job._settle()
        raise
    else:
        job._settle()
    finally:
        job._end()


# The context that every operation gets: catalog, stores, engine, state and settings of one pass over one table.


class SharedRun:
    """The run that a pass belongs to: its passes share one look at the other tables that are served
    (rule: look-at-every-served-table)."""

    def __init__(self, name: str) -> None:
        self.name = name
        """A process that goes on for ever gives each of its detections another one."""
        self.lock = Lock()
        """Held by the pass that looks; others of this process wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """One pass over one table; operations load the table themselves, so that each sees the newest head.

    Made by :func:`operation_context`; who needs another one takes :func:`dataclasses.replace`.
    """

    catalog: Catalog
    table: TableName
    resolved: ResolvedPolicy
    state: StateStore
    memory: TableMemory
    """Reads and writes what is remembered about this table."""
    clock: Clock
    """This machine's clock; the age of files is judged by :meth:`now_ms`."""
    stores: Stores
    run_id: str
    run: SharedRun
    operation: Operation | None = None
    """The one that is being carried out."""
    started_ms: int
    """When the pass began, in epoch milliseconds by this machine's clock: what ``now()`` in its settings means."""
    engine: Engine
    dry_run: bool = False
    planned: PlannedTable | None = None
    """The table as the operations before would leave it, in a dry run of several; ``None``: plan on what is there."""
    progress: Progress = silent
    sleep: Callable[[float], None] = time.sleep
    monotonic_s: Callable[[], float] = steady_s
    """How long work takes; passes while ``sleep`` sleeps."""
    orphan_candidates: FileSource | None = None
    """The files that orphan removal looks at instead of listing; an earlier step of this pass has listed them."""
    reads_footers: bool = True
    """Whether a dry run reads footers of some files, to tell people which settings their files lack."""
    only_lists: bool = False
    """Whether this process only lists; another one deletes, and checks there that it may."""
    other_catalog: Callable[[str, str], Catalog | None] = lambda name, warehouse: None
    """Opens another catalog that is served here, by its name and warehouse; ``None``: there is none.

    Raises MaintenanceError where it cannot be opened.
    """
    footprint: Footprint = field(default_factory=Footprint)
    """The folders in which this pass has seen files of the table."""
    cache: MetadataCache = field(default_factory=MetadataCache)
    """The manifests and manifest lists that this pass has read."""
    running: Job | None = None
    """The rewrite that is running, if there is one."""
    work_began_s: float | None = None
    """When it began, by ``monotonic_s``."""
    lease: HeldLease | None = None
    """The table's lease, which this pass holds; ``None`` where it changes nothing, or nobody else can come."""
    require_allowed: Callable[[], None] = lambda: None
    """Raises LocationRefused where the table itself says that its files are outside of its bound
    (rule: bound-every-table)."""
    why_stop: Callable[[], str | None] = lambda: None
    """Asked before each operation: why no further one begins, ``None`` to go on."""
    time_left_s: Callable[[], float] | None = None
    """How many seconds this process will live on; ``None``: as long as the work takes."""
    is_proposed: bool = False
    """Whether nobody asked for the pass but detection: work with an interval of its own waits until it is due."""

    @property
    def policy(self) -> Policy:
        return self.resolved.policy

    def load(self) -> LoadedTable:
        """The newest state of the table; in a dry run, as the operations before would leave it."""
        loaded = self.catalog.load(self.table)
        return loaded if self.planned is None else self.planned.load(loaded)

    def idle_since(self, metadata: TableMetadata) -> IdleSince | None:
        """The record that an operation planned on this metadata and has nothing to do; ``None``: there is no head."""
        head = metadata.head(self.policy.branch)
        if head is None:
            return None
        digest = table_digest(metadata)
        return IdleSince(snapshot_id=head.snapshot_id, table_digest=digest, looked_ms=self.started_ms)

    def would_commit(self, operation: Operation, change: Callable[[], object]) -> None:
        """Note in a dry run how an operation would change the table, for the plans of those after it."""
        if self.planned is not None:
            self.planned.note(operation, change)

    def is_written(self, path: str) -> bool:
        """Whether a file that the table names has been written, and is not only expected of an operation before."""
        return self.planned is None or self.planned.is_written(path)

    def storage(self, loaded: LoadedTable) -> Storage:
        """The table's files; one client per set of credentials."""
        return self.stores.storage(loaded)

    def now_ms(self, loaded: LoadedTable) -> int:
        """Epoch milliseconds by the clock of the table's store."""
        return self.stores.now_ms(loaded)

    def reader(self, loaded: LoadedTable) -> TableReader:
        """Reads what the table's metadata points at, and takes note of where its files lie."""
        metadata, storage = loaded.metadata, self.storage(loaded)

        def read(path: str) -> bytes:
            storage.require([path])  # another table's pass may have read it
            return self.cache.read(storage.place, path, storage.read)

        if self.planned is not None:  # what it names has not been written, and is nothing that was seen
            return TableReader(metadata, partial(self.planned.read, read=read))
        return TableReader(metadata, read, partial(self.footprint.see, own=data_folders(metadata)))

    def snapshot_writer(self, head: LoadedTable) -> SnapshotWriter:
        """A writer for one attempt to commit to the policy's branch of this head."""
        return SnapshotWriter(
            head.metadata,
            self.reader(head),
            self.storage(head).write if self.planned is None else self.planned.write,
            lambda paths: self.discard(head, paths),
            self.policy.branch,
            self.run_id,
            self.now_ms(head),
            None if self.operation is None else self.operation.value,
        )

    def require_lease(self) -> None:
        """Prolong the table's lease, just before anything is swapped or deleted.

        Raises:
            LeaseLost: another run maintains the table by now (rule: lost-lease-changes-nothing).
            StorageError: the lease cannot be prolonged.
        """
        if self.lease is not None:
            self.lease.require()

    @contextmanager
    def job(self, operation: Operation, planned: LoadedTable, snapshot_id: int) -> Iterator[OperationContext]:
        """The context of everything between plan and report of a rewrite, and its job, which progress prolongs.

        Raises:
            StorageError: the state store cannot be written; no work was begun.
        """
        name = f"{self.run_id}:{uuid.uuid4().hex[:8]}:{operation.value}"
        lease_ms = 2 * self.policy.job_timeout_s * 1000
        with running_job(self.memory, name, planned, snapshot_id, lease_ms=lease_ms) as job:

            def progress(what: str, done: int, total: int) -> None:
                job.keep_alive()
                self.progress(what, done, total)

            yield replace(self, running=job, progress=progress, work_began_s=self.monotonic_s())

    def will_write(self, records: Iterable[str]) -> None:
        """Record what the running job is going to write, before it does: paths, or records of planned files.

        Raises:
            StorageError: it could not be recorded, so it must not be written.
        """
        if self.running is not None:
            self.running.will_write(records)

    def commit(
        self, head: LoadedTable, prepare: Callable[[LoadedTable], PreparedCommit | Nothing], patience_s: float = 0.0
    ) -> Committed | Nothing:
        """Prepare and swap on the newest head until it lands; what an attempt staged that did not land is removed.

        Lost swaps are tried again ``max_commit_retries`` times, and as often as fits into ``patience_s`` seconds.

        Raises:
            MaintenanceError: as :func:`commit_with_retries` does.
        """
        if self.planned is not None:
            return self.planned.commit(head, prepare, self.now_ms(head))
        return commit_with_retries(
            self.catalog,
            head,
            prepare,
            CommitTerms(
                max_retries=self.policy.max_commit_retries,
                patience_s=patience_s,
                discard=lambda paths: self.discard(head, paths),
                pinned_metadata=lambda: (
                    *self.memory.pinned_metadata(),
                    *metadata_of_other_entries(self.state, self.catalog, head, self.other_catalog, self.run.name),
                ),
                renew=self._renew,
                traces=lambda shown: newer_metadata(self.storage(shown), shown),
                sleep=self.sleep,
                monotonic_s=self.monotonic_s,
            ),
        )

    def _renew(self) -> None:
        """Make sure that files and table are still this pass's own; called just before every swap."""
        if self.running is not None:
            self.running.renew()
        self.require_lease()

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
        if self.planned is not None:
            self.planned.will_name(outputs)
        left_s = None if self.time_left_s is None else self.time_left_s()
        work_s = 0.0 if self.work_began_s is None else self.monotonic_s() - self.work_began_s
        try:
            return self.commit(self.load(), prepare, patience_of(work_s, left_s))
        except CommitStateUnknown:
            if self.running is not None:
                self.running.may_have_landed()
            raise
        except MaintenanceError:
            self.discard(planned, outputs)
            raise
        finally:
            if is_repeated(outputs):
                self.leaves_files()

    def leaves_files(self) -> None:
        """Note that files of the running job may exist without being in the table: a later pass cleans them."""
        if self.running is not None:
            self.running.leaves_files()

    def discard(self, loaded: LoadedTable, paths: Iterable[str]) -> None:
        """Remove files that certainly no commit names; what cannot be removed is left to a later pass."""
        if self.dry_run:
            return
        report = self.storage(loaded).delete(paths)
        if report.failed:
            self.leaves_files()


def operation_context(
    loaded: LoadedTable,
    *,
    catalog: Catalog,
    resolved: ResolvedPolicy,
    state: StateStore,
    clock: Clock,
    run_id: str,
    engine: Engine,
    started_ms: int | None = None,
    dry_run: bool = False,
    store_clock: StoreClock = store_now_ms,
    progress: Progress = silent,
    sleep: Callable[[float], None] = time.sleep,
    monotonic_s: Callable[[], float] = steady_s,
    other_catalog: Callable[[str, str], Catalog | None] = lambda name, warehouse: None,
    run: SharedRun | None = None,
) -> OperationContext:
    """The context of one pass over a table; which table that is, and what is remembered about it, ``loaded`` says.

    ``started_ms`` is given where another process began the pass; else it begins now.  Passes without a ``run`` that
    have one ``run_id`` are of one run.
    """
    shared, threads = shared_reads(), resolved.policy.listing_threads
    stores = Stores(clock, store_clock, may_write=not dry_run, listing_threads=threads, shared=shared)
    return OperationContext(
        catalog=catalog,
        table=loaded.name,
        resolved=resolved,
        state=state,
        memory=TableMemory(state, identity_of(catalog, loaded), partial(stores.now_ms, loaded)),
        clock=clock,
        stores=stores,
        cache=shared.manifests,
        run_id=run_id,
        run=run or SharedRun(run_id),
        require_allowed=partial(loaded.allowed.require, loaded.metadata.locations),
        started_ms=clock() if started_ms is None else started_ms,
        engine=CountedEngine(engine),
        dry_run=dry_run,
        progress=progress,
        sleep=sleep,
        monotonic_s=monotonic_s,
        other_catalog=other_catalog,
    )


# Commits a rewrite: groups that other commits overtook are dropped, the others land together.

ReplacementOn: TypeAlias = Callable[[TableMetadata, RebaseResult], tuple[FileReplacement, Collection[str]] | Nothing]
"""Returns what the groups that still hold replace on a head, and the manifests that list the replaced files."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewrite to commit: its groups, what each relies on, and the files that were written."""

    loaded: LoadedTable
    """The table at planning."""
    planned: PlanningState
    groups: Sequence[GroupClaim]
    outputs: Mapping[int, Sequence[str]]
    """Group → paths of the files that were written for it."""


@dataclass(slots=True)
class _Attempts:
    context: OperationContext
    rewrite: Rewrite
    replacement_on: ReplacementOn
    rebased: list[RebaseResult] = field(default_factory=list)

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        require_writable(head.metadata)
        reader, branch = self.context.reader(head), self.context.policy.branch
        rebased = rebase(self.rewrite.planned, head.metadata, reader, branch, self.rewrite.groups)
        self.rebased.append(rebased)
        found = self.replacement_on(head.metadata, rebased)
        if isinstance(found, Nothing):
            return found
        replacement, affected = found
        return self.context.snapshot_writer(head).replace_files(replacement, rebased.manifests, affected)


def commit_rewrite(
    context: OperationContext, rewrite: Rewrite, replacement_on: ReplacementOn
) -> tuple[Committed | Nothing, RebaseResult]:
    """Commit the groups that still hold on the newest head; outputs of the others are removed, unless they may be live.

    Returns:
        What landed, and what the last attempt decided about the groups.

    Raises:
        CommitStateUnknown: the outcome could not be found out; the outputs stay.
        MaintenanceError: nothing was committed.
    """
    attempts = _Attempts(context, rewrite, replacement_on)
    outputs = list(chain.from_iterable(rewrite.outputs.values()))
    committed = context.commit_outputs(rewrite.loaded, attempts.prepare, outputs)
    rebased = attempts.rebased[-1]
    context.discard(rewrite.loaded, chain.from_iterable(rewrite.outputs[group_id] for group_id in rebased.dropped))
    return committed, rebased
