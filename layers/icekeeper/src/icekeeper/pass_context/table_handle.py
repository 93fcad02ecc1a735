"""A table and its state, for commands outside a pass: pins, staged loads, settings, claims."""

from __future__ import annotations

import getpass
import time
import uuid
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
from icekeeper.state.store import PassRecord, StateStore
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.storage import Storage, StoreClock, store_now_ms

_RETRIES = Policy().max_commit_retries


def user_name() -> str:
    """The name of the user of this process, for the journal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody"


@dataclass(frozen=True, slots=True)
class TableHandle:
    """Catalog, state store and clocks for a table."""

    catalog: Catalog
    table: TableName
    state: StateStore
    clock: Clock
    sleep: Callable[[float], None] = time.sleep
    store_clock: StoreClock = store_now_ms

    def load(self) -> LoadedTable:
        """The newest state of the table.

        Raises:
            PolicyError: the table does not exist.
            StorageError: it cannot be loaded.
        """
        return self.catalog.load(self.table)

    def memory(self, loaded: LoadedTable) -> TableMemory:
        """The table's records in the state store, by the clock of its store."""
        stores = Stores(self.clock, self.store_clock, may_write=True)
        return TableMemory(self.state, identity_of(self.catalog, loaded), partial(stores.now_ms, loaded))

    def journal(self, loaded: LoadedTable, summary: str) -> None:
        """Record in the table's journal what a person did.

        Raises:
            StorageError: the state store cannot be written.
        """
        now_ms = self.clock()
        self.state.record_pass(
            PassRecord(
                identity=identity_of(self.catalog, loaded),
                run_id=str(uuid.uuid4()),
                started_ms=now_ms,
                finished_ms=now_ms,
                status="succeeded",
                summary=summary,
                engine="none",
            )
        )

    def commit(
        self,
        loaded: LoadedTable,
        memory: TableMemory,
        prepare: Callable[[LoadedTable], PreparedCommit | Nothing],
        renew: Callable[[], None] = lambda: None,
    ) -> Committed | Nothing:
        """Commit changes of refs or properties that write no data files or manifests; ``renew`` is called just before
        each swap, and raises if the table's lease was lost.

        Whatever the table's properties say, the commit deletes no metadata files, because only passes check who else
        needs them; orphan removal deletes them later (rule: delete-below-own-locations).

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
            renew=renew,
            sleep=self.sleep,
        )
        return commit_with_retries(self.catalog, loaded, prepared, terms)
