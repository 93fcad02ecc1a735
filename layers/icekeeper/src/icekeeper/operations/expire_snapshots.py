"""The ``expire_snapshots`` operation: remove snapshots by one commit, then delete what only they referenced.

Which files go is computed before the commit, from the very state that the commit swaps out: when a reference cannot
be read, nothing is committed and nothing deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.transaction import PreparedCommit, commit_with_retries
from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import Ref, TableMetadata
from icekeeper.metadata.reachability import manifests_of, statistics_files
from icekeeper.model import Nothing
from icekeeper.operations.context import OperationContext, require_writable, stopwatch
from icekeeper.operations.deletion import GC_DISABLED, DeletedFiles, delete_unreferenced, owned_locations
from icekeeper.operations.orphans import same_path_elsewhere, without_authority
from icekeeper.operations.snapshots import ExpiryPlan, plan_expiry
from icekeeper.policy import Operation, gc_enabled
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded
from icekeeper.storage_paths import is_under, normalise

__all__ = ["expire_snapshots"]

_OPERATION = Operation.EXPIRE_SNAPSHOTS


@dataclass(slots=True)
class _Expiry:
    """What one attempt removes; the last attempt's is what landed."""

    plan: ExpiryPlan
    base: LoadedTable
    files: tuple[str, ...] = field(default=())


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
            plan = _plan(context, head.metadata)
            if isinstance(plan, Nothing):
                return plan
            expiry = _Expiry(plan, head, _only_in(context, head, plan))
            return _prepared(head.metadata, plan)

        if context.dry_run:
            prepared = prepare(loaded)
            if isinstance(prepared, Nothing) or expiry is None:
                return skipped(_OPERATION, _reason(prepared))
            summary = (
                f"would expire {len(expiry.plan.snapshot_ids)} snapshot(s) and delete "
                f"{len(expiry.files)} unreferenced file(s)"
            )
            return succeeded(_OPERATION, summary, files_planned=expiry.files)
        committed = commit_with_retries(
            context.catalog,
            loaded,
            prepare,
            max_retries=context.policy.max_commit_retries,
            discard=lambda paths: None,
            sleep=context.sleep,
        )
        if isinstance(committed, Nothing) or expiry is None:
            return skipped(_OPERATION, _reason(committed), metrics={"expire_snapshots.duration_ms": elapsed_ms()})
        _restore_refs(context, expiry)
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
                "expire_snapshots.duration_ms": elapsed_ms(),
            },
            files_planned=expiry.files,
            files_deleted=deleted.deleted,
        )


def _reason(nothing: object) -> str:
    return nothing.reason if isinstance(nothing, Nothing) else ""


def _plan(context: OperationContext, metadata: TableMetadata) -> ExpiryPlan | Nothing:
    pinned = [pin.snapshot_id for pin in context.pins()]
    return plan_expiry(metadata, context.policy, now_ms=context.clock(), pinned=pinned)


def _only_in(context: OperationContext, head: LoadedTable, plan: ExpiryPlan) -> tuple[str, ...]:
    """Files that the expiring snapshots reference and no other does, under locations that the table owns.

    Of the expiring side only manifests that no kept snapshot lists are opened; of the kept side all, so that nothing
    is deleted from a table whose references cannot be read.
    """
    metadata, reader = head.metadata, context.reader(head)
    gone = [metadata.snapshots[i] for i in plan.snapshot_ids]
    kept = [s for i, s in metadata.snapshots.items() if i not in set(plan.snapshot_ids)]
    kept_manifests = manifests_of(reader, kept)
    kept_keys = {normalise(path) for path in kept_manifests}
    gone_manifests = [m for p, m in manifests_of(reader, gone).items() if normalise(p) not in kept_keys]
    candidates = {normalise(path): path for _, (path, _) in reader.live_keys(gone_manifests)}
    twins = {without_authority(path): path for path in candidates.values()}
    for _, (path, _) in reader.live_keys(kept_manifests.values()):
        key = normalise(path)
        twin = twins.get(without_authority(path))
        if twin is not None and normalise(twin) != key:
            raise same_path_elsewhere(twin, path)
        candidates.pop(key, None)
    files = [*candidates.values(), *(m.manifest_path for m in gone_manifests)]
    kept_lists = {normalise(s.manifest_list) for s in kept if s.manifest_list is not None}
    files += [s.manifest_list for s in gone if s.manifest_list and normalise(s.manifest_list) not in kept_lists]
    remaining = _without(metadata, plan)
    kept_statistics = {normalise(path) for path in statistics_files(remaining)}
    files += [path for path in statistics_files(metadata) if normalise(path) not in kept_statistics]
    owned = owned_locations(metadata)
    return tuple(sorted(path for path in set(files) if any(is_under(path, location) for location in owned)))


def _without(metadata: TableMetadata, plan: ExpiryPlan) -> TableMetadata:
    gone = set(plan.snapshot_ids)

    def kept(entries: Any) -> list[Any]:
        return [entry for entry in entries if int(entry["snapshot-id"]) not in gone]

    return TableMetadata(
        {
            **metadata.document,
            "statistics": kept(metadata.statistics),
            "partition-statistics": kept(metadata.partition_statistics),
        }
    )


def _prepared(metadata: TableMetadata, plan: ExpiryPlan) -> PreparedCommit:
    """One commit; every ref that is known is asserted, because some catalogs drop refs with snapshots."""
    gone = set(plan.snapshot_ids)
    updates: list[dict[str, Any]] = [{"action": "remove-snapshot-ref", "ref-name": name} for name in plan.refs]
    for action, entries in (
        ("remove-statistics", metadata.statistics),
        ("remove-partition-statistics", metadata.partition_statistics),
    ):
        ids = sorted({int(entry["snapshot-id"]) for entry in entries} & gone)
        updates += [{"action": action, "snapshot-id": snapshot_id} for snapshot_id in ids]
    if gone:
        updates.append({"action": "remove-snapshots", "snapshot-ids": list(plan.snapshot_ids)})
    requirements: list[dict[str, Any]] = [
        {"type": "assert-ref-snapshot-id", "ref": ref.name, "snapshot-id": ref.snapshot_id}
        for ref in metadata.refs.values()
    ]
    if metadata.uuid is not None:
        requirements.insert(0, {"type": "assert-table-uuid", "uuid": metadata.uuid})

    def landed(after: TableMetadata) -> bool:
        return not gone & after.snapshots.keys() and not set(plan.refs) & after.refs.keys()

    return PreparedCommit(requirements=requirements, updates=updates, landed=landed)


def _restore_refs(context: OperationContext, expiry: _Expiry) -> None:
    """Read back, and put back a ref that the catalog dropped although its snapshot is there."""
    base = expiry.base.metadata

    def lost(metadata: TableMetadata) -> Mapping[str, Ref]:
        return {
            name: ref
            for name, ref in base.refs.items()
            if name not in expiry.plan.refs and name not in metadata.refs and ref.snapshot_id in metadata.snapshots
        }

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        missing = lost(head.metadata)
        if not missing:
            return Nothing("every ref is there")
        refs: Mapping[str, Any] = base.document.get("refs") or {}  # a v1 document knows its main branch without
        return PreparedCommit(
            requirements=[{"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": None} for name in missing],
            updates=[
                {
                    "action": "set-snapshot-ref",
                    "ref-name": name,
                    **refs.get(name, {"type": ref.type, "snapshot-id": ref.snapshot_id}),
                }
                for name, ref in missing.items()
            ],
            landed=lambda metadata: not lost(metadata),
        )

    now = context.load()
    restored = commit_with_retries(
        context.catalog,
        now,
        prepare,
        max_retries=context.policy.max_commit_retries,
        discard=lambda paths: None,
        sleep=context.sleep,
    )
    if not isinstance(restored, Nothing):
        now = restored.table
    if lost(now.metadata):
        raise CommitConflict(f"refs {', '.join(lost(now.metadata))} were dropped by the catalog and cannot be restored")


def _delete(context: OperationContext, expiry: _Expiry) -> tuple[DeletedFiles, int]:
    base, files = expiry.base, expiry.files
    if not files or not context.storage(base).capabilities(base.metadata.location).can_delete:
        return DeletedFiles(), len(files)
    what, gone = "expire_snapshots: files", expiry.plan.snapshot_ids
    return delete_unreferenced(context, base, files, what, gone=gone), 0
