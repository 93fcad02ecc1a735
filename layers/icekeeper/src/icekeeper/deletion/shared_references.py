"""What the tables that share files with one need, and what is pinned or staged of them; read anew as they move on."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.deletion.held_files import HeldFiles
from icekeeper.deletion.neighbours import Claims
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.errors import MaintenanceError, OperationRefused, PolicyError
from icekeeper.metadata.reachability import References, reachable_paths
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.table_memory import TableMemory

__all__ = ["SharedReferences"]


class _Followed:
    """One table, and what of its references has been read."""

    def __init__(self, context: OperationContext, catalog: Catalog, table: LoadedTable) -> None:
        self.catalog, self.table = catalog, table
        self.references = References()
        memory = TableMemory(context.state, identity_of(catalog, table), context.memory.clock)
        self.held = HeldFiles(memory, context.storage(table).read)


class SharedReferences:
    """What tables that share a location need, and what is pinned or staged of them."""

    def __init__(
        self, context: OperationContext, tables: Sequence[Claims], home: str, known_location: str | None = None
    ) -> None:
        """``known_location``: the metadata file of the table that is cleaned, whose references its caller knows.

        Raises:
            MetadataUnreadable: something that one of them needs cannot be read.
        """
        self._context = context
        self._paths = ReferencedPaths(home)
        self._followed: dict[tuple[str, str, TableName], _Followed] = {}
        for claims in tables:
            key = (claims.catalog.name, claims.catalog.warehouse, claims.table.name)
            self._followed[key] = _Followed(context, claims.catalog, claims.table)
        for followed in self._followed.values():
            if followed.table.metadata_location != known_location:
                self._follow(followed)
            followed.held.look(followed.table.metadata)

    def __bool__(self) -> bool:
        return bool(self._followed)

    def __contains__(self, path: str) -> bool:
        return path in self._paths or any(followed.held.hold(path) for followed in self._followed.values())

    @property
    def tables(self) -> Sequence[LoadedTable]:
        """As they are now."""
        return [followed.table for followed in self._followed.values()]

    def has_twin_elsewhere(self, path: str) -> bool:
        """As :meth:`ReferencedPaths.has_twin_elsewhere`."""
        return self._paths.has_twin_elsewhere(path)

    def look_again(self) -> None:
        """Look at every table's pointer, and add what came to be referenced since.

        Raises:
            OperationRefused: a table cannot be loaded any more.
            MetadataUnreadable: new references cannot be read.
        """
        for key, known in tuple(self._followed.items()):
            try:
                now = known.catalog.load(known.table.name)
            except PolicyError:
                continue  # dropped meanwhile; its files stay protected in this pass
            except MaintenanceError as error:
                raise OperationRefused(
                    f"{known.table.name}, which shares this table's location, cannot be loaded any more: {error}; "
                    "nothing more was deleted"
                ) from error
            followed = known
            if now.metadata.uuid != known.table.metadata.uuid:
                followed = self._followed[key] = _Followed(self._context, known.catalog, now)
            has_moved = now.metadata_location != known.table.metadata_location
            followed.table = now
            if has_moved:
                self._follow(followed)
            followed.held.look(now.metadata)

    def _follow(self, followed: _Followed) -> None:
        table = followed.table
        reader = TableReader(table.metadata, self._context.storage(table).read)
        self._paths.update(reachable_paths(reader, table.metadata_location, followed.references))
