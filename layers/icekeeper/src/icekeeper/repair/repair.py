"""Repairs a table: read its head, plan, and under its lease plan again, commit, and write the journal.

A repair does exactly what was shown.  The plan is made anew under the lease and on each newer head, and a plan that
differs from the one that was shown is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.errors import CommitStateUnknown, MaintenanceError, MetadataUnreadable, PlanStale, StorageError
from icekeeper.metadata.document import branch_head, require_writable
from icekeeper.metadata.table_reader import manifests_of
from icekeeper.model import Nothing
from icekeeper.pass_context.context import OperationContext
from icekeeper.repair.choices import duplicate_entries
from icekeeper.repair.damage import wrong_lists
from icekeeper.repair.deletes import broken_deletes
from icekeeper.repair.file_metrics import file_metrics
from icekeeper.repair.lost_files import lost_files
from icekeeper.repair.newer_metadata import move_pointer, newer_metadata_found, plan_pointer
from icekeeper.repair.plan import Found, Head, RepairOptions, RepairPlan, plan_of
from icekeeper.repair.unreadable import find_unreadable
from icekeeper.repair.way_back import tag_of, tag_update, why_no_tag
from icekeeper.state.store import PassRecord
from icekeeper.storage.copies import copy_object, create_object
from icekeeper.storage.storage import Storage
from icekeeper.text import counted
from icekeeper.verification.checks import REPAIR
from icekeeper.verification.verify import sizes_of

log = logging.getLogger(__name__)

Finder = Callable[[Head, RepairOptions], Found]
"""A pure finder, which decides by what was read of the head."""
FINDERS: tuple[Finder, ...] = (wrong_lists,)
ReadingFinder = Callable[[Head, RepairOptions, LoadedTable, Storage], Found]
"""A finder that reads more of the table, such as footers or vectors."""
READING_FINDERS: tuple[ReadingFinder, ...] = (duplicate_entries, broken_deletes, lost_files, file_metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOutcome:
    """What a repair did, or would do."""

    table: str
    catalog: str
    run_id: str
    dry_run: bool
    plan: RepairPlan | None
    """``None``: the branch has no snapshot."""
    retained: tuple[tuple[int, str], ...] = ()
    """The other retained snapshots with the same damage: id, and ``mended`` or ``unmended``."""
    snapshot_id: int | None = None
    """The snapshot that was committed."""
    tag: str | None = None
    """The tag that keeps the head from before the repair."""
    no_tag: str | None = None
    """Why no tag keeps it."""

    @property
    def summary(self) -> str:
        """A sentence for people and the journal."""
        plan = self.plan
        if plan is None or (plan.is_empty and not plan.unmended):
            return "nothing to repair"
        copies, parts = sum(mend.is_copy for mend in plan.mends), list[str]()
        if plan.needs_commit:
            entries = counted(len(plan.mends) - copies, "entry", "entries")
            does, manifests = "would mend" if self.dry_run else "mended", counted(len(plan.affected), "manifest")
            parts.append(f"{does} {entries} in {manifests} ({plan.operation})")
        if copies:
            parts.append(f"{'would copy' if self.dry_run else 'copied'} {counted(copies, 'file')} back")
        if plan.files:
            does, files = "would bring" if self.dry_run else "brought", counted(len(plan.files), "metadata file")
            parts.append(f"{does} {files} back; repair again afterwards: no entry was looked at")
        if plan.pointer is not None:
            parts.append(f"{'would be done' if self.dry_run else 'done'}: {plan.pointer.sentence}")
        if plan.unmended:
            parts.append(f"{counted(len(plan.unmended), 'finding')} left")
        if self.tag is not None:
            parts.append(f"tag {self.tag} keeps the old head for 30 days")
        if self.no_tag is not None:
            parts.append(f"no tag keeps the old head: {self.no_tag}")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """The document of ``repair --json``."""
        plan = self.plan
        return {
            "table": self.table,
            "catalog": self.catalog,
            "status": "failed" if plan is not None and plan.unmended else "succeeded",
            "run_id": self.run_id,
            "dry_run": self.dry_run,
            "summary": self.summary,
            "operation": None if plan is None or not plan.needs_commit else plan.operation,
            "repaired_manifests": 0 if plan is None else len(plan.affected),
            "repaired_entry_count": 0 if plan is None else len(plan.mends),
            "mends": [] if plan is None else [mend.document() for mend in plan.every],
            "unmended": [] if plan is None else [left.document() for left in plan.unmended],
            "retained": [{"snapshot_id": i, "snapshot_id_text": str(i), "state": state} for i, state in self.retained],
            "snapshot_id": self.snapshot_id,
            "snapshot_id_text": None if self.snapshot_id is None else str(self.snapshot_id),
            "tag": self.tag,
            "no_tag": self.no_tag,
        }


def plan_repair(context: OperationContext, loaded: LoadedTable, options: RepairOptions) -> RepairPlan | None:
    """The plan for the head of the policy's branch; ``None``: it has no snapshot.

    A manifest list or manifest that cannot be read is a finding of its own; then nothing else is planned.

    Raises:
        PolicyError: there is no such branch.
        StorageError: the store does not answer.
    """
    branch = context.policy.branch
    snapshot = branch_head(loaded.metadata, branch)
    if snapshot is None:
        return None
    if options.point_to is not None:
        pointer = plan_pointer(context, loaded, options.point_to)
        return RepairPlan(snapshot_id=snapshot.snapshot_id, branch=branch, pointer=pointer)
    storage, reader = context.stores.storage(loaded), context.reader(loaded)
    lost = find_unreadable(loaded, storage, reader.read, context.catalogs.own.id.name)
    unmended = (*lost.unmended, *newer_metadata_found(context, loaded))
    if lost.files or snapshot.snapshot_id in {number for number, _ in lost.states}:
        return RepairPlan(
            snapshot_id=snapshot.snapshot_id, branch=branch, files=lost.files, unmended=unmended, states=lost.states
        )
    manifests = tuple(reader.manifests(snapshot))
    entries = {m.manifest_path: tuple(found) for m, found in reader.entries(manifests)}
    paths = {e.file.file_path for found in entries.values() for e in found if e.is_live} | entries.keys()
    head = Head(
        metadata=loaded.metadata,
        snapshot=snapshot,
        manifests=manifests,
        entries=entries,
        sizes=sizes_of(loaded, storage, {path for path in paths if storage.allows(path)}),
    )
    found = [finder(head, options) for finder in FINDERS]
    found += [finder(head, options, loaded, storage) for finder in READING_FINDERS]
    return replace(plan_of(head, branch, [*found, Found(unmended=unmended)]), states=lost.states)


def planned(context: OperationContext, loaded: LoadedTable, options: RepairOptions) -> RepairOutcome:
    """The outcome of a dry run; raises as :func:`plan_repair`."""
    plan = plan_repair(context, loaded, options)
    return RepairOutcome(
        table=str(context.table),
        catalog=context.catalogs.own.id.name,
        run_id=context.run_id,
        dry_run=True,
        plan=plan,
        retained=() if plan is None else (*_retained(context, loaded, plan), *plan.states),
    )


def _retained(context: OperationContext, loaded: LoadedTable, plan: RepairPlan) -> Iterator[tuple[int, str]]:
    """The snapshots beside the head that list a manifest of the plan: they are immutable, so most stay as they are."""
    damaged = {*plan.affected, *(mend.manifest for mend in plan.mends)}
    reader = context.reader(loaded)
    for snapshot in loaded.metadata.snapshots.values():
        if snapshot.snapshot_id == plan.snapshot_id or not damaged:
            continue
        try:
            listed = manifests_of(reader, [snapshot]).keys()
        except MetadataUnreadable:  # one of ``states``
            continue
        if not damaged.isdisjoint(listed):
            yield snapshot.snapshot_id, "mended" if plan.affected.isdisjoint(listed) else "unmended"


def repair(context: OperationContext, loaded: LoadedTable, options: RepairOptions, shown: str) -> RepairOutcome:
    """Do what the plan with the digest ``shown`` says, and record it in the journal; the context holds the lease.

    Raises:
        PlanStale: the table changed so that another plan results; nothing was changed.
        MaintenanceError: nothing was committed, or the outcome of the commit is unknown.
    """
    context = replace(context, may_be_stopped=True)
    context.require_allowed()
    began_ms, outcome = context.clock(), replace(planned(context, loaded, options), dry_run=False)
    plan = outcome.plan
    _require_same(plan, shown)
    if plan is None or plan.is_empty:
        return outcome
    if plan.pointer is not None:
        move_pointer(context, loaded, plan.pointer.path)
    with _written_files(context, loaded, plan):
        outcome = _committed(context, loaded, options, outcome, plan)
    _journal(context, outcome, began_ms)
    return outcome


def _require_same(plan: RepairPlan | None, shown: str) -> None:
    if plan is not None and plan.digest != shown:
        raise PlanStale("the table has changed since the repair was planned; nothing was changed; plan again")


@contextmanager
def _written_files(context: OperationContext, loaded: LoadedTable, plan: RepairPlan) -> Iterator[None]:
    """Copy or write the files that mends add.

    A file that is written here is removed if no commit landed; another attempt may still commit one that was there.
    A copy stays where its entry expects it.  Sources of copies stay, too: the lease keeps other passes of this state
    from deleting them, and a sweep keeps files like missing files.
    """
    storage, written = context.stores.storage(loaded), list[str]()
    for file in plan.files:
        context.limits.require_lease()
        create_object(storage, file.path, file.data)
    for mend in plan.mends:
        if mend.becomes is None:
            continue
        path = mend.becomes.file.file_path
        if mend.copy_from is not None:
            context.limits.require_lease()
            copy_object(storage, mend.copy_from, path, mend.copy_version)
        elif mend.new_file is not None and path not in written:
            context.limits.require_lease()
            if create_object(storage, path, mend.new_file):
                written.append(path)
    try:
        yield
    except CommitStateUnknown:
        raise
    except MaintenanceError:
        context.discard(loaded, written)
        raise


def _committed(
    context: OperationContext, loaded: LoadedTable, options: RepairOptions, outcome: RepairOutcome, plan: RepairPlan
) -> RepairOutcome:
    done = outcome
    """The outcome of the last attempt."""

    def prepare(head: LoadedTable) -> PreparedCommit:
        nonlocal done
        require_writable(head.metadata)
        current = plan
        if head.metadata_location != loaded.metadata_location:
            again = plan_repair(context, head, options)
            if again is None:
                raise PlanStale(f"branch '{plan.branch}' no longer has a snapshot")
            _require_same(again, plan.after_copies.digest)
            current = again
        writer = replace(context.snapshot_writer(head), operation=REPAIR)
        reader, keep = context.reader(head), list[Mapping[str, Any]]()
        no_tag = why_no_tag(head.metadata, reader, writer.head)
        if no_tag is None:
            keep.append(tag_update(head.metadata, writer.head, context.stores.now_ms(head)))
        done = replace(outcome, tag=None if no_tag else tag_of(current.snapshot_id), no_tag=no_tag)
        manifests = reader.manifests(writer.head)
        return writer.mend_entries(current.mended_entries, manifests, current.affected, current.operation, keep)

    if not plan.needs_commit:
        return outcome
    committed = context.commit(loaded, prepare)
    assert not isinstance(committed, Nothing)
    return replace(done, plan=plan, snapshot_id=committed.prepared.snapshot_id)


def _journal(context: OperationContext, outcome: RepairOutcome, began_ms: int) -> None:
    document = outcome.to_json()
    metrics = {f"repair.{key}": document[key] for key in ("repaired_manifests", "repaired_entry_count")}
    record = PassRecord(
        identity=context.memory.identity,
        run_id=context.run_id,
        started_ms=began_ms,
        finished_ms=context.clock(),
        status="succeeded",
        summary=f"repair: {outcome.summary}",
        metrics=metrics,
        engine="none",
    )
    try:
        context.state.record_pass(record)
    except StorageError as error:
        log.warning("%s: the repair could not be recorded: %s", context.table, error)
