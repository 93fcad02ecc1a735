"""The lasting identity of a table that a catalog has loaded."""

from __future__ import annotations

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.state.identity import TableIdentity
from icekeeper.storage.paths import normalise

__all__ = ["identity_of"]


def identity_of(catalog: Catalog, loaded: LoadedTable) -> TableIdentity:
    """The table's UUID and normalised location, with the names by which this catalog knows it."""
    metadata = loaded.metadata
    return TableIdentity(
        catalog.name, catalog.warehouse, loaded.name, metadata.uuid or "", normalise(metadata.location)
    )
