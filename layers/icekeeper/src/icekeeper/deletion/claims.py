"""Records in which folders a table has files (its claims), for passes over other tables (``state/claims.py``).

A pass over another table reads them before it deletes in one of these folders.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.neighbours import table_folders
from icekeeper.deletion.new_manifests import newest_marks, read_new_manifests
from icekeeper.errors import MaintenanceError
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.footprint import Footprint
from icekeeper.state.claims import Entry, TableClaims, touches
from icekeeper.state.store import StateStore
from icekeeper.storage.paths import normalise

__all__ = [
    "begin_claims",
    "entry_of",
    "first_look",
    "is_seen",
    "known_data_roots",
    "look_into",
    "record_first_look",
    "recorded_claims",
    "remember_claims",
]

log = logging.getLogger(__name__)

_NOT_RECORDED = "%s: where it has files could not be recorded: %s"


def entry_of(catalog: Catalog, loaded: LoadedTable) -> Entry:
    """The catalog entry through which a table was loaded."""
    return catalog.name, catalog.warehouse, loaded.name.key


def begin_claims(context: OperationContext, loaded: LoadedTable) -> None:
    """Read the table's new manifests at the beginning of a pass, dry runs too, and record where its files lie.

    Never fails: a table whose manifests cannot be read stays one that nobody has looked at.
    """
    try:
        known = _recorded(context.state, context.catalog, loaded)
        marks: tuple[int, int] | None = None
        try:
            if read_new_manifests(context, loaded, known[1]):
                marks = newest_marks(loaded.metadata)
        except MaintenanceError as error:
            log.warning("%s: where all of its files lie is not known: %s", context.table, error)
        _record(context.state, context.catalog, loaded, known, context.footprint.news(), marks)
    except MaintenanceError as error:
        log.warning(_NOT_RECORDED, context.table, error)


def is_seen(claims: TableClaims | None, loaded: LoadedTable) -> bool:
    """Whether the manifests of a table's newest state had been read when the claims of its entry were recorded."""
    if claims is None or claims.uuid != (loaded.metadata.uuid or ""):
        return False
    return (claims.seen_sequence_number, claims.seen_ms) == newest_marks(loaded.metadata)


def look_into(context: OperationContext, catalog: Catalog, loaded: LoadedTable) -> frozenset[str]:
    """Read the manifests that another table got since anybody looked at it, and record where its files lie.

    Returns the normalised folders outside of its location in which it has files.

    Raises:
        MetadataUnreadable: a manifest list or manifest is damaged; one that is gone protects nothing.
        StorageError: a store failed.
    """
    known, seen = _recorded(context.state, catalog, loaded), Footprint()
    is_whole = read_new_manifests(replace(context, catalog=catalog, footprint=seen, planned=None), loaded, known[1])
    marks = newest_marks(loaded.metadata) if is_whole else None
    return _record(context.state, catalog, loaded, known, seen.roots(), marks).folders


def remember_claims(context: OperationContext) -> None:
    """Record the folders in which an operation saw files first; never fails, so that its outcome is told."""
    roots = context.footprint.news()
    if not roots:
        return
    try:
        loaded = context.load()
        known = _recorded(context.state, context.catalog, loaded)
        _record(context.state, context.catalog, loaded, known, roots, None)
    except MaintenanceError as error:
        log.warning(_NOT_RECORDED, context.table, error)


def record_first_look(
    state: StateStore, catalog: Catalog, loaded: LoadedTable, before: Iterable[TableClaims] = ()
) -> None:
    """Record where a table has files by its document, and what is recorded of it under other names (``before``).

    Raises:
        StorageError: the state store failed.
    """
    state.claims.record(_claims(catalog, loaded, (), before))


def first_look(catalog: Catalog, loaded: LoadedTable, recorded: TableClaims | None) -> TableClaims | None:
    """What to record of where a table has files by its document alone; ``None``: the same as is ``recorded`` already.

    Of a table that is known only its own folders are compared: what its snapshots name, the next look records.
    """
    metadata = loaded.metadata
    if recorded is None or recorded.copy != identity_of(catalog, loaded).copy:
        return _claims(catalog, loaded, (), ())
    home = metadata.location
    own = (metadata.data_location, metadata.metadata_directory)
    outside = [normalise(place) for place in own if not place.startswith(f"{home}/") or "/." in place]
    if all(_is_inside(place, recorded.location) or place in recorded.folders for place in outside):
        return None
    return _claims(catalog, loaded, (), (recorded,))


def recorded_claims(state: StateStore, catalog: Catalog) -> Mapping[TableName, TableClaims]:
    """What is recorded of the tables of a catalog.

    Raises:
        StorageError: the state store failed.
    """
    return {one.table: one for one in state.claims.of_catalog(catalog.name, catalog.warehouse)}


def known_data_roots(state: StateStore, catalog: Catalog, loaded: LoadedTable) -> frozenset[str]:
    """Normalised folders inside the table's location in which any pass has found data files of it.

    Raises:
        StorageError: the state store failed.
    """
    _, before = _recorded(state, catalog, loaded)
    return frozenset().union(*(one.data_roots for one in before))


def _record(
    state: StateStore,
    catalog: Catalog,
    loaded: LoadedTable,
    known: tuple[TableClaims | None, Sequence[TableClaims]],
    roots: Iterable[str],
    marks: tuple[int, int] | None,
) -> TableClaims:
    """Record where a table has files by its document, and by the ``roots`` of data files that were seen.

    What is ``known`` of the same table is kept, because a file elsewhere may be older than the history that is left.
    ``marks``: the sequence number and the time (epoch milliseconds) up to which its manifests have been read.
    """
    entry, before = known
    now = _claims(catalog, loaded, roots, before)
    if marks is not None:
        now = replace(now, seen_sequence_number=marks[0], seen_ms=marks[1])
    if now != entry:
        state.claims.record(now, replaces=entry)
    return now


def _recorded(
    state: StateStore, catalog: Catalog, loaded: LoadedTable
) -> tuple[TableClaims | None, Sequence[TableClaims]]:
    """The claims of this catalog entry, and those of the same table under all its names."""
    identity = identity_of(catalog, loaded)
    entry = state.claims.of_entry(entry_of(catalog, loaded))
    if entry is not None and entry.copy == identity.copy and (entry.folders or entry.data_roots):
        return entry, (entry,)
    # A first look at this entry: the table may have had another name, or be known in another catalog.
    return entry, tuple(one for one in state.claims.touching(identity.location) if one.copy == identity.copy)


def _claims(catalog: Catalog, loaded: LoadedTable, roots: Iterable[str], before: Iterable[TableClaims]) -> TableClaims:
    identity, document = identity_of(catalog, loaded), table_folders(catalog, loaded)
    home, known = identity.location, tuple(before)
    inside = {root for root in roots if _is_inside(root, home)}
    outside = {folder for folder in (*roots, *document.folders, *document.files_in) if not _is_inside(folder, home)}
    return TableClaims(
        catalog=catalog.name,
        warehouse=catalog.warehouse,
        table=loaded.name,
        uuid=identity.uuid,
        location=home,
        folders=frozenset(outside).union(*(one.folders for one in known)),
        data_roots=frozenset(inside).union(*(one.data_roots for one in known)),
        seen_sequence_number=max((one.seen_sequence_number for one in known), default=-1),
        seen_ms=max((one.seen_ms for one in known), default=-1),
    )


def _is_inside(folder: str, home: str) -> bool:
    return touches(folder, home) and len(folder) >= len(home)
