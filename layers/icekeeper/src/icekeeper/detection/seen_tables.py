"""What a scan tells the passes of its run about where the tables of a catalog have files (rule 220).

The scan loads every table anyway, so it records what the documents say, and which tables have moved since anybody
looked into them.  Their manifests are read before the run's first deletion; no other table is loaded for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from threading import Lock

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.claims import first_look, is_seen, recorded_claims
from icekeeper.deletion.neighbours import has_its_own_bucket
from icekeeper.deletion.served_tables import fits
from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.state.claims import CatalogLook, TableClaims, UnseenEntry
from icekeeper.state.gathered import Gathered
from icekeeper.state.store import StateStore

__all__ = ["SeenTables"]

log = logging.getLogger(__name__)


class SeenTables:
    """The tables of one catalog during one scan; :meth:`observe` may be called from several threads.

    Nothing is raised: what is not recorded here, a pass finds out before it deletes.
    """

    def __init__(self, state: StateStore, catalog: Catalog) -> None:
        self._state, self._catalog = state, catalog
        self._lock, self._seen = Lock(), set[TableName]()
        self._is_well = True
        self._news = Gathered(state.claims.record_first_looks)
        self._known: Mapping[TableName, TableClaims] | None = None
        """What is recorded, once there is a table that has no bucket of its own."""

    def observe(self, loaded: LoadedTable) -> None:
        """Take note of a table as it is now."""
        if not self._is_well or has_its_own_bucket(loaded.metadata.location):
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

    def finish(self, tables: Collection[TableName] | None, run: str, now_ms: int) -> None:
        """Record what is left; ``tables`` are all that the catalog has, ``None`` where that is not known.

        ``run`` is the run whose passes go on from here; empty: there are none.  ``now_ms``: when the scan began.
        """
        try:
            self._news.write_rest()
            if not (self._is_well and run) or self._known is None or tables is None:
                return
            unseen = tuple(UnseenEntry(table=table) for table in sorted(set(tables) - self._seen, key=str))
            name, warehouse = self._catalog.name, self._catalog.warehouse
            look = CatalogLook(catalog=name, warehouse=warehouse, run=run, looked_ms=now_ms, unseen=unseen)
            if fits(look):
                self._state.claims.record_look(look)
        except StorageError as error:
            self._give_up(error)

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
