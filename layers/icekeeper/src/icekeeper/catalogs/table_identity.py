"""Which table a catalog has loaded, for good, whatever it calls it."""

from __future__ import annotations

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.state.identity import TableIdentity
from icekeeper.storage.paths import normalise

__all__ = ["identity_of"]


def identity_of(catalog: Catalog, loaded: LoadedTable) -> TableIdentity:
    """The table by its UUID and location, with the names that it goes by here."""
    metadata = loaded.metadata
    return TableIdentity(
        catalog.name, catalog.warehouse, loaded.name, metadata.uuid or "", normalise(metadata.location)
    )
