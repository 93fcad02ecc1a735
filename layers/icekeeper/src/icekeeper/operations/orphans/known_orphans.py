"""Finds orphans without a listing, where a store cannot list: nothing is deleted, but the outcome names them.

The metadata log leads to the files of older snapshots, the state store to those that our own failed jobs wrote
(rule 102).  Nothing depends on the answer, so metadata that cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.deletion.shared_references import recorded_files
from icekeeper.errors import MaintenanceError, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.table_reader import References, TableReader, reachable_paths
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, skipped
from icekeeper.storage.paths import is_under
from icekeeper.storage.storage import Storage

__all__ = ["known_orphans"]

_PARALLEL_LOOKS = 16


def known_orphans(context: OperationContext, table: LoadedTable, reason: str) -> OperationOutcome:
    """Skip orphan removal for ``reason``; ``files_planned`` are known files that exist and that nothing references.

    Raises:
        MetadataUnreadable: the table's own references cannot be read.
        StorageError: the state store cannot be read.
    """
    storage, home = context.storage(table), table.metadata.location
    needed = ReferencedPaths(home, reachable_paths(context.reader(table), table.metadata_location, References()))
    needed.update(context.memory.pinned_metadata())
    known = chain(_of_history(table, storage), _of_failed_loads(context))
    candidates = sorted({path for path in known if path not in needed and is_under(path, home)})
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="orphan-look") as pool:
        is_there = pool.map(partial(_is_there, storage), candidates)
        there = [path for path, found in zip(candidates, is_there, strict=True) if found]
    metrics = {"remove_orphans.orphans_known": len(there)}
    outcome = skipped(Operation.REMOVE_ORPHANS, reason, metrics=metrics)
    return replace(outcome, files_planned=tuple(there))


def _of_history(table: LoadedTable, storage: Storage) -> Iterator[str]:
    """The paths that the documents of the metadata log reference: files of snapshots, and older metadata files."""
    references = References(snapshots=set(table.metadata.snapshots))
    for entry in table.metadata.metadata_log:
        location = str(entry["metadata-file"])
        try:
            reader = TableReader(parse_document(storage.read(location), location), storage.read)
            # One snapshot at a time: the bucket may have removed the files of some.
            yield from (str(older["metadata-file"]) for older in reader.metadata.metadata_log)
        except MaintenanceError:
            continue
        for snapshot in reader.metadata.snapshots.values():
            try:
                yield from references.follow(reader, [snapshot])
            except MaintenanceError:
                continue


def _of_failed_loads(context: OperationContext) -> Iterator[str]:
    now_ms = context.memory.clock()
    for load in context.memory.staged_loads():
        if load.failed_since(now_ms) is not None:
            yield from recorded_files(context.memory, load)


def _is_there(storage: Storage, path: str) -> bool:
    try:
        return storage.status(path) is not None
    except StorageError:
        return False
