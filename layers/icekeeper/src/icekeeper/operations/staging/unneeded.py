"""Which recorded files nobody needs: not this table, not another one of the catalog, no pin and no other load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.guard import owned_locations
from icekeeper.deletion.held_files import HeldFiles
from icekeeper.deletion.neighbours import has_its_own_bucket, neighbours_of
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.deletion.shared_references import SharedReferences, other_tables
from icekeeper.metadata.reachability import References, reachable_paths
from icekeeper.pass_context.context import OperationContext
from icekeeper.storage.paths import PathSet

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
        owned = owned_locations(metadata)
        near = [claims.table for claims in others if any(claims.overlap(location) for location in owned)]
        near += [one for one in neighbours.sharing if one not in near]
        result.shared = SharedReferences(context, near, home)
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
