"""What a scan tells the passes of its run about where the tables of a catalog have files (rule 220).

The scan loads every table anyway, so it records what the documents say, and which tables have moved since anybody
looked into them.  Their manifests are read before the run's first deletion; no other table is loaded for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from threading import Lock

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.neighbours import has_its_own_bucket
from icekeeper.deletion.other_tables import UNKNOWN_WAREHOUSE, fitting, unseen_entry
from icekeeper.deletion.table_claims import first_look, is_seen, recorded_claims
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.model import TableName
from icekeeper.state.claims import CatalogLook, TableClaims, UnseenEntry
from icekeeper.state.gathered import Gathered
from icekeeper.state.store import StateStore

__all__ = ["SeenTables", "note_unopened"]

log = logging.getLogger(__name__)


def note_unopened(state: StateStore, failed: Mapping[str, str], run: str, now_ms: int) -> None:
    """Let the passes of a run know of the catalogs (name → reason) that were not listed, and that nobody knows.

    Of a catalog that is known they find out themselves whether it answers by now.

    Raises:
        StorageError: the state store failed.
    """
    known = {look.catalog.lower() for look in state.claims.looks() if look.warehouse != UNKNOWN_WAREHOUSE}
    for name, reason in failed.items():
        if name.lower() not in known and not name.startswith("arn:"):
            look = CatalogLook(catalog=name, warehouse=UNKNOWN_WAREHOUSE, run=run, looked_ms=now_ms, failure=reason)
            state.claims.record_look(look)


class SeenTables:
    """The tables of one catalog during one scan; :meth:`observe` may be called from several threads.

    Nothing is raised: what is not recorded here, a pass finds out before it deletes.
    """

    def __init__(self, state: StateStore, catalog: Catalog) -> None:
        self._state, self._catalog = state, catalog
        self._lock, self._seen = Lock(), set[TableName]()
        self._failed: dict[TableName, Exception] = {}
        self._is_well = True
        self._news = Gathered(state.claims.record_first_looks)
        self._known: Mapping[TableName, TableClaims] | None = None
        """What is recorded, once there is a table that has no bucket of its own."""
        self._are_alone = catalog.warehouse.startswith("arn:")
        """Whether no table was met but those of S3 Tables, of which each has a bucket of its own."""

    def observe(self, loaded: LoadedTable) -> None:
        """Take note of a table as it is now."""
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
        """Take note of a table whose metadata cannot be read: the passes of the run need not find that out again.

        What a store or catalog does not answer now, they ask again.
        """
        if isinstance(error, MetadataUnreadable | AttributeError | KeyError | TypeError | ValueError):
            with self._lock:
                self._failed[table] = error

    def finish(self, tables: Collection[TableName] | None, run: str, now_ms: int) -> None:
        """Record what is left; ``tables`` are all that the catalog has, ``None`` where that is not known.

        ``run`` is the run whose passes go on from here; empty: there are none.  ``now_ms``: when the scan began.
        """
        name, warehouse = self._catalog.name, self._catalog.warehouse
        look = CatalogLook(catalog=name, warehouse=warehouse)
        try:
            self._news.write_rest()
            if not self._is_well or (self._are_alone and self._known is None):
                return
            if run and tables is not None:
                unseen = tuple(self._unseen(sorted(set(tables) - self._seen, key=str)))
                look = replace(look, run=run, looked_ms=now_ms, unseen=unseen)
            told = fitting(look)
            if (look.run and told is not None) or look.key not in {known.key for known in self._state.claims.looks()}:
                # Without a run, or where there is too much to tell, passes look at all of its tables.
                self._state.claims.record_look(told or replace(look, run="", unseen=()))
        except StorageError as error:
            self._give_up(error)

    def _unseen(self, tables: Iterable[TableName]) -> Iterator[UnseenEntry]:
        for table in tables:
            error = self._failed.get(table)
            yield (
                UnseenEntry(table=table) if error is None else unseen_entry(table, self._recorded().get(table), error)
            )

    def _recorded(self) -> Mapping[TableName, TableClaims]:
        with self._lock:
            if self._known is None:
                self._known = recorded_claims(self._state, self._catalog)
            return self._known

    def _give_up(self, error: StorageError) -> None:
        with self._lock:
            if self._is_well:
                log.warning("where tables have files cannot be recorded, so passes look for themselves: %s", error)
            self._is_well = False
