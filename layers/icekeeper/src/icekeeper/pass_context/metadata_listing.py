"""Lists a table's metadata files in the store, and reads them as far as they can be read."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file, parse_document
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import is_under, normalise
from icekeeper.storage.storage import Storage

__all__ = ["listed_metadata", "metadata_folders", "read_listed_metadata"]


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
