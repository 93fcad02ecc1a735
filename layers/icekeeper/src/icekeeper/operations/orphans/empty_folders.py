"""Removes folders on this machine that have become empty (rule 100); object stores have none.

A writer makes a folder and then a file in it, and fails when the folder vanishes in between.  So only folders go in
which nothing was created or removed within the grace period, looked at before any file is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.orphans.plan import is_hidden, partition_folders_like_hidden
from icekeeper.storage.local import is_empty, old_folders
from icekeeper.storage.path_set import PathSet
from icekeeper.storage.paths import is_local, normalise, split_path
from icekeeper.storage.storage import Storage

__all__ = ["any_empty", "removable_folders", "remove_empty"]


def removable_folders(metadata: TableMetadata, older_than_ms: int, protected: PathSet) -> Sequence[str]:
    """Folders below a local table's location that may go as soon as they are empty, the deepest first.

    Raises:
        StorageError: a folder cannot be read.
    """
    if not is_local(metadata.location):
        return ()
    # Writers rely on it that these exist.
    roots = {normalise(f"{metadata.location}/{name}") for name in ("data", "metadata")}
    roots |= {normalise(metadata.data_location), normalise(metadata.metadata_directory)}
    like_hidden = partition_folders_like_hidden(metadata)
    return [
        folder
        for folder in old_folders(split_path(metadata.location).key, older_than_ms)
        if normalise(folder) not in roots
        and not protected.may_contain(folder)
        and not is_hidden(f"{folder}/file", metadata.location, like_hidden)
    ]


def any_empty(folders: Sequence[str]) -> bool:
    """Whether one of the folders is empty already."""
    return any(is_empty(folder) for folder in folders)


def remove_empty(storage: Storage, folders: Sequence[str]) -> int:
    """Remove the folders that are empty, or become so on the way; returns how many were removed."""
    return sum(map(storage.remove_if_empty, folders))
