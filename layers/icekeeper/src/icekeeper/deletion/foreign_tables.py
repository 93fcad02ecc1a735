"""Finds the owners of unreferenced metadata files, and tables of other formats, under a table's location.

If a metadata file belongs to another table, that table's data may be there too and look like orphans.  A metadata file
that the store does not let us read may be such a file.  Both stop the deletion (rule: unknown-metadata-stops-sweeps),
unless the operator waives this with ``orphan_protected_prefixes`` (rule: unknown-metadata-stops-sweeps).  A damaged
file does not stop it, because no reader can read a table from it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from icekeeper.errors import MetadataUnreadable, OperationRefused, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import leading_uuid, parse_document
from icekeeper.pass_context.footprint import spelled_root
from icekeeper.storage.paths import is_under, may_be_under, normalise
from icekeeper.storage.storage import Storage

WAIVER = "orphan_protected_prefixes, which for this counts only from the deployment, a policy file or the call"
"""For messages: the setting that waives the refusal, and where the setting counts."""

_PARALLEL_READS = 16
_BEGINNING_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ForeignMetadata:
    """A metadata file with the UUID and the location of its table; ``error``: why they cannot be read."""

    path: str
    uuid: str | None
    location: str
    error: str | None = None
    is_damaged: bool = False
    """The file was read and does not hold valid table metadata."""


def foreign_metadata(storage: Storage, table: TableMetadata, paths: Iterable[str]) -> list[ForeignMetadata]:
    """The metadata files among ``paths`` that belong to another table, or cannot be read."""

    def foreign(path: str) -> ForeignMetadata | None:
        found = metadata_owner(storage, path, table.uuid)
        if found is None or found.error is not None:
            return found
        own = found.uuid == table.uuid and (found.uuid is not None or found.location == table.location)
        return None if own else found

    with WorkThreads(_PARALLEL_READS, thread_name_prefix="metadata-read") as pool:
        return [found for found in pool.map(foreign, paths) if found is not None]


def metadata_owner(storage: Storage, path: str, expected_uuid: str | None = None) -> ForeignMetadata | None:
    """The table to which a metadata file belongs; ``None``: it is the expected table, or the file is gone.

    If the first bytes contain the UUID, only they are read: old tables have many metadata files with a long history.
    """
    try:
        if expected_uuid is not None:
            with storage.translated(path), storage.open_input(path) as stream:
                beginning = bytes(stream.read(_BEGINNING_BYTES))
            if leading_uuid(beginning) == expected_uuid:
                return None
        metadata = parse_document(storage.read(path), path)
        return ForeignMetadata(path, metadata.uuid, metadata.location)
    except StorageError as error:
        try:
            if not isinstance(error, MetadataUnreadable) and storage.size(path) is None:
                return None
        except StorageError:
            pass  # report the first failure, which is more specific
        return ForeignMetadata(path, None, "", str(error), isinstance(error, MetadataUnreadable))


def former_tables(table: TableMetadata, found: Iterable[ForeignMetadata]) -> list[ForeignMetadata]:
    """The metadata files that belong to a dropped table at exactly this table's location.

    PyIceberg's default location has no unique part, so a table that is created again gets its former location.
    """
    home = normalise(table.location)
    return [file for file in found if file.error is None and normalise(file.location) == home]


def unexplained(found: Iterable[ForeignMetadata], folders: Sequence[str]) -> list[ForeignMetadata]:
    """The metadata files outside all ``folders`` of tables that the catalog knows."""
    return [file for file in found if not any(may_be_under(file.path, folder) for folder in folders)]


def refuse_foreign(found: Iterable[ForeignMetadata]) -> None:
    """Refuse when a metadata file cannot be read, or belongs to another table.

    Raises:
        OperationRefused: a file belongs to another table; the message names its UUID and location.
        MetadataUnreadable: a file cannot be read, so that its owner is unknown.
    """
    for other in found:
        if other.error is not None:
            raise MetadataUnreadable(
                f"metadata file {other.path} cannot be read, so its table is unknown: {other.error}; nothing was "
                f"deleted; if it belongs to no table, delete it by hand or name it in {WAIVER}"
            )
        raise OperationRefused(
            f"{other.path} belongs to another table (UUID {other.uuid}, at {other.location}) under this table's "
            f"location; nothing was deleted; name that table's folder in {WAIVER}; or, if the table was dropped and "
            "none of its files is needed, delete this file or name only this file: its data files then count as orphans"
        )


# Tables of other formats (Delta Lake, Hudi, Lance, Paimon) are found by the folder of their log.  The logs are not
# read, so any file in such a table's folder may be needed (rule: sweep-iceberg-tables-only).  Sources: Delta's
# protocol ("Delta Log Entries", ``_delta_log``), Hudi's technical specification ("Storage Format", ``.hoodie``),
# Lance's table format ("Dataset Directory": ``_versions``), Paimon's specification ("Schema" and "Snapshot":
# ``schema/schema-0``, ``snapshot/snapshot-1``).

_PARALLEL_LOOKS = 16
# Files listed per folder to find a log file; fewer than one page of a listing.
_FILES_LOOKED_AT = 100
# If there are more sibling folders, they are partitions or hashes of one table, and only their parent is checked.
_MOST_SIBLINGS = 50
_MARKER = re.compile(r"/(?:(?:_delta_log|\.hoodie|_versions)/|schema/schema-\d+\Z|snapshot/snapshot-\d+\Z)")
# The folders to list: ``snapshot`` is left out because Paimon keeps every schema, but not every snapshot.
_MARKED = ("_delta_log", ".hoodie", "_versions", "schema")


def other_format_at(path: str) -> str | None:
    """The folder of another format's table if the path is a file of its log; else ``None``."""
    found = _MARKER.search(path)
    return None if found is None else path[: found.start()]


def find_other_formats(storage: Storage, locations: Sequence[str], paths: Iterable[str]) -> frozenset[str]:
    """The folders of other formats' tables among the folders of these data files and their parents in the locations.

    Raises:
        StorageError: the store does not answer.
    """
    folders = sorted({folder for root in _few_roots(paths) for folder in _up_to(root, locations)})
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="format-look") as pool:
        found = pool.map(partial(_is_other_format, storage), folders)
        return frozenset(folder for folder, is_one in zip(folders, found, strict=True) if is_one)


def _few_roots(paths: Iterable[str]) -> Iterator[str]:
    siblings: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        root = spelled_root(path)
        siblings[root.rpartition("/")[0]].add(root)
    for parent, roots in siblings.items():
        yield from (parent,) if len(roots) > _MOST_SIBLINGS else roots


def _up_to(folder: str, locations: Sequence[str]) -> Iterator[str]:
    """The folder, and its parents up to and including the location that contains it."""
    yield folder
    while any(is_under(folder, location) for location in locations):
        folder = folder.rpartition("/")[0]
        yield folder


def _is_other_format(storage: Storage, folder: str) -> bool:
    there = storage.folders_in(folder)  # rarely contains a marker
    marked = _MARKED if there is None else [name for name in _MARKED if name in there]
    listed = (islice(storage.list_folder(f"{folder}/{name}"), _FILES_LOOKED_AT) for name in marked)
    return any(other_format_at(found.path) == folder for found in chain.from_iterable(listed))
