"""The health of every table that a scan has seen, and a collector that writes many records at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

from icekeeper.model import CatalogId, TableName
from icekeeper.state.findings import Verdict
from icekeeper.state.identity import TableIdentity
from icekeeper.state.item_layout import KEPT_MS, catalog_key, json_text, sort_key
from icekeeper.state.items import Item, Records, understood

Record = TypeVar("Record")

# Eight requests to DynamoDB, or one SQLite transaction, which takes no longer than a transaction of a single row.
_AT_ONCE = 200


class Gathered(Generic[Record]):
    """Collects records of several threads and writes many at a time.

    One write for each of ten thousand tables would cost more than the rest of a scan.  Records that are not written yet
    are lost with the process.  So this is only for facts that the next scan finds again, never for records that protect
    a table
    (rule: protection-is-written-at-once).
    """

    def __init__(self, write: Callable[[Sequence[Record]], None]) -> None:
        """The thread that completes a batch calls ``write`` with it."""
        self._write = write
        self._lock = Lock()
        self._waiting: list[Record] = []

    def add(self, record: Record) -> None:
        """Add a record, and write the batch if it is complete; raises what ``write`` raises."""
        with self._lock:
            self._waiting.append(record)
            is_enough = len(self._waiting) >= _AT_ONCE
        if is_enough:
            self.write_rest()

    def write_rest(self) -> None:
        """Write the records that are left; raises what ``write`` raises, and then they are lost."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        if taken:
            self._write(taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeStats:
    """The health of a table when last seen: counters by metric name (``lake_data_files``, …), and warnings."""

    identity: TableIdentity
    observed_ms: int
    snapshot_id: int | None
    counters: Mapping[str, int | float]
    warnings: Mapping[str, str] = field(default_factory=dict)
    """Kind (``delete_debt``, ``manifest_sprawl``, …) → the sentence for people."""
    policy: Mapping[str, object] = field(default_factory=dict)
    """The settings that differ from the defaults: key → ``{"source": …, "value": …}``, as JSON."""
    verdict: Verdict = field(default_factory=Verdict)
    timeline: Mapping[str, Any] = field(default_factory=dict)
    """The newest snapshots and the refs: see :func:`icekeeper.health.layout.timeline`."""
    verified_ms: int = 0
    """When ``verify`` last looked at the table; 0: never."""


class LakeStatsStore(Records):
    """The health of every table that a scan has seen, maintained or not.

    The stats of a catalog are in one partition; a request to DynamoDB reads a megabyte of it.
    """

    def record(self, *stats: LakeStats) -> None:
        """Replace the stats of these tables; on an error, some may be replaced."""
        items = {(item["pk"], item["sk"]): item for item in map(self._item, stats)}
        self.table.put_all(items.values())  # has no key twice

    def _item(self, stats: LakeStats) -> Item:
        pk, sk = _stats_key(stats.identity)
        return {
            "pk": pk,
            "sk": sk,
            "table_name": stats.identity.table.key,
            "uuid": stats.identity.uuid,
            "location": stats.identity.location,
            "observed_ms": stats.observed_ms,
            "snapshot_id": stats.snapshot_id,
            "counters": json_text(stats.counters),
            "warnings": json_text(stats.warnings),
            "policy": json_text(stats.policy),
            "verdict": json_text(asdict(stats.verdict)),
            "timeline": json_text(stats.timeline),
            "verified_ms": stats.verified_ms,
            "expires_s": self.table.expires_s(KEPT_MS, at_least_ms=stats.observed_ms),
        }

    def of_table(self, identity: TableIdentity) -> LakeStats | None:
        item = self.table.get(*_stats_key(identity))
        return None if item is None else _stats(identity, item)

    def of_catalog(self, catalog: CatalogId) -> Iterator[LakeStats]:
        """The stats of all tables of a catalog, ordered by name; uses few requests."""
        for item in self.table.query(catalog_key("lake", catalog)):
            yield _stats_of(catalog, item)

    def of_name(self, catalog: CatalogId, table: TableName) -> tuple[LakeStats, ...]:
        """The stats of all tables that had this name."""
        found = self.table.query(catalog_key("lake", catalog), sort_key("", f"{table.key}\x1f"))
        return tuple(_stats_of(catalog, item) for item in found)

    def forget(self, identity: TableIdentity) -> None:
        self.table.delete(*_stats_key(identity))


def _stats_key(identity: TableIdentity) -> tuple[str, str]:
    # The separator sorts before every character of a name, so that tables are ordered by name.
    sk = sort_key("", f"{identity.table.key}\x1f{identity.uuid}")
    return catalog_key("lake", identity.catalog), sk


def _stats_of(catalog: CatalogId, item: Item) -> LakeStats:
    with understood(item):
        table, location = TableName.recorded(item["table_name"]), item["location"]
    return _stats(TableIdentity(catalog, table, item["uuid"], location), item)


def _stats(identity: TableIdentity, item: Item) -> LakeStats:
    with understood(item):
        return LakeStats(
            identity=identity,
            observed_ms=item["observed_ms"],
            snapshot_id=item.get("snapshot_id"),
            counters=json.loads(item["counters"]),
            warnings=json.loads(item["warnings"]),
            policy=json.loads(item["policy"]),
            verdict=Verdict.parse(item["verdict"]),
            timeline=json.loads(item["timeline"]),
            verified_ms=item["verified_ms"],
        )
