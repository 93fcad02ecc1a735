"""Which recorded files nobody needs: not this table, not another one of the catalog, no pin and no other load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.metadata.reachability import References, reachable_paths
from icekeeper.operations.context import OperationContext
from icekeeper.operations.deletion import owned_locations
from icekeeper.operations.held_files import HeldFiles
from icekeeper.operations.orphans.neighbours import Claims, has_its_own_bucket, neighbours_of
from icekeeper.operations.orphans.referenced_paths import ReferencedPaths
from icekeeper.operations.orphans.shared_references import SharedReferences, other_tables
from icekeeper.storage_paths import PathSet, may_be_under

__all__ = ["Unneeded", "unneeded_files"]


@dataclass(slots=True)
class Unneeded:
    """Files to delete, and what is asked again before each batch of them."""

    paths: Sequence[str] = ()
    references: References = field(default_factory=References)
    shared: SharedReferences | None = None


def unneeded_files(context: OperationContext, table: LoadedTable, paths: Sequence[str]) -> Unneeded:
    """Those of ``paths``, which lie below the table's own locations.

    Raises:
        OperationRefused: another table has the same location, or cannot be loaded, so that it could need anything.
        MetadataUnreadable: a reference cannot be read.
        StorageError: catalog or state store failed.
    """
    result = Unneeded()
    if not paths:
        return result
    metadata, home = table.metadata, table.metadata.location
    needed = ReferencedPaths(home, reachable_paths(context.reader(table), table.metadata_location, result.references))
    held = HeldFiles(context.memory, context.storage(table).read)
    held.look(metadata)
    elsewhere = PathSet()
    if not has_its_own_bucket(home):
        others = other_tables(context.catalog, table.name)
        neighbours = neighbours_of(table, others)
        near = {one.name: one for one in neighbours.sharing}
        near |= {claims.table.name: claims.table for claims in others if _is_near(claims, owned_locations(metadata))}
        result.shared = SharedReferences(context, tuple(near.values()), home)
        elsewhere = PathSet(neighbours.left_alone)
    result.paths = [
        path
        for path in paths
        if path not in needed
        and not needed.has_twin_elsewhere(path)
        and not held.hold(path)
        and not elsewhere.may_contain(path)
        and (result.shared is None or path not in result.shared)
    ]
    return result


def _is_near(claims: Claims, owned: Iterable[str]) -> bool:
    """Whether a table keeps files around, below or at one of our locations, which need not lie below each other."""
    return any(
        may_be_under(folder, location) or may_be_under(location, folder)
        for folder in claims.folders
        for location in owned
    )
