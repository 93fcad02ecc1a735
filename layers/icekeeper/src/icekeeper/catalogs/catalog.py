"""The catalog seam: load a table's document, swap it for a new one, nothing more (rule 102)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.policy.allowed_prefixes import NoPrefixes, allowed_prefixes
from icekeeper.policy.bucket_jobs import BucketJobs
from icekeeper.policy.ownership import BucketMaintenance
from icekeeper.storage.allowed_locations import AllowedLocations

__all__ = ["BuiltInMaintenance", "Catalog", "LoadedTable"]


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table at one moment: what the catalog's pointer named, and the token that the next swap must match."""

    name: TableName
    metadata: TableMetadata
    metadata_location: str
    token: str
    """What the swap compares: the metadata location, or the version token where the catalog has one."""
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg FileIO properties that reach this table's files (they may hold vended credentials: never log)."""
    pinned_metadata: frozenset[str] = frozenset()
    """Metadata files that a commit on this base must not delete although the log drops them."""

    @property
    def allowed(self) -> AllowedLocations:
        """Where the table may have files read, written and deleted."""
        return AllowedLocations.of(self.io_properties)

    def is_kept_apart_from(self, catalog: str, table: TableName) -> bool:
        """Whether rules of the operator fit this table and that of a catalog, and share no folder (rule 280)."""
        from icekeeper.storage.path_set import may_be_under  # functions that delete nothing import this module

        mine = self.allowed
        theirs = allowed_prefixes(mine.rules, catalog, table.namespace) if mine.from_operator else None
        if theirs is None or isinstance(theirs, NoPrefixes):
            return theirs is not None
        pairs = product(mine.prefixes, theirs)
        return not any(may_be_under(one, other) or may_be_under(other, one) for one, other in pairs)


class BuiltInMaintenance(Protocol):
    """The maintenance that a table bucket does by itself."""

    def read(self, table: TableName) -> BucketMaintenance:
        """What the bucket does for a table; the answer says which part of it may not be read.

        Raises:
            StorageError: it does not answer now, but may do so later.
        """
        ...

    def jobs(self, table: TableName) -> BucketJobs:
        """How the bucket's own operations on a table went last, or why that may not be read.

        Raises:
            StorageError: it does not answer now, but may do so later.
        """
        ...

    def disable(self, table: TableName, built_in: BuiltIn) -> None:
        """Switch off one of its operations for one table, and keep the operation's settings.

        Raises:
            StorageError: it could not be switched off.
        """
        ...


class Catalog(Protocol):
    """What every catalog adapter does; one contract suite tests all of them."""

    @property
    def name(self) -> str: ...

    @property
    def warehouse(self) -> str:
        """The warehouse or table bucket, as configured."""
        ...

    @property
    def built_in_maintenance(self) -> BuiltInMaintenance | None:
        """The table bucket's own maintenance; ``None`` where nobody but us maintains tables."""
        ...

    def list_tables(self) -> Iterator[TableName]:
        """Every table of every namespace, nested ones included.

        Raises:
            PartlyListed: after every table that may be listed: others may not.
            StorageError: the catalog cannot be reached.
        """
        ...

    def load(self, table: TableName) -> LoadedTable:
        """The table's newest state: which one that is, the catalog is asked every time.

        Raises:
            PolicyError: there is no such table.
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
            CommitRefused: the catalog answered that it does not commit (``CatalogBusy``: not now).
            CommitStateUnknown: the request was sent and its outcome is not known.
            StorageError, PolicyError: of any other class: the swap failed before it was sent.
        """
        ...
