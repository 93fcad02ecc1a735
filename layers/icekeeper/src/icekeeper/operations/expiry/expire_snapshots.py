"""The ``expire_snapshots`` operation: remove snapshots by one commit, then delete what only they referenced.

Which files go is computed before the commit, from the very state that the commit swaps out: when a reference that
decides cannot be read, nothing is committed and nothing deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.transaction import PreparedCommit
from icekeeper.errors import CommitStateUnknown, MaintenanceError
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import Nothing
from icekeeper.operations.context import OperationContext, require_writable, stopwatch
from icekeeper.operations.deletion import GC_DISABLED, DeletedFiles, owned_locations
from icekeeper.operations.expiry.leftovers import (
    Leftovers,
    delete_leftovers,
    delete_remembered,
    list_name,
    unfinished,
)
from icekeeper.operations.expiry.removal import removal_of, restore_refs
from icekeeper.operations.expiry.retention import NOTHING_TO_EXPIRE, ExpiryPlan, plan_expiry, refuse_protected
from icekeeper.operations.expiry.unreferenced import Unreferenced, still_unreferenced, unreferenced_files
from icekeeper.operations.held_files import HeldFiles
from icekeeper.policy import Operation, gc_enabled
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded

__all__ = ["expire_snapshots"]

_OPERATION = Operation.EXPIRE_SNAPSHOTS


@dataclass(frozen=True, slots=True)
class _Expiry:
    """What one attempt removes; the last attempt's is what landed."""

    plan: ExpiryPlan
    base: LoadedTable
    unreferenced: Unreferenced
    files: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return self.unreferenced.candidates.size


def expire_snapshots(context: OperationContext) -> OperationOutcome:
    """Finish what an interrupted run left, then expire old snapshots; summary and metric keys are those of seed 000.

    Raises:
        MetadataUnreadable: a manifest list or manifest that decides cannot be read; nothing was changed.
        OperationRefused: a guard saw danger; what was not yet deleted stays.
        MaintenanceError: nothing was committed, or nothing deleted after the commit.
    """
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        require_writable(loaded.metadata)
        if not gc_enabled(loaded.metadata):
            return skipped(_OPERATION, GC_DISABLED)
        left = unfinished(context, loaded)
        attempts = _Attempts(context)
        if context.dry_run:
            prepared = attempts.prepare(loaded)
            return _preview(prepared if attempts.expiry is None else attempts.expiry, left)
        resumed = delete_leftovers(context, loaded, left)
        expiry = attempts.land(loaded)
        metrics = {"expire_snapshots.files_resumed": len(resumed.deleted)} if left.files else {}
        if isinstance(expiry, Nothing):
            metrics["expire_snapshots.duration_ms"] = elapsed_ms()
            if not left.files:
                return skipped(_OPERATION, expiry.reason, metrics=metrics)
            metrics["expire_snapshots.files_failed"] = len(resumed.failed)
            return succeeded(
                _OPERATION,
                _of_leftovers(resumed),
                metrics=metrics,
                files_planned=left.files,
                files_deleted=resumed.deleted,
            )
        deleted = attempts.delete(expiry)
        count = len(expiry.plan.snapshot_ids)
        summary = f"expired {count} snapshot(s), deleted {len(deleted.deleted)} unreferenced file(s)"
        return succeeded(
            _OPERATION,
            f"{summary}; {_of_leftovers(resumed)}" if left.files else summary,
            metrics={
                "expire_snapshots.snapshots_expired": count,
                "expire_snapshots.refs_expired": len(expiry.plan.refs),
                "expire_snapshots.files_deleted": len(deleted.deleted),
                "expire_snapshots.files_failed": len(deleted.failed) + len(resumed.failed),
                "expire_snapshots.files_left_to_bucket": 0 if attempts.can_delete else len(expiry.files),
                "expire_snapshots.bytes_reclaimable": expiry.size,
                **metrics,
                "expire_snapshots.duration_ms": elapsed_ms(),
            },
            files_planned=(*left.files, *expiry.files),
            files_deleted=(*resumed.deleted, *deleted.deleted),
        )


def _preview(expiry: _Expiry | PreparedCommit | Nothing, left: Leftovers) -> OperationOutcome:
    """What a real run against this head would take."""
    leftovers = f"would delete {len(left.files)} file(s) that an interrupted run left behind"
    if not isinstance(expiry, _Expiry):
        if left.files:
            return succeeded(_OPERATION, leftovers, files_planned=left.files)
        return skipped(_OPERATION, expiry.reason if isinstance(expiry, Nothing) else NOTHING_TO_EXPIRE)
    summary = (
        f"would expire {len(expiry.plan.snapshot_ids)} snapshot(s) and delete {len(expiry.files)} unreferenced file(s)"
    )
    return succeeded(
        _OPERATION,
        f"{summary}; {leftovers}" if left.files else summary,
        metrics={"expire_snapshots.bytes_reclaimable": expiry.size},
        files_planned=(*left.files, *expiry.files),
    )


def _of_leftovers(resumed: DeletedFiles) -> str:
    return f"deleted {len(resumed.deleted)} file(s) that an interrupted run left behind"


class _Attempts:
    """Attempts to expire the same snapshots on newer and newer heads."""

    def __init__(self, context: OperationContext) -> None:
        self.expiry: _Expiry | None = None
        self.can_delete = True
        self._context = context
        self._list = list_name(context.run_id)
        self._remembered = False

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        require_writable(head.metadata)
        if not gc_enabled(head.metadata):
            return Nothing(GC_DISABLED)
        plan = self._plan(head.metadata)
        if isinstance(plan, Nothing):
            return plan
        self.expiry = self._freed(head, plan)
        return removal_of(head.metadata, plan)

    def land(self, loaded: LoadedTable) -> _Expiry | Nothing:
        """Commit on the newest head, and remember beforehand which files are to be deleted."""

        def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
            before = self.expiry
            prepared = self.prepare(head)
            if self.expiry is not None and self.expiry.files:
                storage = self._context.storage(head)
                self.can_delete = storage.capabilities(head.metadata.location).can_delete
                # On a newer head the files of the same snapshots only become fewer.
                if self.can_delete and (before is None or before.unreferenced is not self.expiry.unreferenced):
                    self._context.memory.expect_deletions(self._list, self.expiry.files)
                    self._remembered = True
            return prepared

        try:
            committed = self._context.commit(loaded, prepare)
        except CommitStateUnknown:
            raise  # it may have landed: a later pass finds out by the references
        except MaintenanceError:
            self._forget()
            raise
        if isinstance(committed, Nothing) or self.expiry is None:
            self._forget()
            return committed if isinstance(committed, Nothing) else Nothing(NOTHING_TO_EXPIRE)
        restore_refs(self._context, self.expiry.base.metadata, self.expiry.plan)
        return self.expiry

    def delete(self, expiry: _Expiry) -> DeletedFiles:
        if not expiry.files or not self.can_delete:
            return DeletedFiles()
        references = expiry.unreferenced.references
        return delete_remembered(self._context, expiry.base, self._list, expiry.files, references)

    def _forget(self) -> None:
        if self._remembered:
            self._context.memory.forget_deletions(self._list)

    def _plan(self, metadata: TableMetadata) -> ExpiryPlan | Nothing:
        """After a lost swap what may still go of the last attempt's; what expires only on the new head is left to the
        next pass."""
        pinned = [pin.snapshot_id for pin in self._context.memory.pins()]
        policy = self._context.policy
        refuse_protected(metadata, policy, pinned)
        plan = plan_expiry(metadata, policy, now_ms=self._context.clock(), pinned=pinned)
        if self.expiry is None or isinstance(plan, Nothing):
            return plan
        before = set(self.expiry.plan.snapshot_ids)
        ids = tuple(i for i in plan.snapshot_ids if i in before)
        return ExpiryPlan(ids, plan.refs) if ids or plan.refs else Nothing(NOTHING_TO_EXPIRE)

    def _freed(self, head: LoadedTable, plan: ExpiryPlan) -> _Expiry:
        """When the last attempt was at the same snapshots, only what is new on this head is read."""
        expired, reader, before = set(plan.snapshot_ids), self._context.reader(head), self.expiry
        if before is not None and before.plan.snapshot_ids == plan.snapshot_ids:
            unreferenced = before.unreferenced
            still_unreferenced(reader, expired, unreferenced)
        else:
            held = HeldFiles(self._context.memory, reader.read)
            held.look(head.metadata)
            unreferenced = unreferenced_files(reader, expired, owned_locations(head.metadata), held.hold)
        return _Expiry(plan, head, unreferenced, unreferenced.candidates.paths())
