"""Reads the metadata files that were written after the state that the catalog shows: commits that it may hide.

A catalog may be read through a replica that lags; a store does not lag.  Read only where a refused commit may have
landed (rule 65).
"""

from __future__ import annotations

from collections.abc import Iterator

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file, parse_document
from icekeeper.metadata.reachability import metadata_files
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

__all__ = ["newer_metadata"]

# Where the store does not say how old the current metadata file is, so many of the youngest others are read.
_MOST = 16


def newer_metadata(storage: Storage, table: LoadedTable) -> Iterator[TableMetadata]:
    """The metadata in files that the table does not know and that are not older than its current one.

    Empty where the store cannot list: S3 table buckets, and stores that we cannot delete from either.

    Raises:
        StorageError: the store does not answer.
    """
    directory = table.metadata.metadata_directory
    if not storage.can_list(directory):
        return
    listed = {normalise(found.path): found for found in storage.list(directory) if is_metadata_file(found.path)}
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
        try:
            yield parse_document(storage.read(found.path), found.path)
        except MetadataUnreadable:
            continue  # no table can be loaded by it
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # else gone since it was listed
                raise
