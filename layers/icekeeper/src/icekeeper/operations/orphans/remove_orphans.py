"""The ``remove_orphans`` operation: list, then load references, then delete what is old and nobody's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from icekeeper.errors import MetadataUnreadable, OperationRefused, StorageError
from icekeeper.metadata.document_files import leading_uuid, parse_document
from icekeeper.metadata.reachability import References, reachable_files
from icekeeper.operations.context import OperationContext, require_writable, stopwatch
from icekeeper.operations.deletion import GC_DISABLED, delete_unreferenced, owned_locations
from icekeeper.operations.orphans import MetadataOwner, is_metadata_file, plan_orphans, refuse_foreign_tables
from icekeeper.policy import Operation, gc_enabled
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded
from icekeeper.storage import Storage
from icekeeper.storage_paths import may_be_under, normalise

__all__ = ["remove_orphans"]

_OPERATION = Operation.REMOVE_ORPHANS
_PARALLEL_READS = 16
_BEGINNING_BYTES = 4096


def remove_orphans(context: OperationContext) -> OperationOutcome:
    """Delete unreferenced files past the grace period; summary and metric keys are those of seed 000.

    Raises:
        OperationRefused: a guard saw danger; nothing was deleted.
        MetadataUnreadable: a reference cannot be read; nothing was deleted.
        StorageError: the store failed.
    """
    with stopwatch() as elapsed_ms:
        before = context.load()
        require_writable(before.metadata)
        if not gc_enabled(before.metadata):
            return skipped(_OPERATION, GC_DISABLED)
        storage = context.storage(before)
        allowed = storage.capabilities(before.metadata.location)
        if not (allowed.can_list and allowed.can_delete):
            verb = "listed" if not allowed.can_list else "deleted"
            return skipped(
                _OPERATION, f"objects cannot be {verb} in this storage; it removes unreferenced files itself"
            )
        # Data and metadata paths elsewhere may be shared with other tables, of which a listing shows no sign.
        swept = before.metadata.location
        started_ms = context.clock()
        listed = list(storage.list(swept))
        after = context.load()  # after the listing, so that whatever was committed meanwhile is referenced
        if (after.metadata.uuid, after.metadata.location) != (before.metadata.uuid, swept):
            raise OperationRefused(f"{after.name} was replaced or moved during the listing; nothing was deleted")
        references = References()
        referenced = reachable_files(context.reader(after), after.metadata_location, references)
        referenced.update(pin.metadata_location for pin in context.memory.pins())
        keys = {normalise(path) for path in referenced}
        unreferenced = [found for found in listed if normalise(found.path) not in keys]
        unknown = [found.path for found in unreferenced if is_metadata_file(found.path)]
        with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="metadata-read") as pool:
            owners = pool.map(lambda path: _owner(storage, path, after.metadata.uuid), unknown)
            refuse_foreign_tables(after.metadata, [owner for owner in owners if owner is not None])
        plan = plan_orphans(
            after.metadata,
            unreferenced,
            referenced,
            owned=[swept],
            older_than_ms=started_ms - context.policy.orphan_older_than_ms,
            protected_prefixes=context.policy.orphan_protected_prefixes,
        )
        metrics = {
            "remove_orphans.files_listed": len(listed),
            "remove_orphans.files_too_young": plan.too_young,
            "remove_orphans.files_protected": plan.protected,
            "remove_orphans.locations_not_swept": sum(
                not may_be_under(location, swept) for location in owned_locations(after.metadata)
            ),
            "remove_orphans.orphan_bytes": sum(found.size for found in plan.orphans),
        }
        if context.dry_run:
            summary = f"would remove {len(plan.orphans)} orphan file(s)"
            return succeeded(_OPERATION, summary, metrics=metrics, files_planned=plan.paths)
        result = delete_unreferenced(context, after, plan.paths, "remove_orphans: files", references)
        return succeeded(
            _OPERATION,
            f"removed {len(result.deleted)} orphan file(s)",
            metrics={
                "remove_orphans.orphans_removed": len(result.deleted),
                "remove_orphans.files_failed": len(result.failed),
                **metrics,
                "remove_orphans.duration_ms": elapsed_ms(),
            },
            files_planned=plan.paths,
            files_deleted=result.deleted,
        )


def _owner(storage: Storage, path: str, uuid: str | None) -> MetadataOwner | None:
    """Whose metadata file this is; ``None`` when it is the table's own, or gone by now.

    Old tables have many, each with the whole history in it: mostly the beginning of the file tells.
    """
    try:
        if uuid is not None and leading_uuid(_beginning(storage, path)) == uuid:
            return None
        metadata = parse_document(storage.read(path), path)
        return MetadataOwner(path, metadata.uuid, metadata.location)
    except StorageError as error:
        if not isinstance(error, MetadataUnreadable) and storage.size(path) is None:
            return None
        raise MetadataUnreadable(f"whose metadata file {path} is cannot be told: {error}") from error


def _beginning(storage: Storage, path: str) -> bytes:
    with storage.translated(path), storage.open_input(path) as stream:
        return bytes(stream.read(_BEGINNING_BYTES))
