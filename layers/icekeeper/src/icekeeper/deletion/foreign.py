"""Finds out to which table an unreferenced metadata file under a table's location belongs (rule 91).

Where it is another table's, data of that table may lie there too and look like our orphans.  A file that the store does
not let us read might be such a one.  Both stop the deletion, unless the operator says otherwise with
``orphan_protected_prefixes`` (rule 263).  One that is damaged stops nothing: nobody can read a table by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from icekeeper.errors import MetadataUnreadable, OperationRefused, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import leading_uuid, parse_document
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

__all__ = ["WAIVER", "ForeignMetadata", "foreign_metadata", "former_tables", "metadata_owner", "refuse_foreign"]

WAIVER = "orphan_protected_prefixes, which for this counts only from the deployment, a policy file or --set"
"""The setting that waives the refusal, and where, for people."""

_PARALLEL_READS = 16
_BEGINNING_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ForeignMetadata:
    """A metadata file, and UUID and location of its table; ``error`` says why they cannot be read."""

    path: str
    uuid: str | None
    location: str
    error: str | None = None
    is_damaged: bool = False
    """It was read, and is none that anybody could load a table by."""


def foreign_metadata(storage: Storage, table: TableMetadata, paths: Iterable[str]) -> list[ForeignMetadata]:
    """Those of the metadata files that belong to another table, or cannot be read."""

    def foreign(path: str) -> ForeignMetadata | None:
        found = metadata_owner(storage, path, table.uuid)
        if found is None or found.error is not None:
            return found
        own = found.uuid == table.uuid and (found.uuid is not None or found.location == table.location)
        return None if own else found

    with WorkThreads(_PARALLEL_READS, thread_name_prefix="metadata-read") as pool:
        return [found for found in pool.map(foreign, paths) if found is not None]


def metadata_owner(storage: Storage, path: str, expected_uuid: str | None = None) -> ForeignMetadata | None:
    """To which table a metadata file belongs; ``None`` when it is surely the expected table's, or gone by now.

    Old tables have many, each with the whole history in it; mostly its first bytes hold the UUID already.
    """
    try:
        if expected_uuid is not None and leading_uuid(_beginning(storage, path)) == expected_uuid:
            return None
        metadata = parse_document(storage.read(path), path)
        return ForeignMetadata(path, metadata.uuid, metadata.location)
    except StorageError as error:
        try:
            if not isinstance(error, MetadataUnreadable) and storage.size(path) is None:
                return None
        except StorageError:
            pass  # the first failure tells more
        return ForeignMetadata(path, None, "", str(error), isinstance(error, MetadataUnreadable))


def former_tables(table: TableMetadata, found: Iterable[ForeignMetadata]) -> list[ForeignMetadata]:
    """Those of the metadata files that are of another table at the very location of this one.

    That table was dropped, and this one created at its place: PyIceberg's default location has no part of its own.
    """
    home = normalise(table.location)
    return [one for one in found if one.error is None and normalise(one.location) == home]


def refuse_foreign(found: Sequence[ForeignMetadata], explained: Callable[[ForeignMetadata], bool]) -> None:
    """Refuse when a metadata file cannot be read, or belongs to another table and is not ``explained``.

    Raises:
        OperationRefused: names the other table's UUID and location.
        MetadataUnreadable: whose it is cannot be told.
    """
    for other in found:
        if explained(other):
            continue
        if other.error is not None:
            raise MetadataUnreadable(
                f"whose metadata file {other.path} is cannot be told: {other.error}; if it is of no table, delete it "
                f"by hand or name it in {WAIVER}; nothing was deleted"
            )
        raise OperationRefused(
            f"{other.path} belongs to another table (UUID {other.uuid}, at {other.location}) under this table's "
            f"location; nothing was deleted; name that table's folder in {WAIVER}; or, if the table was dropped and "
            "none of its files is needed, delete this file or name it alone: its data then counts as orphans"
        )


def _beginning(storage: Storage, path: str) -> bytes:
    with storage.translated(path), storage.open_input(path) as stream:
        return bytes(stream.read(_BEGINNING_BYTES))
