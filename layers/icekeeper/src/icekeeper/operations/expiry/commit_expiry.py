"""Commit an expiry, prepared again for each newer head, then delete the files that it freed.

Some catalogs drop refs together with snapshots.  The commit asserts every known ref; dropped refs are restored
afterwards, or a pin keeps their files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit, snapshots_of_run
from icekeeper.commit.transaction import Committed
from icekeeper.deletion.delete import DeletedFiles
from icekeeper.deletion.file_needs import GC_DISABLED, FileNeeds
from icekeeper.errors import (
    CommitConflict,
    CommitStateUnknown,
    MaintenanceError,
    MetadataUnreadable,
    PolicyError,
    StorageError,
    is_damage,
)
from icekeeper.machine.interrupts import uninterrupted
from icekeeper.metadata.document import Ref, TableMetadata, history_digest, require_writable
from icekeeper.metadata.updates import ref_at, same_table
from icekeeper.model import Nothing
from icekeeper.operations.expiry.leftovers import LostRef, delete_recorded, find_swap, hold_lost_refs, list_name
from icekeeper.operations.expiry.retention import (
    NOTHING_TO_EXPIRE,
    ExpiryPlan,
    expiry_at,
    only_reviewed,
    refuse_broken_chains,
    refuse_protected,
)
from icekeeper.operations.expiry.unreferenced import (
    Unreferenced,
    UnusedMetadata,
    is_still_lost,
    lost_snapshots,
    still_unreferenced,
    unreferenced_files,
    unused_metadata,
    way_out,
)
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import gc_enabled
from icekeeper.state.findings import MOST_NEEDING, RefusedExpiry


@dataclass(frozen=True, slots=True)
class Expiry:
    """What a commit attempt removes: ``files`` are the paths, ``unused`` the partition specs and schemas."""

    plan: ExpiryPlan
    base: LoadedTable
    needs: FileNeeds
    unreferenced: Unreferenced
    files: tuple[str, ...]
    unused: UnusedMetadata

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return self.unreferenced.candidates.size


def removal_of(metadata: TableMetadata, plan: ExpiryPlan, unused: UnusedMetadata) -> PreparedCommit:
    """The commit for a plan; it asserts every known ref."""
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
    """Load the table, and restore the refs of ``base`` that the catalog dropped although their snapshot exists.

    Raises:
        CommitConflict: a dropped ref cannot be restored.
    """

    aged = set(plan.refs)

    def lost(metadata: TableMetadata) -> Mapping[str, Ref]:
        return {
            name: ref
            for name, ref in base.refs.items()
            if name not in aged and name not in metadata.refs and ref.snapshot_id in metadata.snapshots
        }

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        missing = lost(head.metadata)
        if not missing:
            return Nothing("no ref is missing")
        refs: Mapping[str, Any] = base.document.get("refs") or {}  # a v1 document has no refs, but a main branch
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


class ExpiryAttempts:
    """The attempts to commit an expiry; ``expiry`` belongs to the last attempt.

    Snapshots that expire only on a newer head than the first are left to the next pass.
    """

    def __init__(self, context: OperationContext) -> None:
        self.expiry: Expiry | None = None
        self.can_delete = True
        self.cleans_metadata = context.policy.clean_expired_metadata
        """False once the catalog has refused to remove unused specs and schemas."""
        self.kept_for_writers = 0
        """The number of snapshots kept only because a streaming writer needs them to find its last commit."""
        self.due_since_plan = 0
        """The number of snapshots that are due and not in the saved plan."""
        self.lost_refs: tuple[LostRef, ...] = ()
        """Refs that the catalog dropped with the commit although the commit did not remove them."""
        self.unchecked: str | None = None
        """Why it is unknown which refs the commit dropped; then nothing is deleted."""
        self._context = context
        self._list = list_name(context.run_id)
        self._remembered: Unreferenced | None = None
        self._refused: RefusedExpiry | None = None

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        """The commit for this head.

        Raises:
            MetadataUnreadable: a needed manifest list or manifest cannot be read.
            OperationRefused: the table is protected, or its state is suspicious.
        """
        require_writable(head.metadata)
        if not gc_enabled(head.metadata):
            return Nothing(GC_DISABLED)
        plan = self._plan(head)
        if isinstance(plan, Nothing):
            return plan
        self.expiry = self._freed(head, plan)
        self._context.require_reviewed(head, self.expiry.files)
        return removal_of(head.metadata, plan, self.expiry.unused)

    def land(self, loaded: LoadedTable) -> Expiry | Nothing:
        """Record which files will be deleted, then commit.

        Raises:
            MaintenanceError: nothing was committed.
            CommitStateUnknown: it is unknown whether the commit landed; a later pass finds out from the references.
        """
        # Planning may take minutes.  A catalog that checks only the assertions would drop a tag that was created
        # meanwhile with its snapshot.  So the commit is made for the newest head (rule: assert-refs-on-expiry).
        planned = self.prepare(loaded)
        if isinstance(planned, Nothing):
            return planned
        with uninterrupted():  # no interrupt between the commit and restoring the refs that it dropped
            try:
                committed = self._commit(self._context.load())
            except CommitStateUnknown:
                raise
            except MaintenanceError:
                self._forget()
                raise
            if isinstance(committed, Nothing):
                self._forget()
                return committed
            if self.expiry is None:
                return Nothing(NOTHING_TO_EXPIRE)
            if self._refused is not None:
                self._context.memory.forget_refused_expiry()
            self._look_after_refs(committed, self.expiry)
            return self.expiry

    def delete(self, expiry: Expiry) -> DeletedFiles:
        """Delete the files that the commit freed, if the store allows deletions.

        Raises:
            MaintenanceError: as :func:`delete_unneeded`; a later pass deletes the rest.
        """
        if not expiry.files or not self.can_delete or self.unchecked is not None:
            return DeletedFiles()
        return delete_recorded(self._context, expiry.base, [self._list], expiry.files, expiry.needs)

    def _commit(self, loaded: LoadedTable) -> Committed | Nothing:
        try:
            return self._context.commit(loaded, self._remembering)
        except (StorageError, PolicyError) as error:
            # Nothing was committed.  A catalog that does not know the updates for specs and schemas must not stop
            # expiry, so try again without them.
            if isinstance(error, MetadataUnreadable) or self.expiry is None or not self.expiry.unused:
                raise
            self.cleans_metadata = False
            return self._context.commit(self._context.load(), self._remembering)

    def _remembering(self, head: LoadedTable) -> PreparedCommit | Nothing:
        prepared = self.prepare(head)
        if not isinstance(prepared, Nothing) and self.expiry is not None and self.expiry.files:
            self.can_delete = self._context.stores.storage(head).can_delete(head.metadata.location)
            # On a newer head the same snapshots can only free fewer files.
            if self.can_delete and self._remembered is not self.expiry.unreferenced:
                self._remembered = self.expiry.unreferenced
                self._context.memory.expect_deletions(self._list, self.expiry.files)
        return prepared

    def _forget(self) -> None:
        if self._remembered is not None:
            self._context.memory.forget_deletions(self._list)

    def _look_after_refs(self, committed: Committed, expiry: Expiry) -> None:
        """Find refs that were dropped with the commit; restore them if possible, else pin their snapshots."""
        gone = set(expiry.plan.snapshot_ids)
        base, after = expiry.base, committed.table
        if gone:
            try:
                swap = find_swap(
                    after, lambda then: not gone.isdisjoint(then.snapshots), self._context.stores.storage(after), base
                )
            except MetadataUnreadable as error:
                swap, self.unchecked = None, str(error)
            if swap is not None:
                self.lost_refs = hold_lost_refs(self._context.memory, swap, expiry.plan.refs)
                base = replace(base, metadata=swap.before)
            elif self.unchecked is None:
                self.unchecked = "the metadata log does not show on which state the commit was made"
        # Restore the refs that this expiry dropped, even if the table is paused now.
        restore_refs(replace(self._context, may_be_stopped=False), base.metadata, expiry.plan)

    def _plan(self, head: LoadedTable) -> ExpiryPlan | Nothing:
        metadata = head.metadata
        pinned = [pin.snapshot_id for pin in self._context.memory.pins()]
        policy, now_ms = self._context.policy, self._context.stores.aged_until_ms(head)
        refuse_protected(metadata, policy, pinned)
        refuse_broken_chains(metadata, policy, now_ms)
        plan = expiry_at(metadata, policy, now_ms=now_ms, pinned=pinned)
        self.kept_for_writers = plan.kept_for_writers
        if (reviewed := self._context.reviewed) is not None:
            known = reviewed.snapshots.union(snapshots_of_run(self._context.run_id, metadata))
            part = only_reviewed(metadata, plan, known, reviewed.refs)
            self.due_since_plan = len(plan.snapshot_ids) - len(part.snapshot_ids)
            plan = part
        if not plan:
            return Nothing(NOTHING_TO_EXPIRE)
        if self.expiry is None and not policy.named_snapshots[1] and (why := self._why_waiting(head)) is not None:
            return Nothing(f"it waits and is tried once a week: {why}")
        self._context.stores.trusted_now_ms(head, policy.snapshot_retention_ms, "snapshot_retention_hours")
        if self.expiry is not None:
            before = set(self.expiry.plan.snapshot_ids)
            plan = replace(plan, snapshot_ids=tuple(i for i in plan.snapshot_ids if i in before))
        return plan or Nothing(NOTHING_TO_EXPIRE)

    def _why_waiting(self, head: LoadedTable) -> str | None:
        """Why the last expiry was refused, if that file still cannot be read
        (rule: leave-out-unreadable-files)."""
        refused = self._refused = self._context.memory.refused_expiry()
        if refused is None or not refused.waits(
            history_digest(head.metadata, refused.needed_by), self._context.memory.clock()
        ):
            return None
        first = refused.needed_by[0]  # a restored file must not wait for a week
        return refused.why if is_still_lost(self._context.reader(head), first, refused.why) else None

    def _freed(self, head: LoadedTable, plan: ExpiryPlan) -> Expiry:
        """The files that the plan frees on this head; if the last attempt had the same snapshots, only new metadata is
        read."""
        expired, reader, before = set(plan.snapshot_ids), self._context.reader(head), self.expiry
        unused = UnusedMetadata()
        if before is not None and (before.plan, before.base.metadata_location) == (plan, head.metadata_location):
            return before if self.cleans_metadata else replace(before, unused=unused)
        if before is not None and before.plan.snapshot_ids == plan.snapshot_ids and not self.cleans_metadata:
            needs, unreferenced = before.needs, before.unreferenced
            still_unreferenced(reader, expired, unreferenced)
        else:
            needs = FileNeeds(self._context, head)
            gives_up = bool(self._context.policy.snapshot_give_up_ids)
            try:
                unreferenced = unreferenced_files(reader, expired, needs.need, gives_up=gives_up)
            except MetadataUnreadable as error:
                lost = lost_snapshots(reader, str(error))
                why = f"{error}; {way_out(head.metadata, lost)}"
                if lost and is_damage(error) and not self._context.dry_run:
                    history = history_digest(head.metadata, lost[:MOST_NEEDING])
                    self._context.memory.remember_refused_expiry(why, lost, history)
                raise MetadataUnreadable(why) from error
            needs.references = unreferenced.references
            candidates = unreferenced.candidates
            if any(True for _ in candidates) and self._context.stores.storage(head).can_delete(head.metadata.location):
                needs.ask(list(candidates.of_each_folder()))
                candidates.leave_out_needed()
            if self.cleans_metadata:
                unused = unused_metadata(head.metadata, expired, unreferenced.kept_specs, unreferenced.keeps_deletes)
        return Expiry(plan, head, needs, unreferenced, unreferenced.candidates.paths(), unused)
