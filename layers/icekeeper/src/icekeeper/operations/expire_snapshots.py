"""The ``expire_snapshots`` operation: remove snapshots by one commit, then delete what only they referenced.

Which files go is computed before the commit, from the very state that the commit swaps out: when a reference cannot
be read, nothing is committed and nothing deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.transaction import PreparedCommit
from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import Ref, TableMetadata
from icekeeper.metadata.reachability import References, manifests_of, statistics_files
from icekeeper.model import Nothing
from icekeeper.operations.context import OperationContext, require_writable, stopwatch
from icekeeper.operations.deletion import GC_DISABLED, DeletedFiles, delete_unreferenced, owned_locations
from icekeeper.operations.snapshots import NOTHING_TO_EXPIRE, ExpiryPlan, plan_expiry
from icekeeper.operations.twins import same_path_elsewhere, without_authority
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
    references: References
    """What the kept snapshots need."""
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
        committed = context.commit(loaded, prepare)
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


def _plan(context: OperationContext, metadata: TableMetadata, before: _Expiry | None) -> ExpiryPlan | Nothing:
    """After a lost swap what may still go of ``before``; what expires only on the new head is left to the next pass."""
    pinned = [pin.snapshot_id for pin in context.memory.pins()]
    plan = plan_expiry(metadata, context.policy, now_ms=context.clock(), pinned=pinned)
    if before is None or isinstance(plan, Nothing):
        return plan
    ids = tuple(i for i in plan.snapshot_ids if i in before.plan.snapshot_ids)
    return ExpiryPlan(ids, plan.refs) if ids or plan.refs else Nothing(NOTHING_TO_EXPIRE)


def _freed(context: OperationContext, head: LoadedTable, plan: ExpiryPlan, before: _Expiry | None) -> _Expiry:
    """Files that the expiring snapshots reference and nothing else does, under locations that the table owns.

    Of the expiring side only manifests that no kept snapshot lists are opened; of the kept side all, so that nothing
    is deleted from a table whose references cannot be read.  When ``before`` is an attempt at the same snapshots that
    lost its swap, only what is new on this head is read: on a busy table there is no time for more.
    """
    metadata, reader = head.metadata, context.reader(head)
    kept = [s for i, s in metadata.snapshots.items() if i not in set(plan.snapshot_ids)]
    candidates: dict[str, str] = {}
    """By normalised path."""
    if before is not None and before.plan.snapshot_ids == plan.snapshot_ids:
        references = before.references
        candidates.update((normalise(path), path) for path in before.files)
        needed = references.follow(reader, kept)
    else:
        references = References()
        listed = references.listed(reader, kept)
        listed_keys = {normalise(path) for path in listed}
        gone = [metadata.snapshots[i] for i in plan.snapshot_ids]
        manifests = {p: m for p, m in manifests_of(reader, gone).items() if normalise(p) not in listed_keys}
        lists = (s.manifest_list for s in gone if s.manifest_list is not None)
        held = (path for _, (path, _) in reader.live_keys(manifests.values()))
        owned = owned_locations(metadata)
        for path in chain(held, manifests, lists, statistics_files(metadata)):
            if any(is_under(path, location) for location in owned):
                candidates[normalise(path)] = path
        kept_lists = (s.manifest_list for s in kept if s.manifest_list is not None)
        needed = chain(kept_lists, listed, references.held(reader, listed.values()))
    twins = {without_authority(path): key for key, path in candidates.items()}
    for path in chain(needed, statistics_files(_without(metadata, plan))):
        key, twin = normalise(path), twins.get(without_authority(path))
        if twin in candidates and twin != key:
            raise same_path_elsewhere(candidates[twin], path)
        candidates.pop(key, None)
    return _Expiry(plan, head, references, tuple(sorted(candidates.values())))


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
    restored = context.commit(now, prepare)
    if not isinstance(restored, Nothing):
        now = restored.table
    if lost(now.metadata):
        raise CommitConflict(f"refs {', '.join(lost(now.metadata))} were dropped by the catalog and cannot be restored")


def _delete(context: OperationContext, expiry: _Expiry) -> tuple[DeletedFiles, int]:
    base, files = expiry.base, expiry.files
    if not files or not context.storage(base).capabilities(base.metadata.location).can_delete:
        return DeletedFiles(), len(files)
    return delete_unreferenced(context, base, files, "expire_snapshots: files", expiry.references), 0
