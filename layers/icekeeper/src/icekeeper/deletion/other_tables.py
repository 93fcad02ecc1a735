"""Loads the tables beside the one that is maintained, of its own catalog and of every other one that is served here.

Orphan removal asks every table of its catalog.  Expiry deletes what its own snapshots referenced, so that only those
matter whose folders touch: the state remembers where each table had files when it was last looked at, and only tables
that nobody has looked at yet, or that touch, are loaded.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.deletion.claims import record_first_look
from icekeeper.deletion.late_guests import look_into_all
from icekeeper.deletion.neighbours import TableFolders, has_its_own_bucket, table_folders
from icekeeper.deletion.stray_metadata import is_gone
from icekeeper.errors import MaintenanceError, OperationRefused, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.request_count import WorkThreads
from icekeeper.state.claims import TableClaims
from icekeeper.state.store import StateStore

__all__ = [
    "CatalogTables",
    "NearTables",
    "load_all",
    "looked_into",
    "near_tables",
    "other_tables",
    "recorded_claims",
    "tables_elsewhere",
]

log = logging.getLogger(__name__)

_PARALLEL_LOADS = 8


@dataclass(frozen=True, slots=True)
class CatalogTables:
    """The tables of a catalog: where each may have files, and those that cannot be loaded, with the reason."""

    tables: tuple[TableFolders, ...]
    unreadable: tuple[tuple[TableName, str], ...]

    @property
    def loaded(self) -> Sequence[LoadedTable]:
        return [one.table for one in self.tables]

    def others_of(self, own: TableName) -> tuple[TableFolders, ...]:
        """Every other table: any of them could have files under our location.

        Raises:
            OperationRefused: one cannot be loaded, so that it could have files anywhere.
        """
        for name, reason in self.unreadable:
            if name != own:
                raise OperationRefused(
                    f"whether {name} shares the location of {own} is not known, because it cannot be loaded: {reason}; "
                    f"nothing was deleted; repair {name} or drop it from the catalog"
                )
        return tuple(one for one in self.tables if one.table.name != own)


@dataclass(frozen=True, slots=True)
class NearTables:
    """Tables that may have files in some folders, and entries that may but cannot be loaded, with the reason."""

    tables: tuple[TableFolders, ...] = ()
    unreadable: tuple[tuple[TableClaims, str], ...] = ()
    are_all_known: bool = True
    """Whether each table of the catalog could be loaded, or had been looked at before."""


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

    def load(name: TableName) -> TableFolders | tuple[TableName, str] | None:
        try:
            loaded = catalog.load(name)
            return table_folders(catalog, loaded, seen_in.get(identity_of(catalog, loaded).uuid, ()))
        except PolicyError:
            return None
        except MaintenanceError as error:
            return name, str(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
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
        tuple(lost for lost in found if isinstance(lost, tuple)),
    )


def other_tables(context: OperationContext) -> tuple[TableFolders, ...]:
    """Every other table of the catalog, loaded now.

    Raises:
        OperationRefused: the tables cannot be listed, or one cannot be loaded.
    """
    catalog, own = context.catalog, context.table
    names = [name for name in _names(context) if name != own]
    return load_all(catalog, names, context.state, recorded_claims(context.state, context.catalog)).others_of(own)


def looked_into(context: OperationContext, others: Iterable[TableFolders]) -> tuple[TableFolders, ...]:
    """Other tables of the catalog, with every folder in which they have files by now.

    Raises:
        OperationRefused: the manifests of one cannot be read, so that it could have files anywhere.
        StorageError: the state store failed.
    """
    looked = look_into_all(context, others, recorded_claims(context.state, context.catalog))
    for one, error in looked:
        if error is not None and not is_gone(error):
            raise OperationRefused(
                f"whether {one.table.name} needs files of {context.table} is not known, because its manifests cannot "
                f"be read: {error}; nothing was deleted; repair {one.table.name} or drop it from the catalog"
            ) from error
        if error is not None:  # nobody can read by it any more
            log.warning(
                "%s: %s is damaged, so some of its files are not known: %s", context.table, one.table.name, error
            )
    return tuple(one for one, _ in looked)


def near_tables(context: OperationContext, own: LoadedTable, folders: Sequence[str]) -> NearTables:
    """Every other table, of any catalog served here, that may have files in the (normalised) folders.

    Raises:
        OperationRefused: the tables of the catalog cannot be listed.
        StorageError: the state store failed.
    """
    recorded = recorded_claims(context.state, context.catalog)
    # Nobody can be near a table in a bucket of its own but those that were seen there.
    names = () if has_its_own_bucket(own.metadata.location) else _names(context)
    others = (name for name in names if name != own.name)
    near = {name for name in others if not _was_looked_into(recorded.get(name)) or _touch(recorded[name], folders)}
    found = load_all(context.catalog, sorted(near, key=str), context.state, recorded)
    looked = look_into_all(context, found.tables, recorded)
    unseen = ((one.table.name, str(error)) for one, error in looked if error is not None)
    found = CatalogTables(tuple(one for one, _ in looked), (*found.unreadable, *unseen))
    elsewhere = tables_elsewhere(context, folders)
    unreadable = [(recorded[name], reason) for name, reason in found.unreadable if name in recorded]
    for name, reason in found.unreadable:
        log.warning("%s: %s cannot be loaded, so its files are not known: %s", own.name, name, reason)
    return NearTables(
        tuple(one for one in (*found.tables, *elsewhere.tables) if any(map(one.overlap, folders))),
        (*unreadable, *elsewhere.unreadable),
        are_all_known=len(unreadable) == len(found.unreadable),
    )


def tables_elsewhere(context: OperationContext, folders: Iterable[str]) -> NearTables:
    """Tables of other catalogs that were seen to have files in the (normalised) folders, or around them.

    Raises:
        StorageError: the state store failed.
    """
    catalog = context.catalog
    claimed: dict[tuple[str, str, str], TableClaims] = {}
    for folder in folders:
        for one in context.state.claims.touching(folder):
            if (one.catalog, one.warehouse) != (catalog.name, catalog.warehouse):
                claimed.setdefault(one.entry, one)
    opened: dict[tuple[str, str], Catalog | None] = {}
    loaded: list[TableFolders] = []
    unreadable: list[tuple[TableClaims, str]] = []
    for entry, one in sorted(claimed.items()):
        if entry[:2] not in opened:
            opened[entry[:2]] = context.other_catalog(one.catalog, one.warehouse)
        other = opened[entry[:2]]
        if other is None:
            unreadable.append((one, f"catalog {one.catalog} cannot be opened from here"))
            continue
        try:
            found = _loaded_by_claims(context, other, one)
        except StorageError as error:
            unreadable.append((one, str(error)))
            continue
        loaded += found.tables
        unreadable += [(one, reason) for _, reason in found.unreadable]
    return NearTables(tuple(loaded), tuple(unreadable))


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
    return CatalogTables((*found.tables, *renamed.tables), lost[:1])


def _uuid_of(one: TableFolders) -> str:
    return identity_of(one.catalog, one.table).uuid


def _names(context: OperationContext) -> Sequence[TableName]:
    try:
        return list(context.catalog.list_tables())
    except MaintenanceError as error:
        raise OperationRefused(
            f"whether another table shares the location of {context.table} is not known, because the tables of catalog "
            f"{context.catalog.name} cannot be listed: {error}; nothing was deleted"
        ) from error


def recorded_claims(state: StateStore, catalog: Catalog) -> Mapping[TableName, TableClaims]:
    """What is recorded of the tables of a catalog.

    Raises:
        StorageError: the state store failed.
    """
    return {one.table: one for one in state.claims.of_catalog(catalog.name, catalog.warehouse)}


def _was_looked_into(claims: TableClaims | None) -> bool:
    """Whether the manifests of a table have ever been read, and not only its document."""
    return claims is not None and (claims.seen_sequence_number, claims.seen_ms) != (-1, -1)


def _touch(claims: TableClaims, folders: Iterable[str]) -> bool:
    return any(claims.touch(folder) for folder in folders)
