"""Lists a table's metadata files in the store, and reads them as far as they can be read."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file, parse_document
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.storage import Storage

__all__ = ["listed_metadata", "read_listed_metadata"]


def listed_metadata(storage: Storage, table: LoadedTable) -> Sequence[ListedObject]:
    """The metadata files in the table's metadata directory, as they lie there now; none where nothing can be listed.

    Nothing can be listed in S3 table buckets, and in stores that we cannot delete from either.

    Raises:
        StorageError: the store does not answer.
    """
    listed = storage.list_if_allowed(table.metadata.metadata_directory)
    return [found for found in listed or () if is_metadata_file(found.path)]


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
