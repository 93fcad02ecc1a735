"""Which other tables may have files near a table, and which state of a table is the newest; nothing is read here.

A table claims the folders that its metadata names, the folders of the files that its document names, and the folders
where an earlier pass saw files that only its manifests name (imported files).  Every deletion checks these claims first
(rule: ask-neighbours-before-deleting).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.errors import OperationRefused
from icekeeper.machine.clock import CLOCKS_DIFFER_MS
from icekeeper.metadata.document import STATES_MAY_OVERLAP_MS, TableMetadata
from icekeeper.metadata.table_reader import metadata_files, statistics_files
from icekeeper.storage.paths import authority, is_under, leads_out, normalise

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
    """Folders of the files that the document names, or that manifests named in an earlier pass."""
    is_kept_apart: bool = False
    """The operator's rules keep it apart from the table that is cleaned; then it owns no folder there."""

    def overlap(self, location: str) -> bool:
        """Whether one of the table's folders contains the location or is inside it."""
        place = normalise(location)
        # ``files_in`` names a whole bucket if there are files in too many folders.
        return any(_is_in(place, folder) or _is_in(folder, place) for folder in (*self.folders, *self.files_in))

    def is_table_of(self, other: LoadedTable) -> bool:
        """Whether both are entries of the same table; either entry may be out of date."""
        table = self.table
        if normalise(table.metadata_location) == normalise(other.metadata_location):
            return True
        same_place = normalise(table.metadata.location) == normalise(other.metadata.location)
        return same_place and table.metadata.uuid is not None and table.metadata.uuid == other.metadata.uuid


def has_its_own_bucket(location: str) -> bool:
    """Whether S3 Tables created the location, so that no other table can be there."""
    return authority(location).endswith(_TABLE_BUCKET_SUFFIX)


def table_folders(catalog: Catalog, table: LoadedTable, seen_in: Iterable[str] = ()) -> TableFolders:
    """The folders that a table's document names, and the (normalised) folders ``seen_in`` where its files were seen."""
    metadata = table.metadata
    own = (metadata.location, metadata.data_location, metadata.metadata_directory)
    # Thousands of files share a few folders.
    files_in = {path.rpartition("/")[0] for path in _named_files(table)}
    normal = {folder: normalise(folder) for folder in files_in.union(own)}
    return TableFolders(
        catalog,
        table,
        {normal[folder]: folder for folder in own},
        frozenset((*(normal[folder] for folder in files_in), *seen_in)),
    )


def folders_left_alone(table: LoadedTable, others: Iterable[TableFolders]) -> tuple[str, ...]:
    """The folders of other tables below the location of ``table``, in which it deletes nothing.

    Raises:
        OperationRefused: another table has the same location.
    """
    home = normalise(table.metadata.location)
    left_alone: list[str] = []
    for claimed in others:
        other = claimed.table
        if claimed.is_table_of(table):
            continue
        if home in claimed.folders:
            raise OperationRefused(
                f"{other.name} (UUID {other.metadata.uuid}) keeps files at {claimed.folders[home]}, the location of "
                f"{table.name} (UUID {table.metadata.uuid}): it is unknown which table owns a file there; nothing was "
                "deleted; give each table a location of its own, or drop the entry that is not needed"
            )
        left_alone += [folder for normal, folder in claimed.folders.items() if _is_in(normal, home)]
    return tuple(sorted(left_alone))


def _is_in(inner: str, outer: str) -> bool:
    """Whether a normalised path is ``outer``, or is below it."""
    return inner == outer or inner.startswith(outer if outer.endswith("/") else f"{outer}/")


def _named_files(table: LoadedTable) -> Iterator[str]:
    metadata = table.metadata
    yield from metadata_files(metadata, table.metadata_location)
    yield from statistics_files(metadata)
    for snapshot in metadata.snapshots.values():
        if snapshot.manifest_list is not None:
            yield snapshot.manifest_list
        yield from snapshot.inline_manifests


# Is a catalog entry at the newest state of its table (rule: stale-entries-delete-nothing)?
#
# A table may be registered in two catalogs (during a migration), or a catalog's database may be restored from a
# backup.  Then the entry points at an older state, and files of the newer state look like orphans.  Unknown metadata
# files beside the table's own show this.  A file made directly from the entry's metadata may come from a crashed commit
# or be another head: the files that it references are kept.  A file made from metadata that the table does not know
# proves that there is another head.

# "00012-<uuid>.metadata.json" of Iceberg-Java and PyIceberg, "v12.metadata.json" of Hadoop catalogs and SeaweedFS.
_NUMBER = re.compile(r"v?(\d+)[-.]")


@dataclass(frozen=True, slots=True)
class StrayMetadata:
    """A metadata file of the table that is neither current in its catalog entry nor in the metadata log."""

    path: str
    metadata: TableMetadata

    @property
    def base(self) -> str | None:
        """The normalised path of the metadata file that it was made from; ``None`` if its metadata log is empty."""
        log = self.metadata.metadata_log
        return normalise(str(log[-1]["metadata-file"])) if log else None


def is_past(table: LoadedTable, path: str, modified_ms: int | None) -> bool:
    """Whether a metadata file is certainly older than the whole metadata log.  Such files are many and are not read."""
    log = table.metadata.metadata_log
    oldest = min((int(entry["timestamp-ms"]) for entry in log), default=table.metadata.last_updated_ms)
    numbers = [_number(str(entry["metadata-file"])) for entry in log] + [_number(table.metadata_location)]
    number, known = _number(path), [known for known in numbers if known is not None]
    if number is not None and known and number >= min(known):
        return False
    return modified_ms is not None and modified_ms < oldest - CLOCKS_DIFFER_MS


def refuse_other_head(table: LoadedTable, strays: Iterable[StrayMetadata]) -> Sequence[StrayMetadata]:
    """The metadata files made directly from the entry's current file: each may be a newer head, so the files that it
    references must be kept.

    Raises:
        OperationRefused: a metadata file was made from another metadata file that the table does not know either.
    """
    metadata = table.metadata
    known = {normalise(str(entry["metadata-file"])): int(entry["timestamp-ms"]) for entry in metadata.metadata_log}
    known[normalise(table.metadata_location)] = metadata.last_updated_ms
    made_ms = _made_ms(known)
    spared = []
    for stray in sorted(strays, key=lambda stray: stray.metadata.last_updated_ms, reverse=True):  # report the newest
        number, base_number = _number(stray.path), None if stray.base is None else _number(stray.base)
        # Some catalogs omit entries from the log: a number that is missing there is from the table's own past.
        is_own_past = number is not None and number not in made_ms and _was_followed(stray, number, made_ms)
        # A file that lost a swap before the log begins is also from the table's past.
        reaches_back = base_number is None or base_number >= min(made_ms, default=0)
        lost_long_ago = not reaches_back and _was_followed(stray, base_number, made_ms)
        if is_own_past or lost_long_ago or normalise(stray.path) in known:
            continue
        is_unknown = stray.base is not None and stray.base not in known
        # A file without new snapshots may still be another head, which only its number shows.
        if _is_ancestor(metadata, stray.metadata) and (not is_unknown or base_number is None):
            continue
        if is_unknown:
            raise OperationRefused(
                f"{stray.path} is metadata of {table.name} made from metadata that its catalog entry, at "
                f"{table.metadata_location}, does not know: another catalog, or a newer state of this catalog, has a "
                "newer head of the table; nothing was deleted; point the entry at the newest metadata file, or drop "
                "the entry that is out of date; if the newer head is not needed, delete its metadata files"
            )
        # A file made from an older state has lost its swap to a later commit.
        if stray.base is None or stray.base == normalise(table.metadata_location):
            spared.append(stray)
    return spared


def _made_ms(known: Mapping[str, int]) -> dict[int, int]:
    """Number of a metadata file → its time (epoch milliseconds); the latest time if a number occurs twice."""
    made_ms: dict[int, int] = {}
    for path, time_ms in known.items():
        number = _number(path)
        if number is not None:
            made_ms[number] = max(time_ms, made_ms.get(number, time_ms))
    return made_ms


def _was_followed(stray: StrayMetadata, number: int | None, made_ms: Mapping[int, int]) -> bool:
    """Whether a metadata file was made before the table reached a higher number.

    A file that has a smaller number but was made later belongs to another head.
    """
    if number is None:
        return False
    following = min((known for known in made_ms if known > number), default=None)
    if following is None:
        return False
    return stray.metadata.last_updated_ms <= made_ms[following] + STATES_MAY_OVERLAP_MS


def _is_ancestor(now: TableMetadata, then: TableMetadata) -> bool:
    """Whether the newer metadata has all snapshots of the older metadata."""
    return then.snapshots.keys() <= now.snapshots.keys() and then.last_updated_ms <= now.last_updated_ms


def _number(path: str) -> int | None:
    match = _NUMBER.match(path.rpartition("/")[2])
    return int(match.group(1)) if match else None


def owned_locations(metadata: TableMetadata) -> tuple[str, ...]:
    """The outermost locations below which this table may delete files (rule: delete-below-own-locations).

    A symbolic link that leads out of a location is not owned: other tables may use its target.
    """
    locations: list[str] = []
    for location in sorted(set(metadata.locations), key=len):
        if not any(is_under(location, other) or leads_out(location, other) for other in locations):
            locations.append(location)
    return tuple(locations)


# Prefix mismatch: a listed and a referenced path differ only in scheme, bucket or host after normalisation.
#
# The table may be a copy, or its bucket may have been renamed.  As this is unknown, the deletion is refused
# (rule: any-spelling-protects), as with ``prefix_mismatch_mode=ERROR`` of Iceberg-Java's ``DeleteOrphanFiles``.


def prefix_mismatch_error(path: str, referenced: str) -> OperationRefused:
    """The refusal to delete a file whose path is referenced under another scheme, bucket or host."""
    return OperationRefused(
        f"{path} is referenced as {referenced}: the same path under {authority(referenced)} instead of "
        f"{authority(path)}; nothing was deleted"
    )


def without_authority(path: str) -> str:
    """The normalised path without scheme, bucket and host."""
    return behind_authority(normalise(path))


def behind_authority(normal: str) -> str:
    """Like :func:`without_authority`, for a path that is already normalised."""
    _, separator, rest = normal.partition("://")
    return f"/{rest.partition('/')[2]}" if separator else normal


def find_prefix_mismatch(paths: Iterable[str], references: Iterable[str]) -> tuple[str, str] | None:
    """The first pair of a path and a reference that differ only in scheme, bucket or host, if any."""
    keys = {without_authority(path): path for path in paths}
    for reference in references:
        path = keys.get(without_authority(reference))
        if path is not None and normalise(path) != normalise(reference):
            return path, reference
    return None
