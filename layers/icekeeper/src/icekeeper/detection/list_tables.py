"""Open and list the catalogs of a fleet: filters, problems of listings, pending requests, the order of a scan."""

from __future__ import annotations

import difflib
import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from icekeeper.catalogs.catalog import Catalog
from icekeeper.detection.proposal import Skip
from icekeeper.errors import MaintenanceError, PartlyListed
from icekeeper.model import CatalogId, TableName
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.policy.policy_file import bucket_name, matches
from icekeeper.state.requests import MaintenanceRequest

log = logging.getLogger(__name__)


def selects_bucket(settings: Policy, warehouse: str) -> bool:
    """Whether ``bucket_filter`` selects a warehouse, by the name of its bucket or folder."""
    return matches(bucket_name(warehouse), settings.bucket_filter)


def selects_table(settings: Policy, table: TableName, patterns: Sequence[str] = ()) -> bool:
    """Whether ``namespace_filter``, ``table_filter`` and the call's patterns, if it has any, select a table."""
    is_filtered = matches(".".join(table.namespace), settings.namespace_filter)
    return is_filtered and matches(table.name, settings.table_filter) and matches(str(table), patterns)


@dataclass(frozen=True, slots=True)
class CatalogSource:
    """A catalog that is not opened yet."""

    name: str
    open: Callable[[], Catalog]
    may_be_empty: bool = False
    """The catalog was discovered, not configured, so it may well have no table."""


@dataclass(frozen=True, slots=True)
class ListedCatalog:
    """An open catalog; ``selected`` are its tables that the filters select."""

    catalog: Catalog
    tables: frozenset[TableName] | None
    """All its tables; ``None``: it was not listed, because ``bucket_filter`` excludes it."""
    selected: tuple[TableName, ...]
    left_out: str | None = None
    """Why some of its tables are not listed."""
    may_be_empty: bool = False


def listed_catalog(source: CatalogSource, settings: Policy, patterns: Sequence[str] = ()) -> ListedCatalog | Skip:
    """Open a catalog and list its tables; a failure becomes a skip, so that it does not stop the other catalogs.

    ``patterns`` are those of the call, which limit the selected tables further.
    """
    listed: list[TableName] = []
    left_out: str | None = None
    try:
        catalog = source.open()
        if not selects_bucket(settings, catalog.id.warehouse):
            return ListedCatalog(catalog, None, ())
        listed.extend(catalog.list_tables())
    except PartlyListed as error:
        left_out = str(error)
    except (MaintenanceError, OSError) as error:
        return Skip("", f"the catalog cannot be scanned: {error}", is_error=True, catalog=source.name)
    except Exception as error:  # an error of a client library
        log.exception("catalog %s broke", source.name)
        reason = f"the catalog cannot be scanned: {type(error).__name__} {error}"
        return Skip("", reason, is_error=True, catalog=source.name)
    # A table that is listed twice would be maintained twice at once, because both passes have the run's lease.
    tables = tuple(dict.fromkeys(listed))
    selected = tuple(table for table in tables if selects_table(settings, table, patterns))
    return ListedCatalog(catalog, frozenset(tables), selected, left_out, source.may_be_empty)


def why_empty(catalog: CatalogId, tables: Collection[TableName], settings: ResolvedPolicy) -> str | None:
    """Why a scan selects no table: a sentence with the filter and the nearest names; ``None``: it selects some."""
    policy = settings.policy
    if not selects_bucket(policy, catalog.warehouse):
        return _unmatched(settings, "bucket_filter", f"warehouse {bucket_name(catalog.warehouse)}", [])
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
    wanted = patterns[0].replace("*", "").replace("?", "")
    nearest = difflib.get_close_matches(wanted, sorted(set(names)), n=3, cutoff=0)
    sentence = f"{key} {','.join(patterns)} (from {settings.sources[key]}) does not match {what}"
    return f"{sentence}; the nearest: {', '.join(nearest)}" if nearest else sentence


def empty_catalogs(listed: Iterable[ListedCatalog]) -> Sequence[str]:
    """The names of the configured catalogs that list no table."""
    expected = (catalog for catalog in listed if catalog.tables is not None and not catalog.may_be_empty)
    return tuple(source.catalog.id.name for source in expected if not source.tables)


def listing_warnings(listed: Sequence[ListedCatalog]) -> Sequence[str]:
    """A sentence for each configured catalog that lists no table, and each that may not list some of its tables
    (rule: partial-listings-delete-nothing)."""
    empty = frozenset(empty_catalogs(listed))
    return tuple(
        source.left_out
        or f"catalog {source.catalog.id} lists no tables; if it has any, the right to list them is missing, such as an"
        " AWS Lake Formation grant"
        for source in listed
        if source.left_out or source.catalog.id.name in empty
    )


def unmatched_patterns(listed: Sequence[ListedCatalog], patterns: Iterable[str]) -> Iterator[str]:
    """A sentence for each pattern of the call that matches no table of these catalogs."""
    names = [str(table) for catalog in listed for table in catalog.tables or ()]
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in names):
            yield f"no table matches '{pattern}'"


def unmatched_requests(
    pending: Sequence[MaintenanceRequest], catalogs: Sequence[Catalog]
) -> tuple[MaintenanceRequest, ...]:
    """The requests filed under a catalog name that is not among these; they may still be for tables of these."""
    known = {_filed_under(catalog.id) for catalog in catalogs}
    return tuple(request for request in pending if _filed_under(request.identity.catalog) not in known)


def requested_tables(
    listed: ListedCatalog, pending: Sequence[MaintenanceRequest], strangers: Iterable[MaintenanceRequest]
) -> tuple[Sequence[TableName], Mapping[str, Sequence[MaintenanceRequest]]]:
    """The tables of one catalog to load first, and by table the requests filed under the catalog's own name.

    Only a loaded table shows which requests are for it, as it may have another name here than in the request.
    ``strangers`` are matched to the catalog's tables by name, ignoring case.
    """
    own = _filed_under(listed.catalog.id)
    requested: dict[str, list[MaintenanceRequest]] = {}
    for request in pending:
        if _filed_under(request.identity.catalog) == own:
            requested.setdefault(str(request.identity.table), []).append(request)
    sought = {str(request.identity.table).lower() for request in strangers}
    found = (table for table in listed.tables or () if sought and str(table).lower() in sought)
    return tuple(dict.fromkeys((*(filed[0].identity.table for filed in requested.values()), *found))), requested


def _filed_under(catalog: CatalogId) -> CatalogId:
    """The catalog that a request is filed under; trailing slashes do not matter."""
    return CatalogId(catalog.name, catalog.warehouse.rstrip("/"))


class FleetTable(NamedTuple):
    """One table of a fleet; ``text`` is its name as people write it, and defines the order of tables."""

    catalog: str
    text: str
    table: TableName

    @property
    def cursor(self) -> tuple[str, str]:
        """The cursor of a scan that stops after this table."""
        return self.catalog, self.text


def round_robin(entries: Iterable[FleetTable], cursor: tuple[str, str] | None) -> list[FleetTable]:
    """The tables by catalog and name: first those after ``cursor``, then those up to it.

    A scan that runs out of time reports the last table that it began as cursor, and the next scan starts after it.  The
    cursor is a name, not a position, so tables may be created or dropped between two scans.
    """
    ordered = sorted(entries, key=lambda entry: entry.cursor)
    if cursor is None:
        return ordered
    first = bisect_right(ordered, tuple(cursor), key=lambda entry: entry.cursor)
    return ordered[first:] + ordered[:first]
