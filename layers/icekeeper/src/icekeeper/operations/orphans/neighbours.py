"""Other tables of the catalog that could have files under a table's location: what each means for its orphans (pure).

A table claims the folders that its metadata names, and every file that its document names.  Files that only its
manifests name elsewhere (imported ones) cannot be seen without reading all of them; no table is asked for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import OperationRefused
from icekeeper.metadata.reachability import metadata_files, statistics_files
from icekeeper.operations.orphans.foreign import ForeignMetadata
from icekeeper.storage_paths import authority, may_be_under, normalise

__all__ = ["Neighbours", "has_its_own_bucket", "neighbours_of", "overlap"]

# Amazon S3 user guide, "General purpose bucket naming rules": reserved for the bucket of one table in a table bucket.
_TABLE_BUCKET_SUFFIX = "--table-s3"


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What other tables have to do with one table's location."""

    sharing: tuple[LoadedTable, ...] = ()
    """Their references protect files, too."""
    left_alone: tuple[str, ...] = ()
    """Their folders below the location: nothing in them is this table's to delete."""

    def explain(self, found: ForeignMetadata) -> bool:
        """Whether a metadata file lies in the folder of a table that the catalog knows."""
        return any(may_be_under(found.path, folder) for folder in self.left_alone)


def has_its_own_bucket(location: str) -> bool:
    """Whether S3 Tables made the location: then no other table can be there."""
    return authority(location).endswith(_TABLE_BUCKET_SUFFIX)


def neighbours_of(table: LoadedTable, others: Iterable[LoadedTable]) -> Neighbours:
    """Sort the tables of a catalog, ``table`` among them or not, by how they lie to its location.

    Raises:
        OperationRefused: another table has the same location.
    """
    home = table.metadata.location
    sharing: list[LoadedTable] = []
    left_alone: list[str] = []
    for other in others:
        if other.name == table.name:
            continue
        folders = set(_folders(other))
        if _is_same_table(table, other):
            folders -= {folder for folder in folders if normalise(folder) == normalise(home)}
            sharing.append(other)
        for folder in folders:
            if normalise(folder) == normalise(home):
                raise OperationRefused(
                    f"{other.name} (UUID {other.metadata.uuid}) keeps files at {folder}, the location of {table.name} "
                    f"(UUID {table.metadata.uuid}): whose a file there is cannot be told; nothing was deleted; give "
                    "each table a location of its own, or drop the entry that is not needed"
                )
        if _is_same_table(table, other):
            continue
        below = [folder for folder in folders if may_be_under(folder, home)]
        left_alone += below
        if below or overlap(other, home):
            sharing.append(other)
    return Neighbours(tuple(sharing), tuple(sorted(left_alone)))


def overlap(table: LoadedTable, location: str) -> bool:
    """Whether a table could have files under a location, as far as its document tells."""
    return any(may_be_under(location, folder) or may_be_under(folder, location) for folder in _folders(table)) or any(
        may_be_under(path, location) for path in _named_files(table)
    )


def _is_same_table(table: LoadedTable, other: LoadedTable) -> bool:
    """Registered twice; perhaps one of the entries has moved on since."""
    if normalise(table.metadata_location) == normalise(other.metadata_location):
        return True
    same_place = normalise(table.metadata.location) == normalise(other.metadata.location)
    return same_place and table.metadata.uuid is not None and table.metadata.uuid == other.metadata.uuid


def _folders(table: LoadedTable) -> Iterator[str]:
    metadata = table.metadata
    yield from (metadata.location, metadata.data_location, metadata.metadata_directory)


def _named_files(table: LoadedTable) -> Iterator[str]:
    metadata = table.metadata
    yield from metadata_files(metadata, table.metadata_location)
    yield from statistics_files(metadata)
    for snapshot in metadata.snapshots.values():
        if snapshot.manifest_list is not None:
            yield snapshot.manifest_list
        yield from snapshot.inline_manifests
