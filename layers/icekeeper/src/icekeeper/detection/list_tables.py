"""Opens and lists the catalogs of a fleet: filters, scan order, pending requests, faults of listings."""

from __future__ import annotations

import difflib
import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from icekeeper.catalogs.catalog import Catalog
from icekeeper.detection.proposal import FleetSkip
from icekeeper.errors import MaintenanceError, PartlyListed
from icekeeper.model import TableName
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.policy.allowed_prefixes import bucket_name, matches
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import MaintenanceRequest

# Which buckets, namespaces and tables a deployment's filters let through (pure).


def selects_bucket(settings: Policy, warehouse: str) -> bool:
    """Whether ``bucket_filter`` lets a warehouse through: a bucket's address or ARN, or a folder, by its name."""
    return matches(bucket_name(warehouse), settings.bucket_filter)


def selects_table(settings: Policy, table: TableName) -> bool:
    """Whether ``namespace_filter`` and ``table_filter`` let a table through."""
    return matches(".".join(table.namespace), settings.namespace_filter) and matches(table.name, settings.table_filter)


# Open and list the catalogs of a fleet: one that fails is reported and does not stop the others.

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


# Why a scan of a catalog met no table at all (pure).

_SHOWN = 3
_WILDCARDS = str.maketrans("", "", "*?")


def why_empty(catalog: str, warehouse: str, tables: Collection[TableName], settings: ResolvedPolicy) -> str | None:
    """One sentence that names the filter and what is nearest to it; ``None`` where some table is let through."""
    policy = settings.policy
    if not selects_bucket(policy, warehouse):
        return _unmatched(settings, "bucket_filter", f"warehouse {bucket_name(warehouse)}", [])
    if not tables:
        return f"catalog {catalog} has no tables"
    if any(selects_table(policy, table) for table in tables):
        return None
    total = f"the {len(tables)} table(s) of catalog {catalog}"
    if not any(selects_table(policy.model_copy(update={"table_filter": ()}), table) for table in tables):
        return _unmatched(
            settings, "namespace_filter", f"a namespace of {total}", [".".join(t.namespace) for t in tables]
        )
    return _unmatched(settings, "table_filter", f"any of {total}", [table.name for table in tables])


def _unmatched(settings: ResolvedPolicy, key: str, what: str, names: Collection[str]) -> str:
    patterns = getattr(settings.policy, key)
    wanted = patterns[0].translate(_WILDCARDS)
    nearest = difflib.get_close_matches(wanted, sorted(set(names)), n=_SHOWN, cutoff=0)
    said = f"{key} {','.join(patterns)} (from {settings.sources[key]}) does not match {what}"
    return f"{said}; the nearest: {', '.join(nearest)}" if nearest else said


# What is wrong with the listing of a catalog that answered: pure rules (rule: partial-listings-delete-nothing).


def empty_catalogs(listed: Iterable[ListedCatalog]) -> Sequence[str]:
    """The names of the catalogs that list no table, although somebody has configured them."""
    expected = (one for one in listed if one.tables is not None and not one.may_be_empty)
    return tuple(one.catalog.name for one in expected if not one.tables)


def listing_warnings(listed: Sequence[ListedCatalog]) -> Sequence[str]:
    """One sentence for each catalog that lists no table, or leaves some out because it may not list them."""
    empty = frozenset(empty_catalogs(listed))
    return tuple(
        one.left_out
        or f"catalog {one.catalog.name} lists no table: if it has any, a right to see them is missing, such as a grant"
        " of AWS Lake Formation"
        for one in listed
        if one.left_out or one.catalog.name in empty
    )


# Which tables of a catalog have a request for a pass, under whatever name it was filed (pure).


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


# The round-robin order in which the tables of a fleet are scanned (pure).
#
# A scan that runs out of time reports a cursor: the last table that it began.  The next scan starts after it and wraps
# around.  The cursor is a name, not a position, so tables that come or go between two scans change nothing.


class FleetTable(NamedTuple):
    """One table of a fleet."""

    catalog: str
    text: str
    """The table's name as people write it; tables are ordered by it."""
    table: TableName

    @property
    def cursor(self) -> tuple[str, str]:
        """Where the next scan goes on, if this one stops after this table."""
        return self.catalog, self.text


def round_robin(entries: Iterable[FleetTable], cursor: tuple[str, str] | None) -> list[FleetTable]:
    """The tables by catalog and name: first those after ``cursor``, then those up to it.

    The table that the cursor names need not exist any more.
    """
    ordered = sorted(entries, key=lambda entry: entry.cursor)
    if cursor is None:
        return ordered
    first = bisect_right(ordered, tuple(cursor), key=lambda entry: entry.cursor)
    return ordered[first:] + ordered[:first]
