"""What a pass records of where its table has files, for the tables whose files those are (``state/claims.py``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.deletion.neighbours import claims_of
from icekeeper.errors import MaintenanceError
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.claims import Entry, TableClaims, touches
from icekeeper.state.store import StateStore

__all__ = ["entry_of", "known_data_roots", "record_claims", "record_first_look", "remember_claims"]

log = logging.getLogger(__name__)


def entry_of(catalog: Catalog, loaded: LoadedTable) -> Entry:
    """The catalog's entry through which a table was loaded."""
    return catalog.name, catalog.warehouse, str(loaded.name)


def remember_claims(context: OperationContext, loaded: LoadedTable | None = None) -> None:
    """Told at the beginning of a pass and after each operation, of dry runs too.

    Never fails, because what was done must be told: a table that could not be recorded is one that nobody looked at.
    """
    try:
        roots = context.footprint.news()
        if roots or loaded is not None:
            record_claims(context.state, context.catalog, loaded or context.load(), roots)
    except MaintenanceError as error:
        log.warning("%s: where it has files could not be recorded: %s", context.table, error)


def record_claims(state: StateStore, catalog: Catalog, loaded: LoadedTable, roots: Iterable[str] = ()) -> TableClaims:
    """Record where a table has files by its document, and by the ``roots`` of data files that were seen.

    What was recorded of the same table before is kept: history expires, files that are elsewhere may be older.

    Raises:
        StorageError: the state store failed.
    """
    entry, before = _recorded(state, catalog, loaded)
    now = _claims(catalog, loaded, roots, before)
    if now != entry:
        state.claims.record(now)
    return now


def record_first_look(
    state: StateStore, catalog: Catalog, loaded: LoadedTable, before: Iterable[TableClaims] = ()
) -> None:
    """Record where a table has files by its document, and what is known ``before`` of it under other names.

    Raises:
        StorageError: the state store failed.
    """
    state.claims.record(_claims(catalog, loaded, (), before))


def known_data_roots(state: StateStore, catalog: Catalog, loaded: LoadedTable) -> frozenset[str]:
    """Normalised folders inside the table's location under which its data files have ever been found.

    Raises:
        StorageError: the state store failed.
    """
    _, before = _recorded(state, catalog, loaded)
    return frozenset().union(*(one.data_roots for one in before))


def _recorded(
    state: StateStore, catalog: Catalog, loaded: LoadedTable
) -> tuple[TableClaims | None, Sequence[TableClaims]]:
    """What is recorded of the entry, and of the same table under all its names."""
    identity = identity_of(catalog, loaded)
    entry = state.claims.of_entry(entry_of(catalog, loaded))

    def is_ours(one: TableClaims) -> bool:
        return one.uuid == identity.uuid and one.location == identity.location

    if entry is not None and is_ours(entry) and (entry.folders or entry.data_roots):
        return entry, (entry,)
    # A first look at this entry: the table may have had another name, or be known in another catalog.
    return entry, tuple(one for one in state.claims.touching(identity.location) if is_ours(one))


def _claims(catalog: Catalog, loaded: LoadedTable, roots: Iterable[str], before: Iterable[TableClaims]) -> TableClaims:
    identity, document = identity_of(catalog, loaded), claims_of(catalog, loaded)
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
    )


def _is_inside(folder: str, home: str) -> bool:
    return touches(folder, home) and len(folder) >= len(home)
