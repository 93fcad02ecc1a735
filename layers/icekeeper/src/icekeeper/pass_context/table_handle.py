"""A table and what is remembered about it, for commands that work on it outside of a pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.table_identity import identity_of
from icekeeper.clock import Clock
from icekeeper.model import TableName
from icekeeper.pass_context.stores import Stores
from icekeeper.state.store import StateStore
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.storage import Storage
from icekeeper.storage.store_clock import StoreClock, store_now_ms

__all__ = ["TableHandle"]


@dataclass(frozen=True, slots=True)
class TableHandle:
    """Catalog, state store and clocks for one table, by its name."""

    catalog: Catalog
    table: TableName
    state: StateStore
    clock: Clock
    sleep: Callable[[float], None] = time.sleep
    store_clock: StoreClock = store_now_ms

    def load(self) -> LoadedTable:
        """The newest state of the table.

        Raises:
            PolicyError: there is no such table.
            StorageError: it cannot be loaded.
        """
        return self.catalog.load(self.table)

    def memory(self, loaded: LoadedTable) -> TableMemory:
        """Reads and writes what is remembered about the table, by the clock of its store."""
        stores = Stores(self.clock, self.store_clock, may_write=True)
        return TableMemory(self.state, identity_of(self.catalog, loaded), partial(stores.now_ms, loaded))

    def discard(self, loaded: LoadedTable, paths: Iterable[str]) -> None:
        """Remove files that certainly no commit names; what cannot be removed is left to a pass over the table."""
        Storage(loaded.io_properties).delete(paths)
