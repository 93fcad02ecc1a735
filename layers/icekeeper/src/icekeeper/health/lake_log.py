"""Updates the lake stats of a catalog, and logs once when a warning appears or disappears.

The stats of a catalog are read once, in bulk; those of a table are written only if they changed, with a row of its
trend.  If the state store fails, stats and log lines of this scan are lost, but the scan continues.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from icekeeper.errors import StorageError
from icekeeper.health.examine import AGE_COUNTER
from icekeeper.model import CatalogId, TableName
from icekeeper.state.findings import Verdict
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import Gathered, LakeStats, LakeStatsStore
from icekeeper.state.store import StateStore
from icekeeper.state.trends import TrendRow, trend_row
from icekeeper.text import masked_sentence

log = logging.getLogger(__name__)

# A DynamoDB item has at most 400 KB; a larger item would make its whole batch fail.
_MOST_BYTES = 300_000

_LONGEST_REASON = 2000
_AMOUNT = re.compile(r"[0-9.]+( (minute|hour|day)s?)?")

_Entry: TypeAlias = tuple[str, str]
"""Name and UUID of a table, unique within a catalog."""


class _Known(NamedTuple):
    """The digest and the kinds of warnings of a table's recorded stats, which need less memory than the stats."""

    digest: bytes
    kinds: frozenset[str]
    identity: TableIdentity
    observed_ms: int
    snapshot_id: int | None
    manifests: int | None


class LakeLog:
    """The lake stats of one catalog during one scan; :meth:`observe` may be called from several threads."""

    def __init__(self, state: StateStore, catalog: CatalogId, recorded: Iterable[LakeStats] | None = None) -> None:
        """Read the recorded stats, unless these are given as ``recorded``; on an error, log it and write nothing in
        this scan."""
        self._store: LakeStatsStore | None = state.lake_stats
        self._trends = state.trends
        self._catalog = catalog
        self._lock = threading.Lock()
        self._known: dict[_Entry, _Known] = {}
        self._news = Gathered(self._record)
        try:
            for stats in state.lake_stats.of_catalog(catalog) if recorded is None else recorded:
                self._known[_entry(stats.identity)] = _Known(
                    _digest(stats),
                    frozenset(stats.warnings),
                    stats.identity,
                    stats.observed_ms,
                    stats.snapshot_id,
                    None if (count := stats.counters.get("lake_manifests")) is None else int(count),
                )
        except (StorageError, KeyError, TypeError, ValueError) as error:
            self._give_up("read", error)

    @property
    def tables(self) -> list[TableIdentity]:
        """The tables with stats recorded before this scan."""
        return [known.identity for known in self._known.values()]

    def manifests(self, identity: TableIdentity, snapshot_id: int) -> int | None:
        """How many manifests a table had by an earlier scan; ``None``: unknown, or it had another head then."""
        known = self._known.get(_entry(identity))
        return None if known is None or known.snapshot_id != snapshot_id else known.manifests

    def observe(self, stats: LakeStats) -> None:
        """Record the stats of a table if they changed, at the latest in :meth:`finish`."""
        known = self._known.get(_entry(stats.identity))
        if self._store is None:
            return
        if stats.identity.uuid and (unread := self._known.get((str(stats.identity.table), ""))) is not None:
            self._forget(unread.identity)  # it is read again
        if known is not None and known.digest == _digest(stats):
            return
        size = len(json.dumps([stats.warnings, stats.policy, stats.identity.location]))
        if size > _MOST_BYTES:
            log.warning("%s: its lake stats have %d bytes, so they are not stored", stats.identity.table, size)
            return
        self._news.add(stats)

    def unread(self, table: TableName, why: str, now_ms: int) -> None:
        """Record that a table could not be read; the records of earlier scans stay."""
        identity = TableIdentity(self._catalog, table, "")
        verdict = Verdict(left_alone=masked_sentence(why)[:_LONGEST_REASON], is_unread=True)
        self.observe(LakeStats(identity=identity, observed_ms=now_ms, snapshot_id=None, counters={}, verdict=verdict))

    def finish(self) -> None:
        """Record the remaining stats; never raises."""
        self._news.write_rest()

    def _record(self, news: Sequence[LakeStats]) -> None:
        if self._store is None:
            return
        try:
            with self._store.table.together():
                self._store.record(*news)
                self._trends.record(map(self._trend, news))
        except StorageError as error:
            self._give_up("written", error)
            return
        for stats in news:
            identity, known = stats.identity, self._known.get(_entry(stats.identity))
            before = frozenset[str]() if known is None else known.kinds
            for kind in sorted(stats.warnings.keys() - before):
                log.warning("%s: %s", identity.table, stats.warnings[kind], extra=_fields(identity, kind))
            for kind in sorted(before - stats.warnings.keys()):
                log.info("%s: the warning %s is gone", identity.table, kind, extra=_fields(identity, kind))

    def _trend(self, stats: LakeStats) -> tuple[TableIdentity, TrendRow, int | None]:
        known = self._known.get(_entry(stats.identity))
        row = trend_row(stats.observed_ms, stats.counters)
        return stats.identity, row, None if known is None else known.observed_ms

    def forget_all_but(self, tables: Collection[TableName]) -> None:
        """Remove the stats of all tables except these, which are all tables that the catalog lists."""
        listed = frozenset(tables)
        for known in [*self._known.values()]:
            if known.identity.table not in listed:
                self._forget(known.identity)

    def _forget(self, identity: TableIdentity) -> None:
        if self._store is None:
            return
        try:
            self._trends.forget(identity)
            self._store.forget(identity)
            del self._known[_entry(identity)]
        except StorageError as error:
            self._give_up("written", error)

    def _give_up(self, what: str, error: Exception) -> None:
        with self._lock:
            if self._store is not None:
                log.warning("lake stats cannot be %s, so this scan leaves them: %s", what, error)
            self._store = None


class Twins:
    """Finds UUIDs that tables at different locations share, in all catalogs; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uuid: dict[str, dict[str, str]] = {}

    def know(self, tables: Iterable[TableIdentity]) -> None:
        """Add tables that an earlier scan saw."""
        for identity in tables:
            self.of(identity)

    def of(self, identity: TableIdentity) -> tuple[str, ...]:
        """Add a table, and return the tables with the same UUID at other locations, as text."""
        if not identity.uuid or not identity.location:
            return ()
        with self._lock:
            places = self._by_uuid.setdefault(identity.uuid, {})
            places[identity.location] = f"{identity.table} of catalog {identity.catalog} at {identity.location}"
            return tuple(text for location, text in sorted(places.items()) if location != identity.location)


def _entry(identity: TableIdentity) -> _Entry:
    return str(identity.table), identity.uuid


def _digest(stats: LakeStats) -> bytes:
    """Equal for equal stats, in any order of keys and for int or float values."""
    counters = sorted((name, float(value)) for name, value in stats.counters.items() if name != AGE_COUNTER)
    verdict = stats.verdict
    # A longer wait, and the priority that grows with it, are not a change.
    sentences = [_AMOUNT.sub("", sentence) for sentence in (*verdict.reasons, verdict.left_alone)]
    concluded = (sentences, verdict.is_unread, verdict.sweep_due_ms, sorted(stats.timeline.items()))
    settings = sorted(stats.policy.items())
    parts = (stats.snapshot_id, counters, sorted(stats.warnings.items()), settings, concluded, stats.verified_ms)
    return hashlib.sha256(repr(parts).encode()).digest()


def _fields(identity: TableIdentity, kind: str) -> dict[str, str]:
    return {"event": "lake_warning", "catalog": identity.catalog.name, "table": str(identity.table), "warning": kind}
