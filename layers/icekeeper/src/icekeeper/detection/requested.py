"""Which tables of a catalog have a request for a pass, under whatever name it was filed (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from icekeeper.catalogs.catalog import Catalog
from icekeeper.detection.catalogs import ListedCatalog
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest

__all__ = ["RequestedTables", "requested_tables", "told_of_none"]


@dataclass(frozen=True, slots=True)
class RequestedTables:
    """The requests that concern one catalog."""

    tables: tuple[TableName, ...]
    """Names of the tables to load first; only a loaded table says which requests are for it."""
    told: tuple[MaintenanceRequest, ...]
    """Requests filed under this catalog's own name."""
    pending: tuple[MaintenanceRequest, ...]
    """Requests of all catalogs: one may be for a table that has another name here."""

    def told_here(self, table: TableName) -> tuple[MaintenanceRequest, ...]:
        """The requests for the table that had this name in this catalog; of one created anew perhaps one for each."""
        return tuple(request for request in self.told if str(request.identity.table) == str(table))

    def meant(self, table: TableIdentity) -> tuple[MaintenanceRequest, ...]:
        """The requests for a table, whatever it was called when they were left."""
        return tuple(request for request in self.pending if request.identity.is_same_copy(table))


def told_of_none(pending: Sequence[MaintenanceRequest], catalogs: Sequence[Catalog]) -> tuple[MaintenanceRequest, ...]:
    """The requests filed under a catalog name that none of these has; one of them may be meant by another name."""
    return tuple(request for request in pending if not any(_is_told_of(request, catalog) for catalog in catalogs))


def requested_tables(
    listed: ListedCatalog, pending: Sequence[MaintenanceRequest], strangers: Iterable[MaintenanceRequest]
) -> RequestedTables:
    """The requests that concern one catalog; those in ``strangers`` are matched to its tables by name, in any case."""
    told = tuple(request for request in pending if _is_told_of(request, listed.catalog))
    sought = {str(request.identity.table).lower() for request in strangers}
    found = (table for table in listed.tables or () if sought and str(table).lower() in sought)
    tables = dict.fromkeys((*(request.identity.table for request in told), *found))
    return RequestedTables(tuple(tables), told, tuple(pending))


def _is_told_of(request: MaintenanceRequest, catalog: Catalog) -> bool:
    """Whether it was left under this catalog's name and warehouse, but for slashes at the end."""
    told = request.identity.catalog, request.identity.warehouse.rstrip("/")
    return told == (catalog.name, catalog.warehouse.rstrip("/"))
