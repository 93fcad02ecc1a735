"""The ``remove_orphans`` operation: delete listed files that nothing references, once their grace period is over."""

from __future__ import annotations

from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.file_needs import GC_DISABLED
from icekeeper.errors import OperationRefused
from icekeeper.machine.clock import stopwatch
from icekeeper.metadata.document import require_writable
from icekeeper.metadata.table_reader import References, documents
from icekeeper.operations.orphans.compare_listing import (
    DISTRIBUTED_ABOVE,
    Comparison,
    compare_by_engine,
    compare_here,
    live_files,
)
from icekeeper.operations.orphans.data_elsewhere import folders_elsewhere
from icekeeper.operations.orphans.delete_orphans import TableCandidates, delete_orphans
from icekeeper.operations.orphans.inventory import InventoryFiles
from icekeeper.operations.orphans.known_orphans import known_orphans
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation, gc_enabled
from icekeeper.report.outcome import OperationOutcome, skipped
from icekeeper.storage.sources import FileSource, JoinedFiles, ListedLocation
from icekeeper.storage.storage import Storage

__all__ = ["remove_orphans"]

_OPERATION = Operation.REMOVE_ORPHANS


def remove_orphans(context: OperationContext) -> OperationOutcome:
    """Delete unreferenced files past the grace period; summary and metric keys are those of SeaweedFS's
    worker (rule 121).

    Raises:
        OperationRefused: a guard saw danger; nothing was deleted.
        MetadataUnreadable: a reference cannot be read; nothing was deleted.
        PolicyError: the inventory is not one.
        StorageError: the store failed.
    """
    with stopwatch() as elapsed_ms:
        table = context.load()
        skip = why_skipped(context, table)
        if skip is not None:
            return skip
        found = _list_candidates(context, table)
        outcome = delete_orphans(context, found)
        if context.dry_run:
            return outcome
        return replace(outcome, metrics={**outcome.metrics, "remove_orphans.duration_ms": elapsed_ms()})


def why_skipped(context: OperationContext, table: LoadedTable) -> OperationOutcome | None:
    """The outcome of a table whose files must not, or cannot, be deleted; ``None`` if they can.

    Raises:
        TableUnsupported: this version does not maintain the table's format.
        StorageError: the store does not answer.
    """
    require_writable(table.metadata)
    if not gc_enabled(table.metadata):
        return skipped(_OPERATION, GC_DISABLED)
    storage, location = context.storage(table), table.metadata.location
    can_be_read = context.policy.orphan_inventory is not None or storage.can_list(location)
    if can_be_read and (context.only_lists or storage.can_delete(location)):
        return None
    verb = "listed" if not can_be_read else "deleted"
    reason = f"objects cannot be {verb} in this storage; it removes unreferenced files itself"
    return known_orphans(context, table, reason)


def _store_of_list(context: OperationContext, storage: Storage) -> Storage:
    """An inventory is the operator's, wherever it is; one that a table names lies where its files may be."""
    is_tables = context.resolved.sources["orphan_inventory"].startswith("table property")
    return storage if is_tables else storage.operators()


def _list_candidates(context: OperationContext, table: LoadedTable) -> TableCandidates:
    """List the table's files and compare them with its references, which are read before the listing.

    :func:`delete_orphans` reads what was committed since.
    """
    storage, reader, metadata = context.storage(table), context.reader(table), table.metadata
    inventory = context.policy.orphan_inventory
    roots = (metadata.location, *folders_elsewhere(metadata, context.policy.orphan_sweep_prefixes))
    source: FileSource
    if context.orphan_candidates is not None:
        source = context.orphan_candidates
    elif inventory is not None:
        if len(roots) > 1:
            raise OperationRefused(
                f"orphan_sweep_prefixes names {roots[1]}, outside of the table's location, which is swept by a listing "
                "only; nothing was deleted; set orphan_inventory=none, or take the folder out"
            )
        source = InventoryFiles(_store_of_list(context, storage), inventory, metadata.location)
    else:
        source = JoinedFiles(tuple(ListedLocation(storage, root) for root in roots))
    grace_ms = context.policy.orphan_older_than_ms
    older_than_ms = context.stores.trusted_now_ms(table, grace_ms, "orphan_older_than_hours") - grace_ms
    references = References()
    manifests = references.listed(reader, metadata.snapshots.values())
    named = [*documents(metadata, table.metadata_location), *context.memory.pinned_metadata(), *manifests]
    asked = Comparison(source, roots, named, manifests, references, older_than_ms)
    if live_files(manifests.values()) > DISTRIBUTED_ABOVE:
        candidates = compare_by_engine(asked, context.engine, storage)
    else:
        candidates = compare_here(asked, reader)
    if context.orphan_candidates is not None:  # the listing that found these has seen what is missing
        candidates = replace(candidates, unlisted=None)
    if not candidates.listed and inventory is not None and context.orphan_candidates is None:
        raise OperationRefused(
            f"{inventory} (orphan_inventory) names no file under {metadata.location}, where at least the table's "
            "metadata is; nothing was deleted; name the inventory of the table's bucket, or set orphan_inventory=none"
        )
    return TableCandidates(table, candidates, references, older_than_ms, source.is_current)
