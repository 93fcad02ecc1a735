"""Finds the files in the folders of a failed load, all of which belong to that load by what its owner declared."""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.staging.plan import MAX_FILES, may_be_staged
from icekeeper.storage.path_set import PathSet
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

__all__ = ["files_in_folders"]


def files_in_folders(
    storage: Storage,
    metadata: TableMetadata,
    folders: Iterable[str],
    *,
    older_than_ms: int,
    protected: Iterable[str] = (),
) -> tuple[tuple[str, ...], bool]:
    """Files below these folders, written before ``older_than_ms`` (epoch milliseconds), and not below ``protected``.

    A younger file may be of a writer that reuses the folder without a record, and one of unknown age counts as young.
    A folder that all writers of the table share is no load's own, whoever declared it: what lies there is left to the
    removal of orphans.

    Returns:
        The files that may be deleted, and whether others remain for a later pass.

    Raises:
        StorageError: a folder cannot be listed.
    """
    paths: list[str] = []
    more = False
    shared = {normalise(one) for one in (metadata.location, metadata.data_location, metadata.metadata_directory)}
    kept = PathSet(protected)
    for folder in folders:
        if normalise(folder) in shared:
            continue
        for found in storage.list(f"{folder.rstrip('/')}/"):
            if kept.may_contain(found.path) or not may_be_staged(metadata, found.path):
                continue
            if found.modified_ms is None or found.modified_ms > older_than_ms or len(paths) >= MAX_FILES:
                more = True
            else:
                paths.append(found.path)
    return tuple(dict.fromkeys(paths)), more
