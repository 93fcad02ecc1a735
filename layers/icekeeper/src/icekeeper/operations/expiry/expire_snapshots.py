"""The ``expire_snapshots`` operation: remove snapshots by one commit, then delete what only they referenced.

Which files go is computed before the commit, from the very state that the commit swaps out: when a reference that
decides cannot be read, nothing is committed and nothing deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.transaction import PreparedCommit
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import Nothing
from icekeeper.operations.context import OperationContext, require_writable, stopwatch
from icekeeper.operations.deletion import GC_DISABLED, DeletedFiles, delete_unreferenced, owned_locations
from icekeeper.operations.expiry.removal import removal_of, restore_refs
from icekeeper.operations.expiry.retention import NOTHING_TO_EXPIRE, ExpiryPlan, plan_expiry
from icekeeper.operations.expiry.unreferenced import Unreferenced, still_unreferenced, unreferenced_files
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


def expire_snapshots(context: OperationContext) -> OperationOutcome:
    """Expire old snapshots; summary and metric keys are those of seed 000.

    Raises:
        MetadataUnreadable: a manifest list or manifest cannot be read; nothing was changed.
        OperationRefused: a guard saw danger; what was not yet deleted stays.
        MaintenanceError: nothing was committed, or nothing deleted after the commit.
    """
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        expiry: _Expiry | None = None

        def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
            nonlocal expiry
            require_writable(head.metadata)
            if not gc_enabled(head.metadata):
                return Nothing(GC_DISABLED)
            plan = _plan(context, head.metadata, expiry)
            if isinstance(plan, Nothing):
                return plan
            expiry = _freed(context, head, plan, expiry)
            return removal_of(head.metadata, plan)

        if context.dry_run:
            prepared = prepare(loaded)
            if isinstance(prepared, Nothing) or expiry is None:
                return skipped(_OPERATION, _reason(prepared))
            summary = (
                f"would expire {len(expiry.plan.snapshot_ids)} snapshot(s) and delete "
                f"{len(expiry.files)} unreferenced file(s)"
            )
            metrics = {"expire_snapshots.bytes_reclaimable": expiry.unreferenced.candidates.size}
            return succeeded(_OPERATION, summary, metrics=metrics, files_planned=expiry.files)
        committed = context.commit(loaded, prepare)
        if isinstance(committed, Nothing) or expiry is None:
            return skipped(_OPERATION, _reason(committed), metrics={"expire_snapshots.duration_ms": elapsed_ms()})
        restore_refs(context, expiry.base.metadata, expiry.plan)
        deleted, undeletable = _delete(context, expiry)
        count = len(expiry.plan.snapshot_ids)
        return succeeded(
            _OPERATION,
            f"expired {count} snapshot(s), deleted {len(deleted.deleted)} unreferenced file(s)",
            metrics={
                "expire_snapshots.snapshots_expired": count,
                "expire_snapshots.refs_expired": len(expiry.plan.refs),
                "expire_snapshots.files_deleted": len(deleted.deleted),
                "expire_snapshots.files_failed": len(deleted.failed),
                "expire_snapshots.files_left_to_bucket": undeletable,
                "expire_snapshots.bytes_reclaimable": expiry.unreferenced.candidates.size,
                "expire_snapshots.duration_ms": elapsed_ms(),
            },
            files_planned=expiry.files,
            files_deleted=deleted.deleted,
        )


def _reason(nothing: object) -> str:
    return nothing.reason if isinstance(nothing, Nothing) else ""


def _plan(context: OperationContext, metadata: TableMetadata, before: _Expiry | None) -> ExpiryPlan | Nothing:
    """After a lost swap what may still go of ``before``; what expires only on the new head is left to the next pass."""
    pinned = [pin.snapshot_id for pin in context.memory.pins()]
    plan = plan_expiry(metadata, context.policy, now_ms=context.clock(), pinned=pinned)
    if before is None or isinstance(plan, Nothing):
        return plan
    ids = tuple(i for i in plan.snapshot_ids if i in before.plan.snapshot_ids)
    return ExpiryPlan(ids, plan.refs) if ids or plan.refs else Nothing(NOTHING_TO_EXPIRE)


def _freed(context: OperationContext, head: LoadedTable, plan: ExpiryPlan, before: _Expiry | None) -> _Expiry:
    """When ``before`` is an attempt at the same snapshots that lost its swap, only what is new on this head is read."""
    expired, reader = set(plan.snapshot_ids), context.reader(head)
    if before is not None and before.plan.snapshot_ids == plan.snapshot_ids:
        unreferenced = before.unreferenced
        still_unreferenced(reader, expired, unreferenced)
    else:
        unreferenced = unreferenced_files(reader, expired, owned_locations(head.metadata))
    return _Expiry(plan, head, unreferenced, unreferenced.candidates.paths())


def _delete(context: OperationContext, expiry: _Expiry) -> tuple[DeletedFiles, int]:
    base, files = expiry.base, expiry.files
    if not files or not context.storage(base).capabilities(base.metadata.location).can_delete:
        return DeletedFiles(), len(files)
    references = expiry.unreferenced.references
    return delete_unreferenced(context, base, files, "expire_snapshots: files", references), 0
