"""Lets people see the claims of other tables near a table, forget those of catalogs that are gone, and exclude entries.

While a table with such a claim cannot be loaded, no file in its folders is deleted.  That its catalog is gone for good
only a person can say (rule 89), and so it is with an entry that cannot be read, and never was (rule 221).
"""

from __future__ import annotations

import getpass
import uuid
from collections import deque
from collections.abc import Callable, Sequence

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.claims import entry_of
from icekeeper.deletion.owned_locations import owned_locations
from icekeeper.errors import MaintenanceError, OperationRefused, PolicyError
from icekeeper.metadata.reachability import References
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import TableName
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.state.claims import TableClaims
from icekeeper.state.store import PassRecord, StateStore
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

__all__ = ["OpenCatalog", "claims_near", "exclude_entry", "forget_claims"]

OpenCatalog = Callable[[str, str], Catalog | None]
"""Opens a catalog by name and warehouse; ``None`` if there is none.  Raises MaintenanceError if it does not answer."""


def claims_near(handle: TableHandle) -> Sequence[TableClaims]:
    """The claims of other entries, of any catalog, that touch the table's folders.

    Raises:
        PolicyError: there is no such table.
        StorageError: catalog or state store failed.
    """
    return _near(handle, handle.load())


def forget_claims(
    handle: TableHandle,
    catalog: str,
    table: TableName,
    warehouse: str | None,
    open_other: OpenCatalog,
    *,
    force: bool = False,
) -> TableClaims:
    """Forget the claim of an entry whose catalog is gone, and write who did it into the journal of the handle's table.

    ``force``: also when its catalog is configured, but does not answer or has no table of that name (perhaps renamed).

    Raises:
        PolicyError: no such claim, or several.
        OperationRefused: the table is still there, or may be.
        StorageError: catalog or state store failed.
    """
    loaded = handle.load()
    found = [one for one in _near(handle, loaded) if (one.catalog, one.table) == (catalog, table)]
    if warehouse is not None:
        found = [one for one in found if one.warehouse == warehouse]
    if not found:
        raise PolicyError(f"{table} of catalog {catalog} was not seen to have files at or around {handle.table}")
    if len(found) > 1:
        several = ", ".join(sorted(one.warehouse for one in found))
        raise PolicyError(f"catalogs of the name {catalog} have the warehouses {several}; choose one by --by-warehouse")
    (claims,) = found
    _require_gone(claims, open_other, force=force)
    handle.state.claims.forget(claims.entry)
    _tell(handle, loaded, claims)
    return claims


def exclude_entry(catalog: Catalog, table: TableName, state: StateStore) -> TableClaims:
    """Record that an entry which cannot be read needs no file of another table, until it can be read again.

    Raises:
        PolicyError: there is no such table.
        OperationRefused: it can be read, or was looked into before: what it needs is known.
        StorageError: the state store failed.
    """
    table = _as_listed(catalog, table)
    excluded = TableClaims(catalog=catalog.name, warehouse=catalog.warehouse, table=table, uuid="", location="")
    recorded = state.claims.of_entry(excluded.entry)
    if recorded is not None and recorded.is_looked_into:
        raise OperationRefused(f"{table} was looked into before, so what it needs is known; nothing was changed")
    try:
        loaded = catalog.load(table)
        reader = TableReader(loaded.metadata, Storage(loaded.io_properties).read)
        deque(References().follow(reader, loaded.metadata.snapshots.values()), maxlen=0)
    except PolicyError:
        raise
    except (MaintenanceError, AttributeError, KeyError, TypeError, ValueError):
        state.claims.record(excluded)
        return excluded
    raise OperationRefused(f"{table} can be read, so every pass knows what it needs; nothing was changed")


def _as_listed(catalog: Catalog, table: TableName) -> TableName:
    """The name of the catalog that has this text: a person cannot write each part of every name."""
    if table.is_plain:
        return table
    listed = catalog.list_tables()
    return table if table in listed else next((one for one in listed if str(one) == str(table)), table)


def _near(handle: TableHandle, loaded: LoadedTable) -> Sequence[TableClaims]:
    own = entry_of(handle.catalog, loaded)
    folders = map(normalise, owned_locations(loaded.metadata))
    near = {one.entry: one for folder in folders for one in handle.state.claims.touching(folder)}
    return [one for entry, one in sorted(near.items()) if entry != own]


def _require_gone(claims: TableClaims, open_other: OpenCatalog, *, force: bool) -> None:
    name = f"{claims.table} of catalog {claims.catalog}"
    try:
        other = open_other(claims.catalog, claims.warehouse)
        if other is None:
            return
        other.load(claims.table)
    except MaintenanceError as error:
        if force:
            return
        raise OperationRefused(
            f"whether {name} is gone is not known: {error}; every pass asks a catalog that answers, and forgets "
            "what is gone; else take the catalog out of the configuration, or repeat this with --force"
        ) from error
    raise OperationRefused(
        f"{name} is still there, and may need files at this table's location; nothing was forgotten; drop it from its "
        "catalog first"
    )


def _tell(handle: TableHandle, loaded: LoadedTable, claims: TableClaims) -> None:
    now_ms = handle.clock()
    summary = (
        f"claims: {_who()} forgot that {claims.table} of catalog {claims.catalog} ({claims.warehouse}) had files in "
        f"{', '.join(sorted({claims.location, *claims.folders}))}"
    )
    handle.state.record_pass(
        PassRecord(
            identity=identity_of(handle.catalog, loaded),
            run_id=str(uuid.uuid4()),
            started_ms=now_ms,
            finished_ms=now_ms,
            status="succeeded",
            summary=summary,
            engine="none",
        )
    )


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody"
