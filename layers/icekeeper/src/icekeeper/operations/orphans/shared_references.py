"""The tables of a catalog beside the one being cleaned: loaded once, and followed as they move on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.errors import MaintenanceError, OperationRefused, PolicyError
from icekeeper.metadata.reachability import References, reachable_paths
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import TableName
from icekeeper.operations.orphans.referenced_paths import ReferencedPaths

__all__ = ["CatalogTables", "SharedReferences", "load_all", "other_tables"]

_PARALLEL_LOADS = 8


@dataclass(frozen=True, slots=True)
class CatalogTables:
    """What a catalog holds: tables as loaded, and those that could not be, with the reason."""

    loaded: tuple[LoadedTable, ...]
    unreadable: tuple[tuple[TableName, str], ...]

    def others_of(self, own: TableName) -> tuple[LoadedTable, ...]:
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
        return tuple(table for table in self.loaded if table.name != own)


def load_all(catalog: Catalog, names: Iterable[TableName]) -> CatalogTables:
    """Load many tables in parallel; one dropped meanwhile is left out.

    Raises:
        StorageError: the names cannot be listed.
    """

    def load(name: TableName) -> LoadedTable | tuple[TableName, str] | None:
        try:
            return catalog.load(name)
        except PolicyError:
            return None
        except MaintenanceError as error:
            return name, str(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return name, f"its metadata does not follow the specification: {type(error).__name__} {error}"

    with ThreadPoolExecutor(_PARALLEL_LOADS, thread_name_prefix="table-load") as pool:
        found = list(pool.map(load, names))
    return CatalogTables(
        tuple(table for table in found if isinstance(table, LoadedTable)),
        tuple(table for table in found if isinstance(table, tuple)),
    )


def other_tables(catalog: Catalog, own: TableName) -> tuple[LoadedTable, ...]:
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
    """What tables that share a location need, read anew whenever one of them has moved."""

    def __init__(
        self, catalog: Catalog, tables: Sequence[LoadedTable], reader: Callable[[LoadedTable], TableReader], home: str
    ) -> None:
        self.paths = ReferencedPaths(home)
        self._catalog, self._reader = catalog, reader
        self._followed = {table.name: (table, References()) for table in tables}
        for table, references in self._followed.values():
            self._follow(table, references)

    def __bool__(self) -> bool:
        return bool(self._followed)

    def refresh(self) -> None:
        """Look at every table's pointer, and add what came to be referenced since.

        Raises:
            OperationRefused: a table cannot be loaded any more.
            MetadataUnreadable: new references cannot be read.
        """
        for name, (known, references) in tuple(self._followed.items()):
            try:
                now = self._catalog.load(name)
            except PolicyError:
                continue  # dropped meanwhile; its files stay protected in this pass
            except MaintenanceError as error:
                raise OperationRefused(
                    f"{name}, which shares this table's location, cannot be loaded any more: {error}; nothing more was "
                    "deleted"
                ) from error
            if now.metadata.uuid != known.metadata.uuid:
                references = References()
            if now.metadata_location != known.metadata_location:
                self._follow(now, references)
            self._followed[name] = now, references

    def _follow(self, table: LoadedTable, references: References) -> None:
        self.paths.update(reachable_paths(self._reader(table), table.metadata_location, references))
