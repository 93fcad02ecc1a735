"""Protects a running rewrite: what it reads from expiry, and what it writes from orphan removal.

A pin in the state store holds the planning snapshot and all above it, so that an expiry of another process does not
delete what is being read.  A staged load names the files that the rewrite will write, *before* it writes them: the
orphan removal of another process leaves them alone, and when this process dies they are cleaned from that record.
Both run out by themselves.  Modak protects its readers and loads likewise (rule 105).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitStateUnknown, MaintenanceError, PlanStale, StorageError
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad
from icekeeper.state.store import Pin, PinKind
from icekeeper.state.table_memory import TableMemory

__all__ = ["Job", "running_job"]

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
