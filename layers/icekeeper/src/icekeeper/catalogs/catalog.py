"""The interface of every catalog: it loads a table's metadata and swaps them for new metadata.

Also here: a loaded table and its identity, and the error for a missing table.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from icekeeper.errors import MaintenanceError, TableNotFound
from icekeeper.machine.clock import steady_s
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import CatalogId, TableName
from icekeeper.policy.allowed_prefixes import allowed_prefixes
from icekeeper.state.identity import TableIdentity
from icekeeper.storage.allowed_locations import AllowedLocations
from icekeeper.storage.paths import normalise

if TYPE_CHECKING:
    from icekeeper.catalogs.bucket_maintenance import TableBucketMaintenance


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A state of a table: the metadata file that the catalog named, and the token that the next swap must match."""

    name: TableName
    metadata: TableMetadata
    metadata_location: str
    token: str
    """The value that the swap compares: the metadata location, or the catalog's version token if it has one."""
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg FileIO properties for this table's files; never log them: they may contain vended credentials."""
    pinned_metadata: frozenset[str] = frozenset()
    """Metadata files that a commit on this base must not delete when they drop off the metadata log."""
    versioned_by: str = ""
    """The catalog, such as Nessie, that keeps other states of the table on branches of its own."""

    @property
    def allowed(self) -> AllowedLocations:
        """The table's bound: where its files may be read, written and deleted."""
        return AllowedLocations.of(self.io_properties)

    def is_kept_apart_from(self, catalog: CatalogId, table: TableName) -> bool:
        """Whether the operator's rules for this table and for ``table`` of ``catalog`` share no folder
        (rule: separated-tables-stop-nothing)."""
        from icekeeper.storage.paths import may_be_under  # here, because functions that delete nothing need no paths

        mine = self.allowed
        theirs = allowed_prefixes(mine.rules, catalog.name, table.namespace) if mine.from_operator else None
        if theirs is None:
            return False
        pairs = product(mine.prefixes, theirs[0])
        return not any(may_be_under(location, other) or may_be_under(other, location) for location, other in pairs)


class Catalog(Protocol):
    """The interface of a catalog; one contract suite tests all adapters."""

    @property
    def id(self) -> CatalogId:
        """Its name, and its warehouse or table bucket as configured."""
        ...

    @property
    def built_in_maintenance(self) -> TableBucketMaintenance | None:
        """The table bucket's own maintenance; ``None`` if the catalog does no maintenance itself."""
        ...

    def list_tables(self) -> Iterator[TableName]:
        """Every table of every namespace, including nested namespaces.

        Raises:
            PartlyListed: some tables cannot be listed; raised after all others were returned.
            StorageError: the catalog cannot be reached.
        """
        ...

    def load(self, table: TableName) -> LoadedTable:
        """The table's newest state; every call sends a request to the catalog.

        Raises:
            TableNotFound: the catalog itself answers that it has no Iceberg table of this name.
            MetadataUnreadable: the metadata file is missing or damaged.
            StorageError: the catalog or store cannot be reached.
        """
        ...

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        """Swap ``base`` for the state after ``updates``; on failure no partial state is visible.

        Raises:
            CommitConflict: the catalog answered that the table is no longer at ``base``, or that a requirement does not
                hold.
            CommitRefused: the catalog answered that it did not commit (``CatalogBusy``: because of load).
            CommitStateUnknown: the request was sent and its outcome is not known.
            StorageError, PolicyError: any other error: the swap failed before it was sent.
        """
        ...


@runtime_checkable
class MovesPointers(Protocol):
    """A catalog that can name another existing metadata file for a table, if the table did not move."""

    def point_to(self, base: LoadedTable, location: str) -> None:
        """Name the metadata file ``location`` instead of that of ``base``; raises as :meth:`Catalog.commit` does."""
        ...


_SHOWN = 3
# Above difflib's 0.6, because the namespace is often right, and makes every table in it similar.
_CUTOFF = 0.75
# A person waits for the hint, and a listing takes a request per namespace.
_LISTED_WITHIN_S = 3


def missing_table(catalog: Catalog, table: TableName) -> TableNotFound:
    """The error for a missing table; its ``hint``, computed on demand, lists the catalog and suggests names."""
    hint = partial(_did_you_mean, catalog, table)
    return TableNotFound(f"there is no table {table} in catalog {catalog.id}", hint=hint)


def _did_you_mean(catalog: Catalog, table: TableName) -> str:
    """The nearest names, as the end of a sentence; empty if no name is near or listing fails."""
    listed: list[TableName] = []
    until_s = steady_s() + _LISTED_WITHIN_S
    with suppress(MaintenanceError):  # the tables listed before the failure may still help
        for name in catalog.list_tables():
            listed.append(name)
            if steady_s() > until_s:
                break
    names = {str(name).lower(): str(name) for name in listed if name != table}
    elsewhere = [str(name) for name in listed if name != table and name.name.lower() == table.name.lower()]
    similar = difflib.get_close_matches(str(table).lower(), names, n=_SHOWN, cutoff=_CUTOFF)
    nearest = list(dict.fromkeys([*(names[name] for name in similar), *sorted(elsewhere)]))[:_SHOWN]
    quoted = " or ".join(f"'{name}'" for name in nearest)
    return f" (did you mean {quoted}?)" if nearest else ""


def identity_of(catalog: Catalog, loaded: LoadedTable) -> TableIdentity:
    """The table's lasting identity: its UUID and normalised location, with its names in this catalog."""
    metadata = loaded.metadata
    return TableIdentity(catalog.id, loaded.name, metadata.uuid or "", normalise(metadata.location))
