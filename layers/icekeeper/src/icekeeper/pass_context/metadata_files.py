"""The metadata files of a table: those in its store, and those that other catalog entries need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.errors import MaintenanceError, MetadataUnreadable, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file, parse_document
from icekeeper.metadata.table_reader import metadata_files
from icekeeper.pass_context.served import ServedCatalogs
from icekeeper.state.store import StateStore
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import compared, is_under, normalise
from icekeeper.storage.storage import Storage


def metadata_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """The folders of the table's metadata files: ``write.metadata.path`` and the default folder.

    Another head of the table may have set or removed the property.  Some writers keep the slash at the end of a
    location; in S3 the default folder of their files then has another key (rule: any-spelling-protects).
    """
    own, usual = metadata.metadata_directory, f"{metadata.location}/metadata"
    literal = f"{metadata.document['location']}/metadata"
    by_key = {(place.authority, place.key): folder for folder in (literal, usual, own) for place in [compared(folder)]}
    return tuple(reversed(by_key.values()))


def listed_metadata(
    storage: Storage, table: LoadedTable, *, apart_from: str | None = None
) -> Sequence[ListedObject] | None:
    """The metadata files in the table's metadata folders; ``None``: a folder cannot be listed, as in S3 table buckets.

    ``apart_from``: a folder that the caller has already listed with all its subfolders.

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
    """The content of a listed metadata file; ``None``: it no longer exists or is damaged.

    Raises:
        StorageError: the store does not answer.
    """
    try:
        return parse_document(storage.read(path), path)
    except MetadataUnreadable:
        return None
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


# How many of the youngest unknown metadata files are read if the age of the current metadata file is unknown.
_MOST = 16


def newer_metadata(storage: Storage, table: LoadedTable) -> Iterator[TableMetadata]:
    """The metadata files that the table does not know and that are not older than its current metadata file.

    They show commits that a lagging replica of the catalog hides; a store does not lag.  Read only if a refused commit
    may have landed (rule: keep-files-while-commit-may-land).  Empty if nothing can be listed.

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
    else:  # both times are by the store's clock
        oldest_ms = current.modified_ms
        unknown = [found for found in unknown if found.modified_ms is None or found.modified_ms >= oldest_ms]
    for found in unknown:
        metadata = read_listed_metadata(storage, found.path)
        if metadata is not None:
            yield metadata


def deletes_after_commit(metadata: TableMetadata) -> bool:
    """Whether commits delete the metadata files that leave the table's metadata log."""
    return metadata.property_flag("write.metadata.delete-after-commit.enabled", default=False)


def metadata_of_other_entries(state: StateStore, catalogs: ServedCatalogs, head: LoadedTable) -> Iterator[str]:
    """The metadata files that other entries of the table point at or log, which a commit must not delete.

    With ``write.metadata.delete-after-commit.enabled``, a commit deletes the metadata files that leave the log.  An
    entry of the table in another catalog, or under another name, may still point at one of them.  A copy with the
    table's UUID and location looks like such an entry, so the files in its log are kept, too
    (rule: delete-below-own-locations).  If an entry cannot be loaded, or if this run's look did not see some table
    that may share files, the whole log is kept.

    Raises:
        StorageError: the state store failed.
    """
    if not deletes_after_commit(head.metadata):
        return
    looks = [look for look in state.claims.looks() if look.run == catalogs.run.name]
    yield from (entry.pointer for look in looks for entry in look.unseen if entry.pointer)
    if any(look.is_blind(head.is_kept_apart_from) for look in looks):
        yield from (str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
        return
    identity = identity_of(catalogs.own, head)
    for claims in state.claims.touching(identity.location):
        if claims.copy != identity.copy or claims.entry == identity.entry:
            continue
        try:
            other = catalogs.open(claims.catalog)
        except MaintenanceError:
            other = None
        try:
            if other is not None:
                there = other.load(claims.table)
                yield there.metadata_location
                yield from (str(entry["metadata-file"]) for entry in there.metadata.metadata_log)
                continue
        except MaintenanceError:  # also if the table is missing: the catalog may hide it
            pass
        yield from (str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
