"""A table and what is remembered about it, for commands that work on it outside of a pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.transaction import Committed, CommitTerms, commit_with_retries
from icekeeper.machine.clock import Clock
from icekeeper.model import Nothing, TableName
from icekeeper.pass_context.stores import Stores
from icekeeper.policy import Policy
from icekeeper.state.store import StateStore
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.storage import Storage
from icekeeper.storage.store_clock import StoreClock, store_now_ms

__all__ = ["TableHandle"]

_RETRIES = Policy().max_commit_retries


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

    def commit(
        self,
        loaded: LoadedTable,
        memory: TableMemory,
        prepare: Callable[[LoadedTable], PreparedCommit | Nothing],
    ) -> Committed | Nothing:
        """Commit changes that name no files of ours, refs or properties.

        It deletes no metadata files, whatever the table's properties say: who else needs them is asked by passes, and
        orphan removal takes those that nobody needs (rule 262).

        Raises:
            MaintenanceError: as :func:`commit_with_retries` does.
        """

        def discard(paths: Sequence[str]) -> None:  # the metadata file of a refused commit; nothing else was written
            Storage(loaded.io_properties).delete(paths)

        logged: set[str] = set()

        def prepared(head: LoadedTable) -> PreparedCommit | Nothing:
            logged.update(str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
            return prepare(head)

        terms = CommitTerms(
            max_retries=_RETRIES,
            discard=discard,
            pinned_metadata=lambda: (*memory.pinned_metadata(), *logged),
            sleep=self.sleep,
        )
        return commit_with_retries(self.catalog, loaded, prepared, terms)
