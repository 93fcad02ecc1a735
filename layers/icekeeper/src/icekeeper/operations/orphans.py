"""Which listed files are orphans: a set of refusals, and nothing else (pure).

Sources: seed 000, "Remove Orphans"; DESIGN 6.4.  The caller lists first and loads references afterwards, so that
whatever was committed between the two is referenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.storage import ListedObject
from icekeeper.storage_paths import PathSet, authority, is_under, normalise

__all__ = [
    "MetadataOwner",
    "OrphanPlan",
    "is_metadata_file",
    "plan_orphans",
    "refuse_foreign_tables",
    "same_path_elsewhere",
    "without_authority",
]

METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz")


@dataclass(frozen=True, slots=True)
class MetadataOwner:
    """Which table a metadata file says it belongs to."""

    path: str
    uuid: str | None
    location: str


@dataclass(frozen=True, slots=True)
class OrphanPlan:
    """Files to delete, and how many unreferenced ones are left alone because they are young or protected."""

    orphans: tuple[ListedObject, ...]
    too_young: int
    protected: int

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(found.path for found in self.orphans)


def is_metadata_file(path: str) -> bool:
    """Whether the name is that of a table metadata file, compressed or not."""
    return path.endswith(METADATA_SUFFIXES)


def plan_orphans(
    metadata: TableMetadata,
    unreferenced: Iterable[ListedObject],
    referenced: Iterable[str],
    *,
    owned: Iterable[str],
    older_than_ms: int,
    protected_prefixes: Iterable[str] = (),
) -> OrphanPlan:
    """Decide which unreferenced files go.

    ``unreferenced`` are listed files that match no reference after normalisation, ``referenced`` the references as
    spelled; a file as old as ``older_than_ms`` (epoch milliseconds) is still young, one of unknown age is too.

    Raises:
        OperationRefused: a file would be referenced if only scheme or bucket were spelled otherwise.
    """
    owned, prefixes = tuple(owned), PathSet(protected_prefixes)
    oldest_snapshot_ms = min((s.timestamp_ms for s in metadata.snapshots.values()), default=metadata.last_updated_ms)
    same_path = {without_authority(path): path for path in referenced}
    orphans: list[ListedObject] = []
    too_young = protected = 0
    for found in unreferenced:
        twin = same_path.get(without_authority(found.path))
        if twin is not None:
            raise same_path_elsewhere(found.path, twin)
        if found.modified_ms is None or found.modified_ms >= older_than_ms:
            too_young += 1
        elif (
            not any(is_under(found.path, location) for location in owned)
            or prefixes.may_contain(found.path)
            # Some catalogs keep an incomplete metadata log (DESIGN 6.4).
            or (is_metadata_file(found.path) and found.modified_ms >= oldest_snapshot_ms)
        ):
            protected += 1
        else:
            orphans.append(found)
    orphans.sort(key=lambda found: found.path)
    return OrphanPlan(tuple(orphans), too_young, protected)


def refuse_foreign_tables(metadata: TableMetadata, owners: Iterable[MetadataOwner]) -> None:
    """Refuse when a metadata file under the table's location belongs to another table.

    ``owners`` are those of the listed metadata files that this table does not reference.

    Raises:
        OperationRefused: names the other table's UUID and location.
    """
    for other in owners:
        if other.uuid != metadata.uuid or (other.uuid is None and other.location != metadata.location):
            raise OperationRefused(
                f"{other.path} belongs to another table (UUID {other.uuid}, at {other.location}) under this table's "
                "location; nothing was deleted"
            )


def same_path_elsewhere(path: str, referenced: str) -> OperationRefused:
    """The refusal to delete a file whose twin under another scheme, bucket or host is referenced."""
    return OperationRefused(
        f"{path} is referenced as {referenced}: the same path under {authority(referenced)} instead of "
        f"{authority(path)}; nothing was deleted"
    )


def without_authority(path: str) -> str:
    """The normalised path behind scheme and bucket or host."""
    normal = normalise(path)
    _, separator, rest = normal.partition("://")
    return f"/{rest.partition('/')[2]}" if separator else normal
