"""The tables of a catalog beside the one being cleaned: loaded once, and followed as they move on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.held_files import HeldFiles
from icekeeper.deletion.neighbours import Claims, claims_of
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.errors import MaintenanceError, OperationRefused, PolicyError
from icekeeper.metadata.reachability import References, reachable_paths
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.table_handle import identity_of
from icekeeper.state.table_memory import TableMemory

__all__ = ["CatalogTables", "SharedReferences", "load_all", "other_tables"]

_PARALLEL_LOADS = 8


@dataclass(frozen=True, slots=True)
class CatalogTables:
    """What a catalog holds: tables as loaded, and those that could not be, with the reason."""

    claims: tuple[Claims, ...]
    unreadable: tuple[tuple[TableName, str], ...]

    @property
    def loaded(self) -> Sequence[LoadedTable]:
        return [claims.table for claims in self.claims]

    def others_of(self, own: TableName) -> tuple[Claims, ...]:
        """Every other table: any of them could have files under our location.

        Raises:
            OperationRefused: one cannot be loaded, so that it could have files anywhere.
        """
        for name, reason in self.unreadable:
            if name != own:
                raise OperationRefused(
                    f"whether {name} shares the location of {own} is not known, because it cannot be loaded: {reason}; "
                    f"nothing was deleted; repair {name} or drop it from the catalog"
                )
        return tuple(claims for claims in self.claims if claims.table.name != own)


def load_all(catalog: Catalog, names: Iterable[TableName]) -> CatalogTables:
    """Load many tables in parallel; one dropped meanwhile is left out.

    Raises:
        StorageError: the names cannot be listed.
    """

    def load(name: TableName) -> Claims | tuple[TableName, str] | None:
        try:
            return claims_of(catalog.load(name))
        except PolicyError:
            return None
        except MaintenanceError as error:
            return name, str(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return name, f"its metadata does not follow the specification: {type(error).__name__} {error}"

    with ThreadPoolExecutor(_PARALLEL_LOADS, thread_name_prefix="table-load") as pool:
        found = list(pool.map(load, names))
    return CatalogTables(
        tuple(claims for claims in found if isinstance(claims, Claims)),
        tuple(lost for lost in found if isinstance(lost, tuple)),
    )


def other_tables(catalog: Catalog, own: TableName) -> tuple[Claims, ...]:
    """Every other table of the catalog, loaded now.

    Raises:
        OperationRefused: the tables cannot be listed, or one cannot be loaded.
    """
    try:
        found = load_all(catalog, [name for name in catalog.list_tables() if name != own])
    except MaintenanceError as error:
        raise OperationRefused(
            f"whether another table shares the location of {own} is not known, because the tables of catalog "
            f"{catalog.name} cannot be listed: {error}; nothing was deleted"
        ) from error
    return found.others_of(own)


class SharedReferences:
    """What tables that share a location need, and what is pinned or staged of them; read anew as they move on."""

    def __init__(self, context: OperationContext, tables: Sequence[LoadedTable], home: str) -> None:
        """Raises MetadataUnreadable when something that one of them needs cannot be read."""
        self._context = context
        self._paths = ReferencedPaths(home)
        self._followed = {table.name: (table, References(), _held(context, table)) for table in tables}
        for table, references, held in self._followed.values():
            self._follow(table, references)
            held.look(table.metadata)

    def __bool__(self) -> bool:
        return bool(self._followed)

    def __contains__(self, path: str) -> bool:
        return path in self._paths or any(held.hold(path) for _, _, held in self._followed.values())

    def has_twin_elsewhere(self, path: str) -> bool:
        """As :meth:`ReferencedPaths.has_twin_elsewhere`."""
        return self._paths.has_twin_elsewhere(path)

    def refresh(self) -> None:
        """Look at every table's pointer, and add what came to be referenced since.

        Raises:
            OperationRefused: a table cannot be loaded any more.
            MetadataUnreadable: new references cannot be read.
        """
        for name, (known, references, held) in tuple(self._followed.items()):
            try:
                now = self._context.catalog.load(name)
            except PolicyError:
                continue  # dropped meanwhile; its files stay protected in this pass
            except MaintenanceError as error:
                raise OperationRefused(
                    f"{name}, which shares this table's location, cannot be loaded any more: {error}; nothing more was "
                    "deleted"
                ) from error
            if now.metadata.uuid != known.metadata.uuid:
                references, held = References(), _held(self._context, now)
            if now.metadata_location != known.metadata_location:
                self._follow(now, references)
            held.look(now.metadata)
            self._followed[name] = now, references, held

    def _follow(self, table: LoadedTable, references: References) -> None:
        self._paths.update(reachable_paths(self._context.reader(table), table.metadata_location, references))


def _held(context: OperationContext, table: LoadedTable) -> HeldFiles:
    memory = TableMemory(context.state, identity_of(context.catalog, table), context.memory.clock)
    return HeldFiles(memory, context.storage(table).read)
