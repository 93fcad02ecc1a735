"""The interface of every catalog: load a table's metadata, swap them for new ones, nothing more
(rule: ask-for-capabilities).

Also here: a loaded table and its identity, the bounds of a catalog's tables, and the error for a missing table.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from icekeeper.catalogs.addresses import CatalogKind, is_access_point
from icekeeper.errors import MaintenanceError, TableNotFound
from icekeeper.machine.clock import steady_s
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.policy.layers import allowed_prefixes, check_allowed_prefixes
from icekeeper.state.identity import TableIdentity
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES, AllowedLocations
from icekeeper.storage.paths import LOCAL_SCHEMES, S3_SCHEMES, authority, normalise, split_path

if TYPE_CHECKING:
    from icekeeper.catalogs.bucket_maintenance import TableBucketMaintenance


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table at one moment: the metadata file that the catalog named, and the token that the next swap must match."""

    name: TableName
    metadata: TableMetadata
    metadata_location: str
    token: str
    """What the swap compares: the metadata location, or the catalog's version token where it has one."""
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg FileIO properties for this table's files; never log them: they may contain vended credentials."""
    pinned_metadata: frozenset[str] = frozenset()
    """Metadata files that a commit on this base must not delete when they drop off the metadata log."""
    versioned_by: str = ""
    """The catalog, such as Nessie, that keeps the table on branches of its own, where other states of it stay."""

    @property
    def allowed(self) -> AllowedLocations:
        """The table's bound: where its files may be read, written and deleted."""
        return AllowedLocations.of(self.io_properties)

    def is_kept_apart_from(self, catalog: str, table: TableName) -> bool:
        """Whether the operator's rules for this table and for that table of ``catalog`` share no folder
        (rule: separated-tables-stop-nothing)."""
        from icekeeper.storage.paths import may_be_under  # functions that delete nothing import this module

        mine = self.allowed
        theirs = allowed_prefixes(mine.rules, catalog, table.namespace) if mine.from_operator else None
        if theirs is None:
            return False
        pairs = product(mine.prefixes, theirs[0])
        return not any(may_be_under(one, other) or may_be_under(other, one) for one, other in pairs)


class Catalog(Protocol):
    """The interface of a catalog; one contract suite tests all adapters."""

    @property
    def name(self) -> str: ...

    @property
    def warehouse(self) -> str:
        """The warehouse or table bucket, as configured."""
        ...

    @property
    def built_in_maintenance(self) -> TableBucketMaintenance | None:
        """The table bucket's own maintenance; ``None`` where only we maintain tables."""
        ...

    def list_tables(self) -> Iterator[TableName]:
        """Every table of every namespace, nested ones included.

        Raises:
            PartlyListed: some tables may not be listed; raised after all others were returned.
            StorageError: the catalog cannot be reached.
        """
        ...

    def load(self, table: TableName) -> LoadedTable:
        """The table's newest state; asks the catalog each time.

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
            CommitRefused: the catalog answered that it does not commit (``CatalogBusy``: not now).
            CommitStateUnknown: the request was sent and its outcome is not known.
            StorageError, PolicyError: any other class: the swap failed before it was sent.
        """
        ...


_SHOWN = 3
# Above difflib's 0.6: the namespace is often right, and makes every table in it similar.
_CUTOFF = 0.75
# A person waits for the hint, and listing takes a request for each namespace.
_LISTED_WITHIN_S = 3


def missing_table(catalog: Catalog, table: TableName) -> TableNotFound:
    """The error for a missing table; its ``hint``, computed on demand, lists the catalog and suggests names."""
    hint = partial(_did_you_mean, catalog, table)
    return TableNotFound(f"there is no table {table} in catalog {catalog.name}", hint=hint)


def _did_you_mean(catalog: Catalog, table: TableName) -> str:
    """The nearest names, as the end of the sentence; empty where none is near or listing fails."""
    listed: list[TableName] = []
    until_s = steady_s() + _LISTED_WITHIN_S
    with suppress(MaintenanceError):  # the tables listed before the failure may still help
        for one in catalog.list_tables():
            listed.append(one)
            if steady_s() > until_s:
                break
    names = {str(one).lower(): str(one) for one in listed if one != table}
    elsewhere = [str(one) for one in listed if one != table and one.name.lower() == table.name.lower()]
    similar = difflib.get_close_matches(str(table).lower(), names, n=_SHOWN, cutoff=_CUTOFF)
    nearest = list(dict.fromkeys([*(names[one] for one in similar), *sorted(elsewhere)]))[:_SHOWN]
    quoted = " or ".join(f"'{one}'" for one in nearest)
    return f" (did you mean {quoted}?)" if nearest else ""


_TABLE_BUCKETS = "arn:"
# Characters of a pattern's or of the setting's own syntax.
_NOT_A_NAME = re.compile(r"[*?\[\];=,'\s\x00-\x1f\x7f-\x9f]")


class TableBounds:
    """Resolves the bounds of one catalog's tables: by a rule of the operator, else by the warehouse
    (rule: bound-every-table, warehouse-is-the-default-bound).
    """

    def __init__(
        self, name: str, kind: CatalogKind, warehouse: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """``warehouse`` is as configured; ``environment``, by default this process's, contains the rules.

        Raises:
            PolicyError: the rules are malformed.
        """
        self._name, self._kind, self._warehouse = name, kind, warehouse.strip()
        self._rules = (os.environ if environment is None else environment).get(ALLOWED_PREFIXES, "")
        check_allowed_prefixes(self._rules)

    def of(self, table: TableName, metadata_location: str, home: str | None = None) -> AllowedLocations:
        """The bound of one table.

        Args:
            metadata_location: its metadata file.  Its writer may write there, while the location that the file names
                may belong to somebody else.
            home: the table's location according to the catalog's service.
        """
        subject = self._subject(table.namespace)
        found = allowed_prefixes(self._rules, self._name, table.namespace)
        prefixes, why_none = (self._default(metadata_location, home), "") if found is None else found
        spelled_in = self._warehouse if found is None else self._rules
        if alias := next((one for one in prefixes if _is_second_name(one, spelled_in)), None):
            prefixes, why_none = (
                (),
                (
                    f"{authority(alias)} is an access point, a second name of a bucket in which other tables may have "
                    f"files; give the table the bucket's own name, or spell the access point in the catalog's "
                    f"warehouse or in a rule of {ALLOWED_PREFIXES}"
                ),
            )
        return AllowedLocations(prefixes, found is not None, subject, self._rules, why_none)

    def _subject(self, namespace: tuple[str, ...]) -> str:
        """The beginning of a rule for one namespace; empty where such a rule would fit others as well."""
        if not namespace or not all(namespace) or any(_NOT_A_NAME.search(level) or "." in level for level in namespace):
            return ""
        return f"{_NOT_A_NAME.sub('?', self._name).replace('.', '?')}.{'.'.join(namespace)}"

    def _default(self, metadata_location: str, home: str | None) -> tuple[str, ...]:
        warehouse, place = split_path(self._warehouse), split_path(metadata_location)
        is_url = "://" in self._warehouse
        is_path = self._warehouse.startswith(("/", "file:/")) or (self._kind is CatalogKind.SQL and self._warehouse)
        if self._kind is not CatalogKind.GLUE and (is_url or is_path):
            if warehouse.scheme in S3_SCHEMES or warehouse.scheme in LOCAL_SCHEMES:
                return (self._warehouse,)
            return (f"{place.scheme}://{place.authority}",) if place.scheme == warehouse.scheme else ()
        if place.scheme not in S3_SCHEMES or not place.authority:
            return ()
        if self._warehouse.startswith(_TABLE_BUCKETS) and self._kind is not CatalogKind.GLUE:
            return (home or metadata_location.rpartition("/")[0].removesuffix("/metadata"),)
        return (f"{place.scheme}://{place.authority}",)


def _is_second_name(prefix: str, spelled_in: str) -> bool:
    """Whether a prefix is in an access point that the operator's own text does not spell: a table or namespace chose it
    (rule: second-names-of-buckets)."""
    place = split_path(prefix)
    if place.scheme not in S3_SCHEMES or not is_access_point(place.authority):
        return False
    return not re.search(rf"//{re.escape(place.authority)}(?![^/,;\s])", spelled_in)


def identity_of(catalog: Catalog, loaded: LoadedTable) -> TableIdentity:
    """The table's lasting identity: its UUID and normalised location, with its names in this catalog."""
    metadata = loaded.metadata
    return TableIdentity(
        catalog.name, catalog.warehouse, loaded.name, metadata.uuid or "", normalise(metadata.location)
    )
