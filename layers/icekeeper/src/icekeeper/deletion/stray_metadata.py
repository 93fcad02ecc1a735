"""Finds and reads the metadata files of a table that its catalog entry does not know, and what they refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.neighbours import has_its_own_bucket
from icekeeper.deletion.other_heads import StrayMetadata, is_past
from icekeeper.errors import MetadataUnreadable, OperationRefused, is_gone
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.reachability import References, metadata_files, statistics_files
from icekeeper.metadata.table_reader import TableReader
from icekeeper.pass_context.metadata_listing import listed_metadata, metadata_folders, read_listed_metadata
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import is_under, normalise
from icekeeper.storage.storage import Storage

__all__ = ["list_beside", "needed_by", "read_strays"]

_PARALLEL_READS = 16


def list_beside(
    storage: Storage, table: LoadedTable, found: Iterable[ListedObject] | None = None
) -> Sequence[ListedObject]:
    """The metadata files in the table's metadata folders, for :func:`read_strays`; none in a table bucket.

    ``found``: those that a listing of the table's location has found, which is not listed again.

    Raises:
        OperationRefused: a folder must not be listed, or the listing lacks what is there, so that a newer head of the
            table would not be seen.
        StorageError: the store does not answer.
    """
    home = table.metadata.location
    listed = listed_metadata(storage, table, apart_from=None if found is None else home)
    if listed is None and not has_its_own_bucket(home):
        folders = " and ".join(metadata_folders(table.metadata))
        raise OperationRefused(
            f"whether {table.name} has newer metadata than its catalog entry knows cannot be told, because {folders} "
            "cannot be listed; nothing was deleted; allow s3:ListBucket there"
        )
    if listed is not None and (found is None or not is_under(table.metadata_location, home)):
        _require_current(storage, table, listed)
    return (*(found or ()), *(listed or ()))


def _require_current(storage: Storage, table: LoadedTable, listed: Iterable[ListedObject]) -> None:
    """Raises OperationRefused when a listing lacks the table's own metadata file, though it is there (rule 175)."""
    current = normalise(table.metadata_location)
    folder = current.rpartition("/")[0]
    if folder not in map(normalise, metadata_folders(table.metadata)):
        return
    if all(normalise(one.path) != current for one in listed) and storage.size(table.metadata_location) is not None:
        raise OperationRefused(
            f"the listing of {folder} lacks {table.metadata_location}, which is there: newer metadata of {table.name} "
            "may be missing as well, so nothing was deleted; have the store, or what answers in its place, repaired"
        )


def read_strays(storage: Storage, table: LoadedTable, listed: Iterable[ListedObject]) -> Sequence[StrayMetadata]:
    """Read those of the listed metadata files that belong to the table, but are unknown to it and may be newer.

    Files outside of the table's metadata folders are passed over: they belong to others.

    Raises:
        StorageError: the store does not answer, so that what one of them says is not known.
    """
    metadata = table.metadata
    known = {normalise(path) for path in metadata_files(metadata, table.metadata_location)}
    folders = set(map(normalise, metadata_folders(metadata)))
    unknown = [
        found.path
        for found in listed
        if normalise(found.path).rpartition("/")[0] in folders
        and normalise(found.path) not in known
        and not is_past(table, found.path, found.modified_ms)
    ]

    def stray(path: str) -> StrayMetadata | None:
        found = read_listed_metadata(storage, path)  # what is damaged, orphan removal decides about
        return StrayMetadata(path, found) if found is not None and _is_of(metadata, found) else None

    with WorkThreads(_PARALLEL_READS, thread_name_prefix="metadata-read") as pool:
        return [found for found in pool.map(stray, unknown) if found is not None]


def needed_by(storage: Storage, stray: StrayMetadata, known: References) -> Iterator[str]:
    """The paths that a stray metadata file references, itself included, without those ``known`` to be needed.

    A manifest may be gone already, because the table has expired it since; then there is nothing to protect.

    Raises:
        MetadataUnreadable: something that is there cannot be read.
    """
    reader = TableReader(stray.metadata, storage.read)
    references = References(set(known.snapshots), set(known.manifests))
    yield from metadata_files(stray.metadata, stray.path)
    yield from statistics_files(stray.metadata)
    for snapshot in stray.metadata.snapshots.values():
        if snapshot.manifest_list is not None:
            yield snapshot.manifest_list
        try:
            manifests = references.listed(reader, [snapshot])
        except MetadataUnreadable as error:
            if not is_gone(error):
                raise
            continue
        yield from manifests
        for manifest in manifests.values():
            try:
                yield from references.held(reader, [manifest])
            except MetadataUnreadable as error:
                if not is_gone(error):
                    raise


def _is_of(table: TableMetadata, found: TableMetadata) -> bool:
    """Whether metadata belong to the table, by UUID.  Where one has none (v1), the location decides."""
    if table.uuid and found.uuid:
        return table.uuid.lower() == found.uuid.lower()
    return normalise(table.location) == normalise(found.location)
