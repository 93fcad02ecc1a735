"""Which other tables may have files under a table's location (pure).

A table claims the folders that its metadata names, those of the files that its document names, and those where an
earlier pass over it has seen files that only its manifests name (imported ones).  Checked before any deletion
(rule 88).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.foreign import ForeignMetadata
from icekeeper.errors import OperationRefused
from icekeeper.metadata.reachability import metadata_files, statistics_files
from icekeeper.storage.path_set import may_be_under
from icekeeper.storage.paths import authority, normalise

__all__ = ["Neighbours", "TableFolders", "has_its_own_bucket", "neighbours_of", "table_folders"]

# Amazon S3 user guide, "General purpose bucket naming rules": reserved for the bucket of one table in a table bucket.
_TABLE_BUCKET_SUFFIX = "--table-s3"


@dataclass(frozen=True, slots=True)
class TableFolders:
    """The folders in which a table may have files, normalised."""

    catalog: Catalog
    table: LoadedTable
    folders: Mapping[str, str]
    """The table's own folders: normalised → as spelled."""
    files_in: frozenset[str]
    """Folders of the files that the document names, and those where manifests were seen to name some."""
    is_kept_apart: bool = False
    """Whether the operator's rules keep it away from the table that asks: then no folder is its own there."""

    def overlap(self, location: str) -> bool:
        """Whether the table could have files under a location: one of its folders contains it, or lies in it."""
        place = normalise(location)
        if any(_is_in(place, folder) for folder in self.folders):
            return True
        if any(_is_in(folder, place) for folder in self.folders):
            return True
        # A bucket stands for files in too many folders.
        return any(_is_in(folder, place) or _is_in(place, folder) for folder in self.files_in)

    def is_table_of(self, other: LoadedTable) -> bool:
        """Whether both are entries of the same table; one of them may be out of date."""
        table = self.table
        if normalise(table.metadata_location) == normalise(other.metadata_location):
            return True
        same_place = normalise(table.metadata.location) == normalise(other.metadata.location)
        return same_place and table.metadata.uuid is not None and table.metadata.uuid == other.metadata.uuid


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The tables that concern one table's location."""

    sharing: tuple[TableFolders, ...] = ()
    """Tables whose references protect files there, too."""
    left_alone: tuple[str, ...] = ()
    """Folders of other tables below the location; this table deletes nothing in them."""

    def explain(self, found: ForeignMetadata) -> bool:
        """Whether a metadata file lies in the folder of a table that the catalog knows."""
        return any(may_be_under(found.path, folder) for folder in self.left_alone)


def has_its_own_bucket(location: str) -> bool:
    """Whether S3 Tables made the location: then no other table can be there."""
    return authority(location).endswith(_TABLE_BUCKET_SUFFIX)


def table_folders(catalog: Catalog, table: LoadedTable, seen_in: Iterable[str] = ()) -> TableFolders:
    """Where a table has files by its document, and by the (normalised) folders where files of it were seen."""
    metadata = table.metadata
    own = (metadata.location, metadata.data_location, metadata.metadata_directory)
    return TableFolders(
        catalog,
        table,
        {normalise(folder): folder for folder in own},
        # Thousands of files lie in a few folders.
        frozenset((*map(normalise, {path.rpartition("/")[0] for path in _named_files(table)}), *seen_in)),
    )


def neighbours_of(table: LoadedTable, others: Iterable[TableFolders]) -> Neighbours:
    """Find those of the other tables that may have files in the location of ``table``.

    Raises:
        OperationRefused: another table has the same location.
    """
    location = table.metadata.location
    home = normalise(location)
    sharing: list[TableFolders] = []
    left_alone: list[str] = []
    for one in others:
        other = one.table
        if one.is_table_of(table):
            sharing.append(one)
            continue
        if home in one.folders:
            raise OperationRefused(
                f"{other.name} (UUID {other.metadata.uuid}) keeps files at {one.folders[home]}, the location of "
                f"{table.name} (UUID {table.metadata.uuid}): whose a file there is cannot be told; nothing was "
                "deleted; give each table a location of its own, or drop the entry that is not needed"
            )
        below = [folder for normal, folder in one.folders.items() if _is_in(normal, home)]
        left_alone += below
        if one.overlap(location):
            sharing.append(one)
    return Neighbours(tuple(sharing), tuple(sorted(left_alone)))


def _is_in(inner: str, outer: str) -> bool:
    """Whether a normalised path is ``outer``, or lies below it."""
    return inner == outer or inner.startswith(outer if outer.endswith("/") else f"{outer}/")


def _named_files(table: LoadedTable) -> Iterator[str]:
    metadata = table.metadata
    yield from metadata_files(metadata, table.metadata_location)
    yield from statistics_files(metadata)
    for snapshot in metadata.snapshots.values():
        if snapshot.manifest_list is not None:
            yield snapshot.manifest_list
        yield from snapshot.inline_manifests
