"""Reads the metadata files that were written after the state that the catalog shows: commits that it may hide.

A catalog may be read through a replica that lags; a store does not lag.  Read only where a refused commit may have
landed (rule 65).
"""

from __future__ import annotations

from collections.abc import Iterator

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import metadata_files
from icekeeper.pass_context.metadata_listing import listed_metadata, read_listed_metadata
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

__all__ = ["newer_metadata"]

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
