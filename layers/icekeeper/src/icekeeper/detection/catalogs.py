"""Open and list the catalogs of a fleet: one that fails is reported and does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from icekeeper.catalogs.catalog import Catalog
from icekeeper.detection.filters import selects_bucket, selects_table
from icekeeper.detection.proposal import FleetSkip
from icekeeper.errors import MaintenanceError, PartlyListed
from icekeeper.model import TableName
from icekeeper.policy import Policy

__all__ = ["CatalogSource", "ListedCatalog", "listed_catalog"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogSource:
    """A catalog that is not opened yet."""

    name: str
    open: Callable[[], Catalog]
    may_be_empty: bool = False
    """Whether it is no surprise that it has no table: nobody named it, it was found."""


@dataclass(frozen=True, slots=True)
class ListedCatalog:
    """An open catalog; ``selected`` are its tables that the filters let through."""

    catalog: Catalog
    tables: frozenset[TableName] | None
    """Every table of it; ``None`` where it was not listed, because the filters leave the whole of it out."""
    selected: tuple[TableName, ...]
    left_out: str | None = None
    """Why some of its tables are not listed."""
    may_be_empty: bool = False


def listed_catalog(source: CatalogSource, settings: Policy) -> ListedCatalog | FleetSkip:
    """Open a catalog and list its tables, or say why that failed."""
    listed: list[TableName] = []
    left_out: str | None = None
    try:
        catalog = source.open()
        if not selects_bucket(settings, catalog.warehouse):
            return ListedCatalog(catalog, None, ())
        listed.extend(catalog.list_tables())
    except PartlyListed as error:
        left_out = str(error)
    except (MaintenanceError, OSError) as error:
        return FleetSkip(source.name, "", f"the catalog cannot be scanned: {error}", is_error=True)
    except Exception as error:  # a client's own error must not stop the scan of the other catalogs
        log.exception("catalog %s broke", source.name)
        reason = f"the catalog cannot be scanned: {type(error).__name__} {error}"
        return FleetSkip(source.name, "", reason, is_error=True)
    # A table that a page repeats would be maintained by two at once, who both have the run's lease.
    tables = tuple(dict.fromkeys(listed))
    selected = tuple(table for table in tables if selects_table(settings, table))
    return ListedCatalog(catalog, frozenset(tables), selected, left_out, source.may_be_empty)
