"""Which table a catalog has loaded, for good, whatever it calls it."""

from __future__ import annotations

import os

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.state.identity import TableIdentity
from icekeeper.storage.paths import is_local, normalise, split_path

__all__ = ["identity_of"]


def identity_of(catalog: Catalog, loaded: LoadedTable) -> TableIdentity:
    """The table by its UUID and location, with the names that it goes by here."""
    metadata = loaded.metadata
    return TableIdentity(catalog.name, catalog.warehouse, loaded.name, metadata.uuid or "", _place(metadata.location))


def _place(location: str) -> str:
    """One text for all spellings of a location; symbolic links count for what they lead to."""
    return normalise(os.path.realpath(split_path(location).key) if is_local(location) else location)
