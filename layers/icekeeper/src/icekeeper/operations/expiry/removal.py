"""Prepares the commit that removes snapshots, and restores refs that some catalogs drop with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import Ref, TableMetadata, ref_at, same_table
from icekeeper.model import Nothing
from icekeeper.operations.expiry.retention import ExpiryPlan
from icekeeper.operations.expiry.unused_metadata import UnusedMetadata
from icekeeper.pass_context.context import OperationContext

__all__ = ["removal_of", "restore_refs"]


def removal_of(metadata: TableMetadata, plan: ExpiryPlan, unused: UnusedMetadata) -> PreparedCommit:
    """The commit for a plan; it asserts every ref that is known, because some catalogs drop refs with snapshots."""
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
    updates += unused.updates
    refs = [ref_at(ref.name, ref.snapshot_id) for ref in metadata.refs.values()]
    requirements = [*same_table(metadata), *refs, *unused.requirements(metadata)]

    def landed(after: TableMetadata) -> bool:
        return not gone & after.snapshots.keys() and not set(plan.refs) & after.refs.keys()

    return PreparedCommit(requirements=requirements, updates=updates, landed=landed)


def restore_refs(context: OperationContext, base: TableMetadata, plan: ExpiryPlan) -> None:
    """Load the table, and put back refs of ``base`` that the catalog dropped although their snapshot is there.

    Raises:
        CommitConflict: a ref is lost and cannot be put back.
    """

    def lost(metadata: TableMetadata) -> Mapping[str, Ref]:
        return {
            name: ref
            for name, ref in base.refs.items()
            if name not in plan.refs and name not in metadata.refs and ref.snapshot_id in metadata.snapshots
        }

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        missing = lost(head.metadata)
        if not missing:
            return Nothing("every ref is there")
        refs: Mapping[str, Any] = base.document.get("refs") or {}  # a v1 document knows its main branch without
        return PreparedCommit(
            requirements=[ref_at(name, None) for name in missing],
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
