"""Loads the tables that may have files in some folders, of its own catalog and of every other one that is served here.

The state knows in which folders each table has files: every one was looked at in this run (``served_tables``).  So only
tables whose folders touch are loaded, and what they reference by now is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.claims import entry_of, is_seen, look_into, record_first_look, recorded_claims
from icekeeper.deletion.limited_looks import LimitedLooks
from icekeeper.deletion.neighbours import TableFolders, table_folders
from icekeeper.deletion.owned_locations import owned_locations
from icekeeper.deletion.served_tables import is_lost, know_every_table, lost_entries
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.machine.metering import WorkThreads
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.claims import TableClaims, UnseenEntry
from icekeeper.state.store import StateStore
from icekeeper.storage.path_set import may_be_under
from icekeeper.storage.paths import is_under

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
    kept_apart: tuple[tuple[TableClaims, str], ...] = ()
    """As ``unreadable`` or ``given_up``, of tables that the operator's rules keep away (rule 280)."""
    pointers: tuple[str, ...] = ()
    """Metadata files in the folders of the table that asks at which entries of such tables stand."""


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
    near = [NearTables(given_up=(one,)) for one in lost if _counts(context, own, one[0])]
    failed = {(*look.key, one.table.key): one for look in looks for one in look.unseen if one.is_known}
    catalogs = {entry[:2]: _opened(context, one) for entry, one in claimed.items()}
    # What waits is read once for each catalog, and tables of one that hang shorten each other's time.
    ways = {
        key: catalog if catalog is None or isinstance(catalog, str) else LimitedLooks(context, catalog)
        for key, catalog in catalogs.items()
    }
    with WorkThreads(_PARALLEL_LOADS, thread_name_prefix="table-load") as pool:
        entries = sorted(claimed)
        near += pool.map(
            lambda entry: _near_one(context, own, ways[entry[:2]], claimed[entry], folders, failed.get(entry)),
            entries,
        )
    # A table that was renamed is found twice.
    found = _joined(near)
    others = {entry_of(table.catalog, table.table): table for table in found.tables}
    homes = owned_locations(own.metadata)
    pointers = {
        one.pointer
        for look in looks
        for one in look.unseen
        if any(is_under(one.pointer, home) for home in homes) and own.is_kept_apart_from(look.catalog, one.table)
    }
    tables = tuple(table for entry, table in others.items() if entry != own_entry)
    return replace(found, tables=tables, pointers=tuple(sorted(pointers)))


def _near_one(
    context: OperationContext,
    own: LoadedTable,
    way: LimitedLooks | str | None,
    claims: TableClaims,
    folders: Sequence[str],
    failed: UnseenEntry | None,
) -> NearTables:
    """What one entry leads to; ``way`` leads to its catalog: the looks there, else as :func:`_opened` says.

    ``failed``: how the look of the run failed; what cannot be read takes long, and is not read again for each pass.
    """
    is_kept_apart = partial(own.is_kept_apart_from, claims.catalog)

    def lost(reason: str, table: TableName = claims.table, *, is_gone: bool = False) -> NearTables:
        entry = ((claims, reason),)
        if is_kept_apart(claims.table) and is_kept_apart(table):
            return NearTables(kept_apart=entry)
        return NearTables(given_up=entry) if is_gone else NearTables(unreadable=entry)

    if failed is not None:
        return lost(failed.reason, is_gone=failed.is_gone)
    if way is None:
        return lost(f"catalog {claims.catalog} cannot be opened from here", is_gone=True)
    if isinstance(way, str):
        return lost(way)

    def look() -> tuple[CatalogTables, list[tuple[TableFolders, MaintenanceError | None]]]:
        found = _loaded_by_claims(context, own, way.catalog, claims)
        return found, [_looked_into(context, table, claims) for table in found.tables]

    try:
        found, looked = way.look(claims.table, look)
    except MaintenanceError as error:
        return lost(str(error))
    near = [lost(reason, table, is_gone=found.is_gone) for table, reason in found.unreadable]
    for table, unread in looked:
        if unread is not None:
            near.append(lost(str(unread), table.table.name))
        if any(map(table.overlap, folders)):
            apart = is_kept_apart(table.table.name)  # what it names stays, but no folder is its own here
            near.append(NearTables((replace(table, folders={}, is_kept_apart=True) if apart else table,)))
    return _joined(near)


def _counts(context: OperationContext, own: LoadedTable, lost: TableClaims) -> bool:
    """Whether an entry that nobody has ever looked into is spared under its location, of which only its pointer tells.

    Not where the operator's rules keep it away, nor one around ``own`` that a person has excluded.
    """
    if own.is_kept_apart_from(lost.catalog, lost.table):
        return False
    if not may_be_under(own.metadata.location, lost.location):
        return True
    recorded = context.state.claims.of_entry(lost.entry)
    return recorded is None or not recorded.is_excluded


def _joined(near: Sequence[NearTables]) -> NearTables:
    return NearTables(
        tuple(chain.from_iterable(one.tables for one in near)),
        tuple(chain.from_iterable(one.unreadable for one in near)),
        tuple(chain.from_iterable(one.given_up for one in near)),
        tuple(chain.from_iterable(one.kept_apart for one in near)),
    )


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


def _loaded_by_claims(
    context: OperationContext, own: LoadedTable, catalog: Catalog, claims: TableClaims
) -> CatalogTables:
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
    lost = [(name, f"it may be {name}, which cannot be loaded: {why}") for name, why in renamed.unreadable]
    near = [one for one in lost if not own.is_kept_apart_from(catalog.name, one[0])]
    return CatalogTables((*found.tables, *renamed.tables), tuple((near or lost)[:1]), renamed.is_gone)


def _uuid_of(one: TableFolders) -> str:
    return identity_of(one.catalog, one.table).uuid
