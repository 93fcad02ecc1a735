"""Where tables have files, recorded by a scan for the passes that follow it (rule: look-at-every-served-table).

The scan loads every table anyway, so it records the locations in the metadata, and which tables have changed since
their manifests were read.  Before the run's first deletion, passes read the manifests of these tables and load no
other.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from threading import Lock

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.neighbours import has_its_own_bucket
from icekeeper.deletion.other_tables import fitting, unseen_entry
from icekeeper.deletion.table_claims import first_look, is_seen, recorded_claims
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.model import TableName
from icekeeper.state.claims import CatalogLook, TableClaims, UnseenEntry
from icekeeper.state.lake_stats import Gathered
from icekeeper.state.store import StateStore

log = logging.getLogger(__name__)


class SeenTables:
    """Records where the tables of one catalog have files; :meth:`observe` may be called from several threads.

    It raises no errors: a pass finds out what is missing here before it deletes.
    """

    def __init__(self, state: StateStore, catalog: Catalog) -> None:
        self._state, self._catalog = state, catalog
        self._lock, self._seen = Lock(), set[TableName]()
        self._failed: dict[TableName, Exception] = {}
        self._is_well = True
        self._news = Gathered(state.claims.record_first_looks)
        self._known: Mapping[TableName, TableClaims] | None = None
        """The existing records; read when the first table without its own bucket is observed."""
        self._are_alone = catalog.id.warehouse.startswith("arn:")
        """All tables are of S3 Tables, where each has its own bucket."""

    def observe(self, loaded: LoadedTable) -> None:
        """Record a loaded table."""
        if has_its_own_bucket(loaded.metadata.location):
            self._are_alone = True
            return
        if not self._is_well:
            return
        try:
            recorded = self._recorded().get(loaded.name)
            if is_seen(recorded, loaded):
                with self._lock:
                    self._seen.add(loaded.name)
            new = first_look(self._catalog, loaded, recorded)
            if new is not None:
                self._news.add(new)
        except StorageError as error:
            self._give_up(error)

    def failed(self, table: TableName, error: Exception) -> None:
        """Record a table with unreadable metadata, so that the passes of the run need not load it again.

        Errors of a store or catalog are not recorded: passes try again.
        """
        if isinstance(error, MetadataUnreadable | AttributeError | KeyError | TypeError | ValueError):
            with self._lock:
                self._failed[table] = error

    def finish(self, tables: Collection[TableName] | None, run: str, now_ms: int) -> None:
        """Write the remaining records; ``tables`` are all tables of the catalog, ``None``: they are not known.

        ``run`` is the run whose passes follow; empty: none.  The scan began at ``now_ms``.
        """
        look = CatalogLook(catalog=self._catalog.id)
        try:
            self._news.write_rest()
            if not self._is_well or (self._are_alone and self._known is None):
                return
            if run and tables is not None:
                unseen = [self._unseen(table) for table in sorted(set(tables) - self._seen, key=str)]
                look = replace(look, run=run, looked_ms=now_ms, unseen=tuple(unseen))
            record = fitting(look)
            if (look.run and record is not None) or look.catalog not in {
                known.catalog for known in self._state.claims.looks()
            }:
                # Without a run, or if the record is too large, passes look at all tables of the catalog.
                self._state.claims.record_look(record or replace(look, run="", unseen=()))
        except StorageError as error:
            self._give_up(error)

    def _unseen(self, table: TableName) -> UnseenEntry:
        error = self._failed.get(table)
        return UnseenEntry(table=table) if error is None else unseen_entry(table, self._recorded().get(table), error)

    def _recorded(self) -> Mapping[TableName, TableClaims]:
        with self._lock:
            if self._known is None:
                self._known = recorded_claims(self._state, self._catalog)
            return self._known

    def _give_up(self, error: StorageError) -> None:
        with self._lock:
            if self._is_well:
                log.warning("the locations of tables cannot be recorded, so passes load the tables: %s", error)
            self._is_well = False
