"""The tables that may need files in some folders: the tables that can be loaded, and why the others cannot.

The claims name these tables; the look of this run (``other_tables``) has brought the claims up to date.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.neighbours import TableFolders, owned_locations, table_folders
from icekeeper.deletion.other_tables import DENIED, LimitedLooks, is_lost, know_every_table, listed_anew, lost_entries
from icekeeper.deletion.table_claims import entry_of, is_seen, look_into, record_first_look, recorded_claims
from icekeeper.errors import MaintenanceError, TableNotFound
from icekeeper.machine.clock import iso_utc
from icekeeper.machine.metering import WorkThreads
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.claims import GONE_AFTER_MS, TableClaims, UnseenEntry
from icekeeper.state.identity import Entry
from icekeeper.state.store import StateStore
from icekeeper.storage.paths import is_under, may_be_under

_PARALLEL_LOADS = 8


@dataclass(frozen=True, slots=True)
class CatalogTables:
    """Loaded tables of a catalog with their folders, and the tables that cannot be loaded, with the reason."""

    tables: tuple[TableFolders, ...]
    unreadable: tuple[tuple[TableName, str], ...]
    is_gone: bool = False
    """Whether the metadata file of every unreadable table is gone."""
    missing: str = ""
    """Why the recorded claims of a missing table still count."""


@dataclass(frozen=True, slots=True)
class NearTables:
    """Tables that may have files in some folders, and entries that may but cannot be read, with the reason."""

    tables: tuple[TableFolders, ...] = ()
    unreadable: tuple[tuple[TableClaims, str], ...] = ()
    given_up: tuple[tuple[TableClaims, str], ...] = ()
    """Unreadable for good: the metadata file is gone, or the catalog is no longer served."""
    missing: tuple[tuple[TableClaims, str], ...] = ()
    """Missing in their catalog, but not proven to be gone (rule: gone-is-proven-twice)."""
    kept_apart: tuple[tuple[TableClaims, str], ...] = ()
    """Unreadable or given up, but separated by the operator's rules (rule: separated-tables-stop-nothing)."""
    pointers: tuple[str, ...] = ()
    """Metadata files in the cleaned table's folders: entries of separated tables, or former entries of the cleaned
    table itself, point at them."""


def load_all(
    catalog: Catalog, names: Iterable[TableName], state: StateStore, known: Mapping[TableName, TableClaims]
) -> CatalogTables:
    """Load tables in parallel, and record the folders of new tables; missing tables are left out.

    Raises:
        StorageError: the names cannot be listed, or the state store failed.
    """

    # By UUID, because a table may have had another name at an earlier look.
    seen_in: defaultdict[str, set[str]] = defaultdict(set)
    for claims in known.values():
        seen_in[claims.uuid] |= claims.folders

    lost: list[bool] = []

    def load(name: TableName) -> TableFolders | tuple[TableName, str] | None:
        try:
            loaded = catalog.load(name)
            return table_folders(catalog, loaded, seen_in.get(identity_of(catalog, loaded).uuid, ()))
        except TableNotFound:
            return None
        except MaintenanceError as error:
            lost.append(is_lost(error))
            return name, str(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            lost.append(False)
            return name, f"its metadata does not follow the specification: {type(error).__name__} {error}"

    with WorkThreads(_PARALLEL_LOADS, thread_name_prefix="table-load") as pool:
        found = list(pool.map(load, names))
    readable = tuple(table for table in found if isinstance(table, TableFolders))
    for table in readable:
        if table.table.name not in known:
            same = [claims for claims in known.values() if claims.uuid == _uuid_of(table)]
            record_first_look(state, catalog, table.table, same)
    return CatalogTables(
        readable, tuple(failed for failed in found if isinstance(failed, tuple)), is_gone=bool(lost) and all(lost)
    )


def near_tables(context: OperationContext, own: LoadedTable, folders: Sequence[str]) -> NearTables:
    """Every other table of all served catalogs that may have files in the (normalised) folders.

    Raises:
        OperationRefused: it is unknown whether some table has files there.
        StorageError: the state store failed.
    """
    looks = know_every_table(context, own)
    claimed: dict[Entry, TableClaims] = {}
    for folder in folders:
        for claims in context.state.claims.touching(folder):
            claimed.setdefault(claims.entry, claims)
    own_entry = entry_of(context.catalogs.own, own)
    claimed.pop(own_entry, None)
    lost = (entry for entry in lost_entries(looks) if any(entry[0].touch(folder) for folder in folders))
    near = [NearTables(given_up=(entry,)) for entry in lost if _counts(context, own, entry[0])]
    failed = {Entry(look.catalog, entry.table.key): entry for look in looks for entry in look.unseen if entry.is_known}
    catalogs = {entry.catalog: opened(context, claims) for entry, claims in claimed.items()}
    # One object per catalog, so that tables that hang shorten the time limit of the other tables there.
    ways = {
        key: catalog if catalog is None or isinstance(catalog, str) else LimitedLooks(context, catalog)
        for key, catalog in catalogs.items()
    }
    with WorkThreads(_PARALLEL_LOADS, thread_name_prefix="table-load") as pool:
        entries = sorted(claimed)
        near += pool.map(
            lambda entry: _near_one(context, own, ways[entry.catalog], claimed[entry], folders, failed.get(entry)),
            entries,
        )
    # A renamed table is found twice.
    found = _joined(near)
    others = {entry_of(table.catalog, table.table): table for table in found.tables}
    homes = owned_locations(own.metadata)
    pointers = {
        entry.pointer
        for look in looks
        for entry in look.unseen
        if any(is_under(entry.pointer, home) for home in homes) and own.is_kept_apart_from(look.catalog, entry.table)
    }
    tables = tuple(table for entry, table in others.items() if entry != own_entry)
    # A missing entry of the table itself needs only the history of its head.
    uuid, copy = own.metadata.uuid, identity_of(context.catalogs.own, own).copy
    same = [claims for claims, _ in found.missing if uuid and claims.copy == copy]
    pointers.update(claims.seen.metadata_file for claims in same if claims.is_looked_into)
    missing = tuple(entry for entry in found.missing if entry[0] not in same)
    return replace(found, tables=tables, missing=missing, pointers=tuple(sorted(pointers)))


def _near_one(
    context: OperationContext,
    own: LoadedTable,
    way: LimitedLooks | str | None,
    claims: TableClaims,
    folders: Sequence[str],
    failed: UnseenEntry | None,
) -> NearTables:
    """Load the table of an entry.

    ``way``: the looks at its catalog, or the result of :func:`opened` if that is no catalog.  ``failed``: the failed
    look of this run, which is not repeated for each pass, because it may take long.
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
        return lost(f"catalog {claims.catalog} cannot be opened", is_gone=True)
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
    if found.missing:
        near.append(NearTables(missing=((claims, found.missing),)))
    for table, unread in looked:
        if unread is not None:
            near.append(lost(str(unread), table.table.name))
        if any(map(table.overlap, folders)):
            apart = is_kept_apart(table.table.name)  # files that it references are kept, but it owns no folder here
            near.append(NearTables((replace(table, folders={}, is_kept_apart=True) if apart else table,)))
    return _joined(near)


def _counts(context: OperationContext, own: LoadedTable, lost: TableClaims) -> bool:
    """Whether files at the location of a lost entry that was never read are kept.

    They are not if the operator's rules separate it, or if it contains ``own`` and a person has excluded the entry.
    """
    if own.is_kept_apart_from(lost.catalog, lost.table):
        return False
    if not may_be_under(own.metadata.location, lost.location):
        return True
    recorded = context.state.claims.of_entry(lost.entry)
    return recorded is None or not recorded.is_excluded


def _joined(near: Sequence[NearTables]) -> NearTables:
    return NearTables(
        tuple(chain.from_iterable(part.tables for part in near)),
        tuple(chain.from_iterable(part.unreadable for part in near)),
        tuple(chain.from_iterable(part.given_up for part in near)),
        tuple(chain.from_iterable(part.missing for part in near)),
        tuple(chain.from_iterable(part.kept_apart for part in near)),
    )


def _looked_into(
    context: OperationContext, table: TableFolders, recorded: TableClaims
) -> tuple[TableFolders, MaintenanceError | None]:
    """A table with all folders in which it has files now; and the error if its manifests cannot be read."""
    if table.table.name == recorded.table and is_seen(recorded, table.table):
        return table, None
    try:
        return replace(table, files_in=table.files_in | look_into(context, table.catalog, table.table)), None
    except MaintenanceError as error:
        return table, error


def opened(context: OperationContext, claims: TableClaims) -> Catalog | str | None:
    """The catalog of an entry; ``None``: it is no longer served; a string: why it cannot be opened."""
    try:
        return context.catalogs.open(claims.catalog)
    except MaintenanceError as error:
        return f"catalog {claims.catalog} cannot be opened: {error}"


def _loaded_by_claims(
    context: OperationContext, own: LoadedTable, catalog: Catalog, claims: TableClaims
) -> CatalogTables:
    """The table of an entry, under its recorded name or a new name.

    The claims of a missing table count until it is proven to be gone; then they are forgotten
    (rule: gone-is-proven-twice).

    Raises:
        StorageError: the catalog cannot be listed, or the state store failed.
    """
    found = load_all(catalog, [claims.table], context.state, {claims.table: claims})
    if found.unreadable or any(_uuid_of(table) == claims.uuid for table in found.tables):
        return found
    is_missing = not found.tables
    if is_missing and claims.missing_again(context.clock()) == claims:
        return CatalogTables((), (), missing=_why_missing(claims))
    recorded, listed = recorded_claims(context.state, catalog), listed_anew(context, catalog)
    if is_missing and claims.table in listed:
        context.state.claims.record(replace(claims, missing_ms=-1), replaces=claims)
        return CatalogTables((), ((claims.table, DENIED),))
    renamed = load_all(catalog, [name for name in listed if name not in recorded], context.state, recorded)
    missing = ""
    if is_missing and not renamed.unreadable and all(_uuid_of(table) != claims.uuid for table in renamed.tables):
        now = claims.missing_again(context.clock())
        if now is None:
            context.state.claims.forget(claims.entry)
        else:
            context.state.claims.record(now, replaces=claims)
            missing = _why_missing(now)
    # A table that cannot be loaded may be the renamed table.
    lost = [(name, f"it may be {name}, which cannot be loaded: {why}") for name, why in renamed.unreadable]
    near = [entry for entry in lost if not own.is_kept_apart_from(catalog.id, entry[0])]
    return CatalogTables((*found.tables, *renamed.tables), tuple((near or lost)[:1]), renamed.is_gone, missing)


def _why_missing(claims: TableClaims) -> str:
    since, until = iso_utc(claims.missing_ms), iso_utc(claims.missing_ms + GONE_AFTER_MS)
    return f"its catalog has not listed it since {since}; it counts as dropped if it is still missing after {until}"


def _uuid_of(table: TableFolders) -> str:
    return identity_of(table.catalog, table.table).uuid
