"""Finish interrupted expiries: delete the files that they freed, and pin the snapshots of lost branches and tags.

An expiry records the list of files that it will free before its commit, and removes the list after its deletions
(rule: protection-is-written-at-once).  A later pass checks the files of such a list against all current references.
If the commit never landed, the files are still referenced, and only the list is removed.  This works even if orphan
removal is off.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.delete import DeletedFiles, delete_unneeded
from icekeeper.deletion.file_needs import FileNeeds
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.document import Ref, TableMetadata
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.table_reader import metadata_files, statistics_files
from icekeeper.operations.expiry.retention import aged_refs
from icekeeper.operations.expiry.unreferenced import Candidates
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.store import UNTIL_REMOVED_MS, Pin, PinKind
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

UNCHECKED = ":unchecked"
"""Ends the name of a list while it is unknown which refs the commit dropped."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The names of the lists that interrupted runs left, and the files in them that nothing needs."""

    lists: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    needs: FileNeeds | None = None


def list_name(run_id: str) -> str:
    """A name for the list of an expiry, unique even if a run is repeated under the same id."""
    return f"{run_id}-{uuid.uuid4().hex[:8]}{UNCHECKED}"


def unfinished(context: OperationContext, loaded: LoadedTable) -> Leftovers:
    """What interrupted runs left; empty if the store does not allow deletions.

    Raises:
        MetadataUnreadable: a reference cannot be read; the lists stay.
        OperationRefused: a file is referenced under another scheme, bucket or host.
        StorageError: the state store cannot be read.
    """
    lists = context.memory.unfinished_deletions()
    if not lists or not context.stores.storage(loaded).can_delete(loaded.metadata.location):
        return Leftovers()
    metadata, reader = loaded.metadata, context.reader(loaded)
    needs = FileNeeds(context, loaded)
    candidates = Candidates(needs.need)
    for path in chain.from_iterable(map(context.memory.files_to_delete, lists)):
        candidates.add(path, 0, holds_rows=True)
    needed = chain(
        metadata_files(metadata, loaded.metadata_location),
        statistics_files(metadata),
        needs.references.follow(reader, metadata.snapshots.values()),
    )
    for path in needed:
        if not candidates.files_left:
            break
        candidates.spare(path)
    if candidates.files_left:
        needs.ask(list(candidates.of_each_folder()))
        candidates.leave_out_needed()
    return Leftovers(lists, candidates.paths(), needs)


def delete_recorded(
    context: OperationContext,
    known: LoadedTable,
    lists: Sequence[str],
    files: Sequence[str],
    needs: FileNeeds,
    what: str = "expire_snapshots: files",
) -> DeletedFiles:
    """Delete the files recorded under the names of ``lists``; files that cannot be deleted stay recorded.

    Raises:
        MaintenanceError: as :func:`delete_unneeded`; the lists stay.
    """
    deleted = delete_unneeded(context, known, files, what, needs)
    first, *others = lists
    checked = first.removesuffix(UNCHECKED)
    if deleted.failed:
        context.memory.expect_deletions(checked, deleted.failed)
    if checked != first or not deleted.failed:
        others.insert(0, first)
    for name in others:
        context.memory.forget_deletions(name)
    return deleted


# Which state did the commit actually replace?
#
# A REST catalog applies a commit to the newest state if the commit's requirements hold there.  So the replaced state
# may be newer than the state for which the commit was prepared, and may have refs that this run has never seen.  Each
# state names the metadata file of its predecessor (specification, "Table Metadata Fields", ``metadata-log``).

# Normally one step is enough; on a busy table it takes as many steps as commits were made since the interrupted run.
_MOST_STATES = 500


@dataclass(frozen=True, slots=True)
class Swap:
    """The state that a commit replaced (``before``, in the file ``location``), and its successor."""

    location: str
    before: TableMetadata
    after: TableMetadata


def find_swap(
    now: LoadedTable, is_before: Callable[[TableMetadata], bool], storage: Storage, known: LoadedTable | None = None
) -> Swap | None:
    """The last state for which ``is_before`` holds, and its successor; ``is_before`` must not hold for ``now``.

    ``known`` is a state that has already been read, usually the replaced state.  Returns ``None`` if the log does not
    reach back far enough, or its files are gone.

    Raises:
        MetadataUnreadable: a state cannot be read or parsed.
    """
    after = now.metadata
    for _ in range(_MOST_STATES):
        log = after.metadata_log
        location = str(log[-1]["metadata-file"]) if log else None
        if location is None:
            return None
        if known is not None and normalise(location) == normalise(known.metadata_location):
            before: TableMetadata | None = known.metadata
        else:
            before = _read(storage, location)
        if before is None:
            return None
        if is_before(before):
            return Swap(location, before, after)
        after = before
    return None


def _read(storage: Storage, location: str) -> TableMetadata | None:
    """The metadata in a file; ``None`` if the file is gone."""
    try:
        return parse_document(storage.read(location), location)
    except MetadataUnreadable:
        raise
    except StorageError as error:
        if storage.size(location) is None:
            return None
        raise MetadataUnreadable(f"metadata file {error}") from error


LostRef: TypeAlias = tuple[Ref, Pin]
"""A branch or tag that the catalog dropped with its snapshot, and the pin that keeps the files.

A commit asserts every known ref, but it cannot assert a ref that is created between the last load of the table and the
commit.  REST catalogs drop such a ref with its snapshot without an error.  They do not accept the snapshot back,
because its sequence number is too old.  So a pin keeps the files until a person decides
(platform: seaweedfs-drops-refs)."""


def hold_lost_refs(memory: TableMemory, swap: Swap, dropped: Collection[str]) -> tuple[LostRef, ...]:
    """Pin the snapshot of each ref that was dropped with it; ``dropped``: the refs that were meant to expire.

    Raises:
        StorageError: a pin cannot be written; nothing must be deleted.
    """
    gone = swap.before.snapshots.keys() - swap.after.snapshots.keys()
    lost: list[LostRef] = []
    for name in swap.before.refs.keys() - dropped:
        ref = swap.before.refs[name]
        if ref.snapshot_id in gone:
            pin = Pin(
                identity=memory.identity,
                # With a colon, so that no reader's pin can have this name.
                name=f"lost:{ref.name}@{ref.snapshot_id}",
                snapshot_id=ref.snapshot_id,
                metadata_location=swap.location,
                expires_ms=UNTIL_REMOVED_MS,
                kind=PinKind.LOST_REF,
            )
            memory.store.add_pin(pin)
            lost.append((ref, pin))
    return tuple(lost)


def lost_refs_sentence(lost: Sequence[LostRef]) -> str:
    """A sentence for people about what happened to each ref and what they can do."""
    return "; ".join(
        f"{ref.type} '{ref.name}' was created while the expiry was being committed, and the catalog dropped it with "
        f"its snapshot {ref.snapshot_id}: pin '{pin.name}' keeps its files; register {pin.metadata_location} as a "
        "table to read it, and remove the pin when it is no longer needed"
        for ref, pin in lost
    )


@dataclass(frozen=True, slots=True)
class Resumed:
    """The files that interrupted runs left, the result of deleting them, and the refs that their commits dropped."""

    files: tuple[str, ...]
    deleted: DeletedFiles = field(default_factory=DeletedFiles)
    lost: tuple[LostRef, ...] = ()
    doubt: str | None = None
    """Why nothing was deleted: it is unknown which refs were lost."""
    expired: int = 0
    """The number of snapshots that those commits expired; no run has reported them (rule: failures-cost-no-row)."""

    @property
    def sentences(self) -> list[str]:
        if not self.files:
            return []
        done = f"deleted {len(self.deleted.deleted)} file(s) that an interrupted run left behind"
        return [self.doubt or done, *self.deleted.failures]


def resume(context: OperationContext, loaded: LoadedTable, left: Leftovers) -> Resumed:
    """Find the refs that interrupted runs' commits dropped, pin their snapshots, and then delete what is left.

    If the metadata log cannot be read, the lists stay.  If it does not reach back far enough, the lists are removed and
    their files are left to orphan removal.

    Raises:
        MaintenanceError: as :func:`delete_unneeded`; the lists stay.
    """
    unchecked = [name for name in left.lists if name.endswith(UNCHECKED)] if left.files else []
    free, lost, expired = set(map(normalise, left.files)), list[LostRef](), set[int]()
    for name in unchecked:
        # A commit that never landed freed nothing.  The list of a commit that landed contains its snapshots' manifest
        # lists.
        files = free.intersection(map(normalise, context.memory.files_to_delete(name)))
        if not files:
            continue
        try:
            swap = find_swap(loaded, partial(_has_one_of, files), context.stores.storage(loaded))
        except MetadataUnreadable as error:
            why = f"files of an interrupted run stay until it is known which refs its commit dropped: {error}"
            return Resumed(left.files, lost=tuple(lost), doubt=why)
        if swap is None:
            for given_up in unchecked:
                context.memory.forget_deletions(given_up)
            why = (
                f"{len(free)} file(s) of an interrupted run are left to remove_orphans, because the metadata log no "
                "longer shows which refs its commit dropped"
            )
            return Resumed(left.files, lost=tuple(lost), doubt=why)
        lost += hold_lost_refs(context.memory, swap, aged_refs(swap.before, context.stores.now_ms(loaded)))
        expired |= swap.before.snapshots.keys() - swap.after.snapshots.keys()
    deleted = DeletedFiles()
    if left.files and left.needs is not None:
        what = "expire_snapshots: files of an interrupted run"
        deleted = delete_recorded(context, loaded, left.lists, left.files, left.needs, what)
    else:
        for name in left.lists:
            context.memory.forget_deletions(name)
    return Resumed(left.files, deleted, tuple(lost), expired=len(expired))


def _has_one_of(files: Collection[str], then: TableMetadata) -> bool:
    lists = (snapshot.manifest_list for snapshot in then.snapshots.values())
    return any(path is not None and normalise(path) in files for path in lists)
