"""Loads the tables that may have files in some folders, of its own catalog and of every other one that is served here.

The state knows in which folders each table has files: every one was looked at in this run (``served_tables``).  So only
tables whose folders touch are loaded, and what they reference by now is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.deletion.claims import entry_of, is_seen, look_into, record_first_look, recorded_claims
from icekeeper.deletion.limited_looks import LimitedLooks
from icekeeper.deletion.neighbours import TableFolders, table_folders
from icekeeper.deletion.served_tables import is_lost, know_every_table, lost_entries
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.request_count import WorkThreads
from icekeeper.state.claims import TableClaims
from icekeeper.state.store import StateStore
from icekeeper.storage.path_set import may_be_under

__all__ = ["CatalogTables", "NearTables", "load_all", "near_tables"]

_PARALLEL_LOADS = 8


@dataclass(frozen=True, slots=True)
class CatalogTables:
    """The tables of a catalog: where each may have files, and those that cannot be loaded, with the reason."""

    tables: tuple[TableFolders, ...]
    unreadable: tuple[tuple[TableName, str], ...]
    is_gone: bool = False
    """Whether the metadata files of all that cannot be loaded are gone."""

    @property
    def loaded(self) -> Sequence[LoadedTable]:
        return [one.table for one in self.tables]


@dataclass(frozen=True, slots=True)
class NearTables:
    """Tables that may have files in some folders, and entries that may but cannot be read, with the reason."""

    tables: tuple[TableFolders, ...] = ()
    unreadable: tuple[tuple[TableClaims, str], ...] = ()
    given_up: tuple[tuple[TableClaims, str], ...] = ()
    """As ``unreadable``, but nobody can read the table by the entry: its metadata file is gone, or its catalog is not
    served any more."""


def load_all(
    catalog: Catalog, names: Iterable[TableName], state: StateStore, known: Mapping[TableName, TableClaims]
) -> CatalogTables:
    """Load many tables in parallel, and record where they have files; one dropped meanwhile is left out.

    Raises:
        StorageError: the names cannot be listed, or the state store failed.
    """

    # By UUID: a table may have had another name when it was looked at.
    seen_in: defaultdict[str, set[str]] = defaultdict(set)
    for claims in known.values():
        seen_in[claims.uuid] |= claims.folders

    lost: list[bool] = []

    def load(name: TableName) -> TableFolders | tuple[TableName, str] | None:
        try:
            loaded = catalog.load(name)
            return table_folders(catalog, loaded, seen_in.get(identity_of(catalog, loaded).uuid, ()))
        except PolicyError:
            return None
        except MaintenanceError as error:
            lost.append(is_lost(error))
            return name, str(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            lost.append(False)
            return name, f"its metadata does not follow the specification: {type(error).__name__} {error}"

    with WorkThreads(_PARALLEL_LOADS, thread_name_prefix="table-load") as pool:
        found = list(pool.map(load, names))
    readable = tuple(one for one in found if isinstance(one, TableFolders))
    for one in readable:
        if one.table.name not in known:
            same = [claims for claims in known.values() if claims.uuid == _uuid_of(one)]
            record_first_look(state, catalog, one.table, same)
    return CatalogTables(
        readable,
        tuple(one for one in found if isinstance(one, tuple)),
        is_gone=bool(lost) and all(lost),
    )


def near_tables(context: OperationContext, own: LoadedTable, folders: Sequence[str]) -> NearTables:
    """Every other table, of any catalog served here, that may have files in the (normalised) folders.

    Raises:
        OperationRefused: there is a table of which it is not known whether it has.
        StorageError: the state store failed.
    """
    looks = know_every_table(context, own)
    claimed: dict[tuple[str, str, str], TableClaims] = {}
    for folder in folders:
        for one in context.state.claims.touching(folder):
            claimed.setdefault(one.entry, one)
    own_entry = entry_of(context.catalog, own)
    claimed.pop(own_entry, None)
    lost = (one for one in lost_entries(looks) if any(one[0].touch(folder) for folder in folders))
    near = [NearTables(given_up=(one,)) for one in lost if not _is_excluded_around(context, own, one[0])]
    catalogs = {entry[:2]: _opened(context, one) for entry, one in claimed.items()}
    with WorkThreads(_PARALLEL_LOADS, thread_name_prefix="table-load") as pool:
        entries = sorted(claimed)
        near += pool.map(lambda entry: _near_one(context, catalogs[entry[:2]], claimed[entry], folders), entries)
    # A table that was renamed is found twice.
    others = {entry_of(table.catalog, table.table): table for one in near for table in one.tables}
    return NearTables(
        tuple(table for entry, table in others.items() if entry != own_entry),
        tuple(chain.from_iterable(one.unreadable for one in near)),
        tuple(chain.from_iterable(one.given_up for one in near)),
    )


def _near_one(
    context: OperationContext, catalog: Catalog | str | None, claims: TableClaims, folders: Sequence[str]
) -> NearTables:
    """What one entry leads to; ``catalog`` is its catalog, as :func:`_opened` gives it."""
    if catalog is None:
        return NearTables(given_up=((claims, f"catalog {claims.catalog} cannot be opened from here"),))
    if isinstance(catalog, str):
        return NearTables(unreadable=((claims, catalog),))

    def look() -> tuple[CatalogTables, list[tuple[TableFolders, MaintenanceError | None]]]:
        found = _loaded_by_claims(context, catalog, claims)
        return found, [_looked_into(context, table, claims) for table in found.tables]

    try:
        found, looked = LimitedLooks(context, catalog).look(claims.table, look)
    except MaintenanceError as error:
        return NearTables(unreadable=((claims, str(error)),))
    lost = tuple((claims, reason) for _, reason in found.unreadable)
    return NearTables(
        tuple(table for table, _ in looked if any(map(table.overlap, folders))),
        (*((claims, str(error)) for _, error in looked if error is not None), *(() if found.is_gone else lost)),
        lost if found.is_gone else (),
    )


def _is_excluded_around(context: OperationContext, own: LoadedTable, lost: TableClaims) -> bool:
    """Whether a person has excluded an entry whose location is, or contains, that of ``own``: then it stops nothing."""
    if not may_be_under(own.metadata.location, lost.location):
        return False
    recorded = context.state.claims.of_entry(lost.entry)
    return recorded is not None and recorded.is_excluded


def _looked_into(
    context: OperationContext, one: TableFolders, recorded: TableClaims
) -> tuple[TableFolders, MaintenanceError | None]:
    """A table with every folder in which it has files now; with an error where its manifests cannot be read."""
    if one.table.name == recorded.table and is_seen(recorded, one.table):
        return one, None
    try:
        return replace(one, files_in=one.files_in | look_into(context, one.catalog, one.table)), None
    except MaintenanceError as error:
        return one, error


def _opened(context: OperationContext, claims: TableClaims) -> Catalog | str | None:
    """The catalog of an entry; ``None``: it is not served any more; else why it cannot be opened."""
    if (claims.catalog, claims.warehouse) == (context.catalog.name, context.catalog.warehouse):
        return context.catalog
    try:
        return context.other_catalog(claims.catalog, claims.warehouse)
    except MaintenanceError as error:
        return f"catalog {claims.catalog} cannot be opened from here: {error}"


def _loaded_by_claims(context: OperationContext, catalog: Catalog, claims: TableClaims) -> CatalogTables:
    """The table that was seen under a name, also under the one that it has by now; the claims of one that is gone go.

    Raises:
        StorageError: the catalog cannot be listed, or the state store failed.
    """
    found = load_all(catalog, [claims.table], context.state, {claims.table: claims})
    if found.unreadable or any(_uuid_of(one) == claims.uuid for one in found.tables):
        return found
    recorded = recorded_claims(context.state, catalog)
    unknown = [name for name in catalog.list_tables() if name not in recorded]
    renamed = load_all(catalog, unknown, context.state, recorded)
    if not renamed.unreadable and not found.tables:
        context.state.claims.forget(claims.entry)
    # One that cannot be loaded may be the one that is looked for.
    lost = tuple((claims.table, f"it may be {name}, which cannot be loaded: {why}") for name, why in renamed.unreadable)
    return CatalogTables((*found.tables, *renamed.tables), lost[:1], renamed.is_gone)


def _uuid_of(one: TableFolders) -> str:
    return identity_of(one.catalog, one.table).uuid
