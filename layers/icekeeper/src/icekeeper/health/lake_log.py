"""Keeps the lake stats of a catalog up to date, and logs once when a warning comes or goes.

The stats of a catalog are read once, in bulk; those of a table are written only when they changed.  When the state
store fails, stats and log lines of this scan are lost, but the scan goes on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from icekeeper.errors import StorageError
from icekeeper.health.examine import AGE_COUNTER
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Gathered, LakeStats, LakeStatsStore

log = logging.getLogger(__name__)

# An item of DynamoDB has at most 400 KB; one that does not fit would cost all others of its batch.
_MOST_BYTES = 300_000

_Entry: TypeAlias = tuple[str, str]
"""Name and UUID of a table, which are unique within a catalog."""


class _Known(NamedTuple):
    """The digest of a table's stats and its kinds of warnings, which need less memory than the stats."""

    digest: bytes
    kinds: frozenset[str]
    identity: TableIdentity


class LakeLog:
    """The lake stats of one catalog during one scan; :meth:`observe` may be called from several threads."""

    def __init__(self, store: LakeStatsStore, catalog: str, warehouse: str) -> None:
        """Read the recorded stats; if that fails, the reason is logged and this scan writes nothing."""
        self._store: LakeStatsStore | None = store
        self._lock = threading.Lock()
        self._known: dict[_Entry, _Known] = {}
        self._news = Gathered(self._record)
        try:
            for stats in store.of_catalog(catalog, warehouse):
                self._known[_entry(stats.identity)] = _Known(_digest(stats), frozenset(stats.warnings), stats.identity)
        except (StorageError, KeyError, TypeError, ValueError) as error:
            self._give_up("read", error)

    @property
    def tables(self) -> list[TableIdentity]:
        """The tables of which stats were recorded before this scan."""
        return [known.identity for known in self._known.values()]

    def observe(self, stats: LakeStats) -> None:
        """Take the stats of a table; if they changed, they are recorded, sooner or later, until :meth:`finish`."""
        known = self._known.get(_entry(stats.identity))
        if self._store is None or (known is not None and known.digest == _digest(stats)):
            return
        size = len(json.dumps([stats.warnings, stats.policy, stats.identity.location]))
        if size > _MOST_BYTES:
            log.warning("%s: its lake stats have %d bytes, so they are not kept", stats.identity.table, size)
            return
        self._news.add(stats)

    def finish(self) -> None:
        """Record what is left; nothing is raised."""
        self._news.write_rest()

    def _record(self, news: Sequence[LakeStats]) -> None:
        """Record the stats of some tables, and log new and gone warnings."""
        if self._store is None:
            return
        try:
            self._store.record(*news)
        except StorageError as error:
            self._give_up("written", error)
            return
        for stats in news:
            known = self._known.get(_entry(stats.identity))
            _tell(stats.identity, stats.warnings, frozenset() if known is None else known.kinds)

    def forget_all_but(self, tables: Collection[TableName]) -> None:
        """Remove the stats of all tables but these, which are all that the catalog lists."""
        if self._store is None:
            return
        listed = frozenset(tables)
        try:
            for entry, known in [*self._known.items()]:
                if known.identity.table not in listed:
                    self._store.forget(known.identity)
                    del self._known[entry]
        except StorageError as error:
            self._give_up("written", error)

    def _give_up(self, what: str, error: Exception) -> None:
        with self._lock:
            if self._store is not None:
                log.warning("lake stats cannot be %s, so this scan leaves them: %s", what, error)
            self._store = None


class Twins:
    """The tables of all catalogs by UUID, to find one that is seen at two locations; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uuid: dict[str, dict[str, str]] = {}

    def know(self, tables: Iterable[TableIdentity]) -> None:
        """Take tables that an earlier scan saw."""
        for identity in tables:
            self.of(identity)

    def of(self, identity: TableIdentity) -> tuple[str, ...]:
        """The other tables that have the UUID of this one at another location, with it; this one is known then."""
        if not identity.uuid or not identity.location:
            return ()
        with self._lock:
            places = self._by_uuid.setdefault(identity.uuid, {})
            places[identity.location] = f"{identity.table} of catalog {identity.catalog} at {identity.location}"
            return tuple(text for location, text in sorted(places.items()) if location != identity.location)


def _entry(identity: TableIdentity) -> _Entry:
    return str(identity.table), identity.uuid


def _digest(stats: LakeStats) -> bytes:
    """A digest that is equal for equal stats, whatever order of keys and type of numbers a store returns."""
    counters = sorted((name, float(value)) for name, value in stats.counters.items() if name != AGE_COUNTER)
    parts = (stats.snapshot_id, counters, sorted(stats.warnings.items()), sorted(stats.policy.items()))
    return hashlib.sha256(repr(parts).encode()).digest()


def _tell(identity: TableIdentity, warnings: Mapping[str, str], before: frozenset[str]) -> None:
    for kind in sorted(warnings.keys() - before):
        log.warning("%s: %s", identity.table, warnings[kind], extra=_fields(identity, kind))
    for kind in sorted(before - warnings.keys()):
        log.info("%s: the warning %s is gone", identity.table, kind, extra=_fields(identity, kind))


def _fields(identity: TableIdentity, kind: str) -> dict[str, str]:
    return {"event": "lake_warning", "catalog": identity.catalog, "table": str(identity.table), "warning": kind}
