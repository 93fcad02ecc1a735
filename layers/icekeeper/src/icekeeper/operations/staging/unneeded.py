"""Which recorded files nobody needs: not this table, not another one, no pin and no other load."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.file_needs import FileNeeds
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.metadata.table_reader import reachable_paths
from icekeeper.pass_context.context import OperationContext

__all__ = ["unneeded_files"]


def unneeded_files(
    context: OperationContext, table: LoadedTable, paths: Sequence[str]
) -> tuple[Sequence[str], FileNeeds]:
    """Those of ``paths`` that may be deleted, and the :class:`FileNeeds` to ask again before each batch of them.

    Raises:
        OperationRefused: a table that may need one cannot be loaded, or there is a newer head of this one.
        MetadataUnreadable: a reference cannot be read.
        StorageError: catalog or state store failed.
    """
    needs = FileNeeds(context, table)
    if not paths:
        return (), needs
    reader, home = context.reader(table), table.metadata.location
    needed = ReferencedPaths(home, reachable_paths(reader, table.metadata_location, needs.references))
    free = [path for path in paths if path not in needed and not needed.has_prefix_mismatch(path)]
    if free:
        needs.ask(free)
    return [path for path in free if not needs.need(path)], needs
