"""A running rewrite, protected from passes of other processes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from icekeeper.errors import CommitStateUnknown, MaintenanceError, PlanStale, StorageError
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad
from icekeeper.state.store import Pin
from icekeeper.state.table_memory import TableMemory

log = logging.getLogger(__name__)

# A job without progress for three quarters of its lease may lose it.
_RENEWALS_PER_LEASE = 4


class Job:
    """A running rewrite, protected from passes of other processes (rule: rewrites-pin-and-record).

    A pin in the state store protects the planning snapshot and all newer snapshots from expiry.  A staged load records
    the files that the rewrite will write, *before* it writes them.  So orphan removal skips them, and if this process
    dies, a later pass deletes them by the record.  Pin and record expire by themselves.  Modak protects its readers and
    loads likewise.
    """

    def __init__(self, memory: TableMemory, pin: Pin, lease_ms: int, began_s: float) -> None:
        self._memory = memory
        self._pin = pin
        self._lease_ms = lease_ms
        self._load: StagedLoad | None = None
        self._leaves_files = self._may_have_landed = False
        self.is_swapping = False
        """Whether a commit of the files was sent and its outcome is still unknown."""
        self.began_s = began_s
        """The start of the job by the context's ``monotonic_s``."""

    @contextmanager
    def protected(self) -> Iterator[None]:
        """Pin the planning snapshot until the block ends.

        The job's record is removed if the block succeeds, and marked as failed after an error or an interrupt.  It
        stays pending if a commit may have landed, and after a bug, because workers may still be writing.
        """
        self._memory.store.add_pin(self._pin)
        try:
            yield
        except CommitStateUnknown:
            raise
        except (MaintenanceError, KeyboardInterrupt):
            self.leaves_files()
            self._settle()
            raise
        else:
            self._settle()
        finally:
            try:
                self._memory.store.remove_pin(self._memory.identity, self._pin.name)
            except StorageError as error:
                log.warning("cannot remove the pin of job %s; it expires by itself: %s", self._pin.name, error)

    def will_write(self, records: Iterable[str]) -> None:
        """Record files before they are written: paths, or records of planned files for all attempts at a task.

        Raises:
            PlanStale: as :meth:`renew`; a new record would hide that files of this job were deleted.
            StorageError: the record cannot be written, so no file must be written.
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
        """Note that some files may exist outside the table, so that a later pass cleans them by the record."""
        self._leaves_files = True

    def may_have_landed(self) -> None:
        """Note that a commit of the files may have landed: the record stays until its lease expires."""
        self._may_have_landed = True

    def renew(self) -> None:
        """Extend pin and record once a quarter of the lease has passed; called before every commit.

        Raises:
            PlanStale: the record expired, and another pass cleaned the files as those of a dead job.
            StorageError: the state store cannot be used.
        """
        now_ms = self._memory.clock()
        if self._pin.expires_ms - now_ms > self._lease_ms * (_RENEWALS_PER_LEASE - 1) // _RENEWALS_PER_LEASE:
            return
        expires_ms = now_ms + self._lease_ms
        if self._load is not None:
            extended = replace(self._load, expires_ms=expires_ms)
            if not self._memory.store.staging.change(self._load, extended):
                raise PlanStale(
                    f"job {self._pin.name} made no progress for so long that its files were deleted; plan again"
                )
            self._load = extended
        self._pin = replace(self._pin, expires_ms=expires_ms)
        self._memory.store.add_pin(self._pin)

    def keep_alive(self) -> None:
        """:meth:`renew` during the work; errors are ignored, because the commit renews again."""
        with suppress(MaintenanceError):
            self.renew()

    def _settle(self) -> None:
        """Remove the record if every file is in the table or deleted; else mark the job as failed."""
        if self._load is None or self._may_have_landed:
            return
        staging = self._memory.store.staging
        try:
            if self._leaves_files:
                now_ms = self._memory.clock()
                staging.change(self._load, replace(self._load, state=LoadState.FAILED, changed_ms=now_ms))
            else:
                staging.forget(self._load)
        except StorageError as error:  # the work is done; the record expires by itself
            log.warning("cannot update the record of the files that job %s staged: %s", self._pin.name, error)
