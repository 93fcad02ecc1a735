"""Lists and reads metadata files in a store, and finds those that other catalog entries need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.errors import MaintenanceError, MetadataUnreadable, PolicyError, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file, parse_document
from icekeeper.metadata.table_reader import metadata_files
from icekeeper.state.store import StateStore
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import is_under, normalise
from icekeeper.storage.storage import Storage

# Lists a table's metadata files in the store, and reads them as far as they can be read.


def metadata_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """Where metadata files of the table may lie: ``write.metadata.path``, and the folder of tables without it.

    Another head of the table may have set the property, or given it up.
    """
    own, usual = metadata.metadata_directory, f"{metadata.location}/metadata"
    return (own,) if normalise(own) == normalise(usual) else (own, usual)


def listed_metadata(
    storage: Storage, table: LoadedTable, *, apart_from: str | None = None
) -> Sequence[ListedObject] | None:
    """The metadata files in the table's metadata folders, as they lie there now; ``None`` where one cannot be listed.

    ``apart_from``: a folder that somebody else has listed, with all below.  Nothing can be listed in S3 table buckets.

    Raises:
        StorageError: the store does not answer.
    """
    files: list[ListedObject] = []
    for folder in metadata_folders(table.metadata):
        if apart_from is not None and is_under(folder, apart_from):
            continue
        listed = storage.list_if_allowed(folder)
        if listed is None:
            return None
        files += (found for found in listed if is_metadata_file(found.path))
    return files


def read_listed_metadata(storage: Storage, path: str) -> TableMetadata | None:
    """What a listed metadata file says; ``None`` where it is gone by now, or damaged, so that no table is loaded by it.

    Raises:
        StorageError: the store does not answer, so that what it says is not known.
    """
    try:
        return parse_document(storage.read(path), path)
    except MetadataUnreadable:
        return None
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


# Reads the metadata files that were written after the state that the catalog shows: commits that it may hide.
#
# A catalog may be read through a replica that lags; a store does not lag.  Read only where a refused commit may have
# landed (rule: keep-files-while-commit-may-land).

# Where the store does not say how old the current metadata file is, so many of the youngest others are read.
_MOST = 16


def newer_metadata(storage: Storage, table: LoadedTable) -> Iterator[TableMetadata]:
    """The metadata in files that the table does not know and that are not older than its current one.

    Empty where nothing can be listed.

    Raises:
        StorageError: the store does not answer.
    """
    listed = {normalise(found.path): found for found in listed_metadata(storage, table) or ()}
    current = listed.get(normalise(table.metadata_location))
    known = set(map(normalise, metadata_files(table.metadata, table.metadata_location)))
    unknown = [found for path, found in listed.items() if path not in known]
    unknown.sort(key=lambda found: found.modified_ms or 0, reverse=True)
    if current is None or current.modified_ms is None:
        unknown = unknown[:_MOST]
    else:  # by one clock, that of the store
        oldest_ms = current.modified_ms
        unknown = [found for found in unknown if found.modified_ms is None or found.modified_ms >= oldest_ms]
    for found in unknown:
        metadata = read_listed_metadata(storage, found.path)
        if metadata is not None:
            yield metadata


# Finds the metadata files that other catalog entries of a table point at or log; a commit must not delete them.
#
# A commit deletes the metadata files that fall off the log, where the table's property
# ``write.metadata.delete-after-commit.enabled`` asks for it.  An entry that another catalog, or another name, has of
# the same table may still be at one of them.  Whoever copies UUID and location of a table looks like such an entry, so
# what the others' logs name stays, too (rule: metadata-deleted-only-if-own).


def deletes_after_commit(metadata: TableMetadata) -> bool:
    """Whether commits delete the metadata files that fall off the table's log."""
    return metadata.property_flag("write.metadata.delete-after-commit.enabled", default=False)


def metadata_of_other_entries(
    state: StateStore,
    catalog: Catalog,
    head: LoadedTable,
    other_catalog: Callable[[str, str], Catalog | None],
    run: str,
) -> Iterator[str]:
    """The metadata files that other entries of the same table point at or log; the whole log where one cannot be
    loaded, or where the look that the ``run`` took at every table has not seen one, and no rule keeps that away.

    Raises:
        StorageError: the state store failed.
    """
    if not deletes_after_commit(head.metadata):
        return
    looks = [look for look in state.claims.looks() if look.run == run]
    yield from (one.pointer for look in looks for one in look.unseen if one.pointer)
    if any(look.is_blind(head.is_kept_apart_from) for look in looks):
        yield from (str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
        return
    identity = identity_of(catalog, head)
    for claims in state.claims.touching(identity.location):
        if claims.copy != identity.copy or claims.entry == (catalog.name, catalog.warehouse, head.name.key):
            continue
        is_here = (claims.catalog, claims.warehouse) == (catalog.name, catalog.warehouse)
        try:
            other = catalog if is_here else other_catalog(claims.catalog, claims.warehouse)
        except MaintenanceError:
            other = None
        try:
            if other is not None:
                there = other.load(claims.table)
                yield there.metadata_location
                yield from (str(entry["metadata-file"]) for entry in there.metadata.metadata_log)
                continue
        except PolicyError:
            continue  # that catalog has no such entry any more
        except MaintenanceError:
            pass
        yield from (str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
