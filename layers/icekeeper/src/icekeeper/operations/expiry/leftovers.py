"""Deletes the files that an interrupted run has unreferenced, but not deleted (rule 79).

The list of what an expiry frees is remembered before its commit and forgotten after its deletions.  What a later pass
finds there is checked against the newest references, every one of them: when the commit never landed, the files are
still referenced and only the list goes.  It works where orphan removal is switched off.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.delete import DeletedFiles, delete_unneeded
from icekeeper.deletion.file_needs import FileNeeds
from icekeeper.deletion.neighbours import owned_locations
from icekeeper.metadata.table_reader import metadata_files, statistics_files
from icekeeper.operations.expiry.candidates import Candidates
from icekeeper.pass_context.context import OperationContext

__all__ = ["UNCHECKED", "Leftovers", "delete_leftovers", "delete_remembered", "list_name", "unfinished"]

UNCHECKED = ":unchecked"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The names of the lists that interrupted runs left, and those of their files that nobody needs."""

    lists: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    needs: FileNeeds | None = None


def list_name(run_id: str) -> str:
    """A name for the list of one expiry; a run that is repeated under its id does not overwrite the first one's.

    It says that nobody has looked yet which refs went with the commit.
    """
    return f"{run_id}-{uuid.uuid4().hex[:8]}{UNCHECKED}"


def unfinished(context: OperationContext, loaded: LoadedTable) -> Leftovers:
    """What interrupted runs left behind; empty where objects cannot be deleted.

    Raises:
        MetadataUnreadable: a reference cannot be read; the lists stay.
        OperationRefused: a file would be referenced if only scheme or bucket were spelled otherwise.
        StorageError: the state store cannot be read.
    """
    lists = context.memory.unfinished_deletions()
    if not lists or not context.storage(loaded).can_delete(loaded.metadata.location):
        return Leftovers()
    metadata, reader = loaded.metadata, context.reader(loaded)
    needs = FileNeeds(context, loaded)
    candidates = Candidates(owned_locations(metadata), needs.need)
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
        candidates.leave_out(needs.need)
    return Leftovers(lists, candidates.paths(), needs)


def delete_leftovers(context: OperationContext, loaded: LoadedTable, found: Leftovers) -> DeletedFiles:
    """Delete the files and forget the lists; what still could not be deleted stays recorded.

    Raises:
        MaintenanceError: as :func:`delete_unneeded`; the lists stay.
    """
    if not found.files or found.needs is None:
        for name in found.lists:
            context.memory.forget_deletions(name)
        return DeletedFiles()
    what = "expire_snapshots: files of an interrupted run"
    deleted = delete_unneeded(context, loaded, found.files, what, found.needs)
    _settle(context, found.lists[0], deleted)
    for name in found.lists[1:]:
        context.memory.forget_deletions(name)
    return deleted


def delete_remembered(
    context: OperationContext, known: LoadedTable, name: str, files: Sequence[str], needs: FileNeeds
) -> DeletedFiles:
    """Delete the files recorded under ``name``; what could not be deleted stays recorded, the rest is forgotten.

    Raises:
        MaintenanceError: as :func:`delete_unneeded`; the list stays.
    """
    deleted = delete_unneeded(context, known, files, "expire_snapshots: files", needs)
    _settle(context, name, deleted)
    return deleted


def _settle(context: OperationContext, name: str, deleted: DeletedFiles) -> None:
    checked = name.removesuffix(UNCHECKED)
    if deleted.failed:
        context.memory.expect_deletions(checked, deleted.failed)
    if checked != name or not deleted.failed:
        context.memory.forget_deletions(name)
