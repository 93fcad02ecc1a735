"""The context of a pass over a table, which every operation receives."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit, snapshots_of_run
from icekeeper.commit.retry import patience_of
from icekeeper.commit.snapshot import SnapshotWriter
from icekeeper.commit.transaction import Committed, CommitTerms, commit_with_retries
from icekeeper.engines.engine import Engine
from icekeeper.errors import CommitStateUnknown, MaintenanceError, OperationRefused, SwitchedOff
from icekeeper.machine.clock import Clock
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import Nothing, TableName
from icekeeper.pass_context.footprint import Footprint, data_folders
from icekeeper.pass_context.job import Job
from icekeeper.pass_context.metadata_files import metadata_of_other_entries, newer_metadata
from icekeeper.pass_context.planned_table import PlannedTable
from icekeeper.pass_context.served import ServedCatalogs
from icekeeper.pass_context.stores import CachedFiles, Stores
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.report.activity import PassShare, Progress, Spent
from icekeeper.state.leases import HeldLease
from icekeeper.state.store import Pin, PinKind, StateStore
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.paths import is_repeated

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What a saved plan allows an operation: files to rewrite or delete, snapshots and refs to expire."""

    files: frozenset[str]
    snapshots: frozenset[int] = frozenset()
    refs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """What may end a pass before its work is done."""

    lease: HeldLease | None = None
    """The table's lease, held by this pass; ``None`` if the pass changes nothing, or no other run is possible."""
    why_stop: Callable[[], str | None] = lambda: None
    """Called before each operation: returns why it must not begin, ``None`` to continue."""
    left_s: Callable[[], float] | None = None
    """The remaining lifetime of this process in seconds; ``None``: unlimited."""

    @property
    def has_lost_lease(self) -> bool:
        return self.lease is not None and self.lease.is_lost

    def require_lease(self) -> None:
        """Extend the table's lease; called just before each swap and deletion.

        Raises:
            LeaseLost: another run maintains the table now (rule: lost-lease-changes-nothing).
            StorageError: the lease cannot be extended.
        """
        if self.lease is not None:
            self.lease.require()

    def time_left_s(self) -> float | None:
        """The seconds that this process still has; ``None``: unlimited."""
        return None if self.left_s is None else self.left_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """A pass over a table, as every operation receives it; ``Runtime.context`` creates it.

    An operation gets the newest head (:meth:`load`, :meth:`reader`), settings (``policy``) and files (``stores``) from
    it, protects a rewrite with :meth:`job`, and commits (:meth:`commit`, :func:`commit_rewrite`).
    """

    table: TableName
    resolved: ResolvedPolicy
    state: StateStore
    memory: TableMemory
    """Reads and writes the records about this table."""
    clock: Clock
    """This machine's clock; for the age of files use :meth:`.Stores.now_ms`."""
    stores: Stores
    run_id: str
    catalogs: ServedCatalogs
    operation: Operation | None = None
    """The running operation."""
    may_be_stopped: bool = False
    """Whether the table's newest properties may stop the work (rule: switches-stop-at-once)."""
    stopped: list[str] = field(default_factory=list)
    """Why operations of this pass were stopped."""
    started_ms: int
    """When the pass began, epoch milliseconds by this machine's clock; the value of ``now()`` in its settings."""
    engine: Engine
    dry_run: bool
    planned: PlannedTable | None = None
    """In a dry run, the table as earlier operations would leave it; ``None``: plan on the table as it is."""
    progress: Progress
    share: PassShare = field(default_factory=PassShare)
    """How much of the pass is done, for log lines."""
    sleep: Callable[[float], None]
    monotonic_s: Callable[[], float]
    """A steady clock in seconds; it advances while ``sleep`` sleeps."""
    spent: Spent = field(default_factory=Spent)
    """The seconds of the running operation."""
    footprint: Footprint = field(default_factory=Footprint)
    """The folders in which this pass has seen files of the table."""
    running: Job | None = None
    """The running rewrite, if any."""
    limits: PassLimits = field(default_factory=PassLimits)
    require_allowed: Callable[[], None]
    """Raises LocationRefused if the table's own locations are outside its bound (rule: bound-every-table)."""
    is_proposed: bool = False
    """Whether only detection proposed the pass; then work that has an interval of its own waits until it is due."""
    asked_by_name: frozenset[str] = frozenset()
    """The operations that a person requested by name, for this table alone; empty for ``all``."""
    reviewed: Reviewed | None = None
    """What a saved plan permits the operation to do; ``None``: no plan is applied."""

    @property
    def policy(self) -> Policy:
        return self.resolved.policy

    def load(self) -> LoadedTable:
        """The newest state of the table; in a dry run, as earlier operations would leave it.

        Raises:
            SwitchedOff: its properties stop the running operation.
        """
        with self.spent.loading():
            loaded = self.catalogs.own.load(self.table)
        self._heed(loaded)
        return loaded if self.planned is None else self.planned.load(loaded)

    def _heed(self, newest: LoadedTable) -> None:
        if not self.may_be_stopped or self.dry_run:
            return
        why = self.resolved.why_stopped(self.operation, newest.metadata.properties, self.clock())
        if why is not None:
            self.stopped.append(why)
            raise SwitchedOff(f"{why}; the property was set while the pass ran")

    def would_commit(self, operation: Operation, change: Callable[[], object]) -> None:
        """In a dry run, note how an operation would change the table, for the plans of later operations."""
        if self.planned is not None:
            self.planned.note(operation, change)

    def is_written(self, path: str) -> bool:
        """Whether a file that the table names exists; false for a file that an earlier operation of a dry run would
        write."""
        return self.planned is None or self.planned.is_written(path)

    def reader(self, loaded: LoadedTable) -> TableReader:
        """Reads the table's manifests, and notes the folders of its files in ``footprint``."""
        metadata, files = loaded.metadata, CachedFiles(self.stores.manifests, self.stores.storage(loaded))
        if self.planned is not None:  # its files may not exist, so they leave no footprint
            return TableReader(metadata, partial(self.planned.read, read=files.read))
        return TableReader(metadata, files.read, partial(self.footprint.see, own=data_folders(metadata)), files)

    def snapshot_writer(self, head: LoadedTable) -> SnapshotWriter:
        """A writer for a single commit attempt on the policy's branch of this head."""
        return SnapshotWriter(
            head.metadata,
            self.reader(head),
            self.stores.storage(head).write if self.planned is None else self.planned.write,
            lambda paths: self.discard(head, paths),
            self.policy.branch,
            self.run_id,
            self.stores.now_ms(head),
            None if self.operation is None else self.operation.value,
        )

    def require_reviewed(self, head: LoadedTable, paths: Iterable[str]) -> None:
        """Check the files that an operation is about to rewrite or delete against the saved plan, if there is one.

        Files that earlier commits of the same run wrote are allowed without being in the plan
        (rule: apply-only-what-was-reviewed).

        Raises:
            OperationRefused: the plan does not name all of them; nothing was changed.
        """
        if self.reviewed is None:
            return
        extra = set(paths) - self.reviewed.files
        if extra and (extra := extra - set(self._written_by_run(head))):
            raise OperationRefused(
                f"the operation would change {len(extra)} file(s) that the plan does not name, such as {min(extra)}; "
                "nothing was changed; save a new plan"
            )

    def _written_by_run(self, head: LoadedTable) -> Iterator[str]:
        """The files that this run has written into the table, and those that it has recorded for deletion."""
        metadata, reader = head.metadata, self.reader(head)
        own = {*snapshots_of_run(self.run_id, metadata)}
        for snapshot in (metadata.snapshots[snapshot_id] for snapshot_id in own):
            if snapshot.manifest_list is not None:
                yield snapshot.manifest_list
            added = [listed for listed in reader.manifests(snapshot) if listed.added_snapshot_id in own]
            yield from (manifest.manifest_path for manifest in added)
            for _, entries in reader.entries(added):
                yield from (entry.file.file_path for entry in entries if entry.snapshot_id in own)
        for name in self.memory.unfinished_deletions():
            if name.startswith(f"{self.run_id}-"):
                yield from self.memory.files_to_delete(name)

    @contextmanager
    def job(self, operation: Operation, planned: LoadedTable, snapshot_id: int) -> Iterator[OperationContext]:
        """The context for a rewrite's work and commit, protected by a :class:`Job` that progress keeps alive.

        Raises:
            StorageError: the state store cannot be written; no work was begun.
        """
        lease_ms = 2 * self.policy.job_timeout_s * 1000
        pin = Pin(
            identity=self.memory.identity,
            # Unique, because a run may have several jobs, and each removes its own pin.
            name=f"{self.run_id}:{uuid.uuid4().hex[:8]}:{operation.value}",
            snapshot_id=snapshot_id,
            metadata_location=planned.metadata_location,
            expires_ms=self.memory.clock() + lease_ms,
            kind=PinKind.JOB,
        )
        job = Job(self.memory, pin, lease_ms, self.monotonic_s())

        def progress(what: str, done: int, total: int) -> None:
            job.keep_alive()
            self.progress(what, done, total)

        with job.protected():
            yield replace(self, running=job, progress=progress)

    def will_write(self, records: Iterable[str]) -> None:
        """Record the files of the running job before it writes them: paths, or records of planned files.

        Raises:
            StorageError: they cannot be recorded, so they must not be written.
        """
        if self.running is not None:
            self.running.will_write(records)

    def commit(
        self, head: LoadedTable, prepare: Callable[[LoadedTable], PreparedCommit | Nothing], patience_s: float = 0.0
    ) -> Committed | Nothing:
        """Prepare and swap on the newest head until an attempt lands; files of attempts that did not land are removed.

        A lost swap is retried ``max_commit_retries`` times, or for ``patience_s`` seconds if that is longer.

        Raises:
            SwitchedOff: the newest head's properties stop the operation; nothing was committed.
            MaintenanceError: as :func:`commit_with_retries` does.
        """
        if self.planned is not None:
            return self.planned.commit(head, prepare, self.stores.now_ms(head))
        terms = CommitTerms(
            max_retries=self.policy.max_commit_retries,
            patience_s=patience_s,
            discard=lambda paths: self.discard(head, paths),
            pinned_metadata=lambda: (
                *self.memory.pinned_metadata(),
                *metadata_of_other_entries(self.state, self.catalogs, head),
            ),
            permit=self._heed,
            renew=self._renew,
            traces=lambda shown: newer_metadata(self.stores.storage(shown), shown),
            sleep=self.sleep,
            monotonic_s=self.monotonic_s,
        )
        with self.spent.committing():
            return commit_with_retries(self.catalogs.own, head, prepare, terms)

    def _renew(self) -> None:
        if self.running is not None:
            self.running.renew()
        self.limits.require_lease()
        if self.running is not None:
            self.running.is_swapping = True

    def commit_outputs(
        self, planned: LoadedTable, prepare: Callable[[LoadedTable], PreparedCommit | Nothing], outputs: Sequence[str]
    ) -> Committed | Nothing:
        """Commit the ``outputs`` that workers report for a rewrite of ``planned``.

        The outputs are deleted if no commit landed, also after an interrupt, and kept if they may be live.  Files of
        earlier attempts at a task are cleaned from the job's record.

        Raises:
            MaintenanceError: as :func:`commit_with_retries` does.
        """
        if self.planned is not None:
            self.planned.will_name(outputs)
        work_s = 0.0 if self.running is None else self.monotonic_s() - self.running.began_s
        try:
            committed = self.commit(self.load(), prepare, patience_of(work_s, self.limits.time_left_s()))
        except CommitStateUnknown:
            if self.running is not None:
                self.running.may_have_landed()
            raise
        except MaintenanceError:
            self.discard(planned, outputs)
            raise
        except KeyboardInterrupt:
            if self.running is not None and self.running.is_swapping:
                self.running.may_have_landed()
            elif self.running is not None:
                self.discard(planned, outputs)
            raise
        else:
            if self.running is not None:
                self.running.is_swapping = False
            return committed
        finally:
            if is_repeated(outputs):
                self.leaves_files()

    def leaves_files(self) -> None:
        """Note that files of the running job may exist outside the table, so that a later pass cleans them."""
        if self.running is not None:
            self.running.leaves_files()

    def discard(self, loaded: LoadedTable, paths: Iterable[str]) -> None:
        """Delete files that are certain to be in no commit; files that cannot be deleted are left to a later pass."""
        if self.dry_run:
            return
        report = self.stores.storage(loaded).delete(paths)
        if report.failed:
            self.leaves_files()
