"""The records that Icekeeper keeps between passes, and the state store.

All records are items (:mod:`icekeeper.state.item_layout`) of a SQLite file for one machine, or of a DynamoDB table for
a fleet.  One contract suite tests both.  Every method of a store may be called from several threads and processes at
once, and raises StorageError when the store cannot be read or written.  Times are epoch milliseconds.

The pins and staged loads of a table are in one partition, by its UUID, together with what the last pass saw: detection
reads them with one query.  Records of one copy of a table and paths have partitions of their own: there may be very
many, and in a DynamoDB table with a local secondary index a partition holds at most 10 GB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import CatalogId, TableName
from icekeeper.state.claims import ClaimStore, CutOffStore
from icekeeper.state.findings import (
    FileFinding,
    FindingStore,
    LayoutStore,
    RefusedExpiry,
    RefusedExpiryStore,
    ScanStore,
    Verified,
    findings_of,
    findings_prefix,
    refused_expiry,
    refused_expiry_key,
    verified_key,
    verified_of,
)
from icekeeper.state.identity import TableIdentity
from icekeeper.state.item_layout import KEPT_MS, copy_key, digest, json_text, now_prefix, sort_key, table_key
from icekeeper.state.items import REMOVED, Item, ItemTable, understood
from icekeeper.state.lake_stats import LakeStatsStore
from icekeeper.state.leases import LeaseStore
from icekeeper.state.requests import RequestStore
from icekeeper.state.staging import PendingDeletionStore, StagedLoad, StagingStore, loads_of
from icekeeper.state.sweeps import SweepKind, SweepRecord, SweepStore, sweep_prefix, sweeps_of
from icekeeper.state.totals import TotalsStore
from icekeeper.state.trends import TrendStore


def hour_of(time_ms: int) -> str:
    """The hour of a time in UTC: ``2026-11-22T15``."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H")


UNTIL_REMOVED_MS = 253_402_300_799_000
"""The expiry of a pin that only a person removes: the last second of the year 9999."""
OVERLAP_MS = 24 * HOUR_MS
"""Concurrent passes may report in another order than they ended, within this time.  A record that is later by more was
written with a clock that was ahead."""


ONLY_WAITS = "pass.deletions_wait"
"""The metric of a pass whose only operations that did not succeed are deletions that wait for another table, which
cannot be read: how many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """One pass in the journal, with ``status`` and ``summary`` as the pass reported them."""

    identity: TableIdentity
    run_id: str
    started_ms: int
    finished_ms: int
    status: str
    summary: str
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    engine: str

    @property
    def only_waits(self) -> bool:
        """Whether all that the pass left undone are deletions that wait for another table."""
        return ONLY_WAITS in self.metrics


class PinKind(StrEnum):
    """Why a pin exists: a reader requested it, a rewrite runs, or a catalog dropped a branch or tag together with its
    snapshot."""

    READER = "reader"
    JOB = "job"
    LOST_REF = "lost-ref"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Keeps a snapshot, all newer ones, and a metadata file until ``expires_ms``; ``name`` is unique per table."""

    identity: TableIdentity
    name: str
    snapshot_id: int
    metadata_location: str
    expires_ms: int
    kind: PinKind = PinKind.READER
    tag: str | None = None
    """The Iceberg tag that was written for it, for engines that do not read Icekeeper's pins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSeen:
    """What the last pass under one digest of settings and operations saw of a table."""

    snapshot_id: int | None
    """The head before the pass."""
    looked_ms: int
    """When files were looked at; a pass that only sweeps, because little was added, keeps the earlier pass's time."""
    finished_ms: int
    is_done: bool
    """Whether nothing failed and no work was left to a later pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTable:
    """What the last passes saw of a table, so that passes with one digest do not look again because of another."""

    passes: Mapping[str, LastSeen]
    """The newest pass of each digest of settings and operations, of at most eight digests."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Operation that failed when it last ran → in how many passes in a row."""

    @property
    def finished_ms(self) -> int:
        """When the last pass ended."""
        return max(seen.finished_ms for seen in self.passes.values())

    def under(self, digest: str) -> LastSeen | None:
        """What the last pass of this digest saw."""
        return self.passes.get(digest)


@dataclass(frozen=True, slots=True)
class Glance:
    """All state of one table that detection needs, read in one request."""

    pins: tuple[Pin, ...]
    seen: SeenTable | None
    loads: tuple[StagedLoad, ...]
    sweeps: Mapping[SweepKind, SweepRecord] = field(default_factory=dict)
    findings: Mapping[str, FileFinding] = field(default_factory=dict)
    """By path."""
    refused_expiry: RefusedExpiry | None = None
    verified: Verified | None = None
    """``None``: ``verify`` has not looked at the table."""


_PINS_KEPT_MS = 7 * 24 * HOUR_MS
# An item has at most 400 KB, and a character up to four bytes: a pass with a longer summary could not be recorded.
_LONGEST_SUMMARY = 50_000
_LONGEST_OF_HOUR = 2_000  # of the fleet's journal
_PINS = "now#pin#"
# Two or three digests are usual; each call of a person with other settings adds a digest.
_MOST_DIGESTS = 8


class StateStore:
    """All records: the journal of passes, pins, what the last pass saw, and the stores above."""

    def __init__(self, table: ItemTable) -> None:
        self.table = table
        self.staging = StagingStore(table)
        self.pending_deletions = PendingDeletionStore(table)
        self.leases = LeaseStore(table)
        self.requests = RequestStore(table)
        self.lake_stats = LakeStatsStore(table)
        self.scans = ScanStore(table)
        self.layouts = LayoutStore(table)
        self.trends = TrendStore(table)
        self.sweeps = SweepStore(table)
        self.claims = ClaimStore(table)
        self.findings = FindingStore(table)
        self.refused_expiries = RefusedExpiryStore(table)
        self.cut_offs = CutOffStore(table)
        self.totals = TotalsStore(table)

    def kept_open(self) -> AbstractContextManager[None]:
        """Inside the block, calls of this thread open the store only once."""
        return self.table.kept_open()

    def glance(self, identity: TableIdentity, *, now_ms: int) -> Glance:
        """Read the state of a table for detection, with the pins in force at ``now_ms``."""
        items = list(self.table.query(table_key(identity), "now#"))
        if not items:  # as for each table at the first scan
            return Glance((), None, ())
        seen, refused, verified, sweeps, findings = (
            now_prefix("seen", identity),
            refused_expiry_key(identity),
            verified_key(identity),
            sweep_prefix(identity),
            findings_prefix(identity),
        )
        return Glance(
            _pins(identity, items, now_ms),
            next((_seen_table(item) for item in items if item["sk"] == seen), None),
            loads_of(identity, items),
            sweeps_of(item for item in items if item["sk"].startswith(sweeps)),
            findings_of(item for item in items if item["sk"].startswith(findings)),
            next((refused_expiry(item) for item in items if item["sk"] == refused), None),
            next((verified_of(item) for item in items if item["sk"] == verified), None),
        )

    def require_writable(self) -> None:
        """Raise StorageError if nothing can be recorded; called before a table is changed."""
        self.table.require_writable()

    def record_pass(self, record: PassRecord) -> None:
        """Add a pass to the journals of its table and of its hour, replacing a record of the same run and table."""
        item: Item = {
            "pk": copy_key(record.identity),
            "sk": sort_key("pass#", record.run_id),
            "catalog": record.identity.catalog.name,
            "table_name": str(record.identity.table),
            "run_id": record.run_id,
            "started_ms": record.started_ms,
            "finished_ms": record.finished_ms,
            "status": record.status,
            "summary": record.summary[:_LONGEST_SUMMARY],
            "metrics": json_text(record.metrics),
            "engine": record.engine,
            "expires_s": self.table.expires_s(KEPT_MS, at_least_ms=record.finished_ms),
        }
        of_hour = {
            "pk": f"passes#{hour_of(record.finished_ms)}",
            "sk": sort_key(f"{digest(item['pk'])}#", record.run_id),
            "warehouse": record.identity.catalog.warehouse,
            "table_name": record.identity.table.key,
            "uuid": record.identity.uuid,
            "location": record.identity.location,
            "finished_ms": None,  # or the index of a table's passes would cost a second write
            "ended_ms": record.finished_ms,
            "summary": record.summary[:_LONGEST_OF_HOUR],
        }
        self.table.put_all([item, {**item, **of_hour}])

    def passes(self, since_ms: int, *, now_ms: int) -> tuple[PassRecord, ...]:
        """The passes over all tables that finished from ``since_ms`` on, newest first; a query per hour."""
        found: dict[str, PassRecord] = {}
        for hour in range(since_ms // HOUR_MS, now_ms // HOUR_MS + 2):  # another machine's clock may be ahead
            for item in self.table.query(f"passes#{hour_of(hour * HOUR_MS)}"):
                if item["ended_ms"] >= since_ms:
                    found[item["sk"]] = _pass_of_hour(item)  # a repeated record of a pass may have a later hour
        return tuple(sorted(found.values(), key=lambda seen: seen.finished_ms, reverse=True))

    def history(self, identity: TableIdentity, *, limit: int = 100) -> tuple[PassRecord, ...]:
        """The newest passes over a table, newest first."""
        if limit < 1:
            return ()
        return tuple(_pass(identity, item) for item in self.table.newest(copy_key(identity), limit))

    def add_pin(self, pin: Pin) -> None:
        """Add a pin, or replace the pin of the same name."""
        self.table.put(
            {
                "pk": table_key(pin.identity),
                "sk": sort_key(_PINS, pin.name),
                "name": pin.name,
                "snapshot_id": pin.snapshot_id,
                "metadata_location": pin.metadata_location,
                "until_ms": pin.expires_ms,
                "kind": pin.kind.value,
                "tag": pin.tag,
                "expires_s": self.table.expires_s(_PINS_KEPT_MS, at_least_ms=pin.expires_ms),
            }
        )

    def pins(self, identity: TableIdentity, *, now_ms: int) -> tuple[Pin, ...]:
        """The pins in force at ``now_ms``, by name."""
        return _pins(identity, self.table.query(table_key(identity), _PINS), now_ms)

    def forget_expired_pins(self, identity: TableIdentity, *, now_ms: int) -> None:
        """Remove pins that expired a week ago, such as those of killed jobs, if the store has no TTL to do so."""
        key = table_key(identity)
        if self.table.is_local:
            with self.table.together():
                items, expired_ms = self.table.query(key, _PINS), now_ms - _PINS_KEPT_MS
                self.table.delete_all(key, [item["sk"] for item in items if item["until_ms"] <= expired_ms])

    def remove_pin(self, identity: TableIdentity, name: str) -> bool:
        """Remove a pin; false if there is no pin of that name."""
        return self.table.change(
            table_key(identity), sort_key(_PINS, name), lambda found: None if found is None else REMOVED
        )

    def remember(
        self, identity: TableIdentity, digest: str, seen: LastSeen, *, started_ms: int, failed: Mapping[str, bool]
    ) -> Mapping[str, int]:
        """Record what a pass saw, unless a pass of the same digest finished later by at most ``OVERLAP_MS``.

        ``failed``: the operations of the pass, and whether each failed.  Returns, for each operation that
        failed in this pass, in how many passes in a row it has failed; recording a pass again counts it once.
        """
        failures: dict[str, int] = {}

        def decide(found: Item | None) -> Item | None:
            before = None if found is None else _seen_table(found)
            passes = {} if before is None else dict(before.passes)
            counts = {} if before is None else dict(before.failures)
            last = passes.get(digest)
            is_repeated = last is not None and started_ms < last.finished_ms <= seen.finished_ms
            for name, has_failed in failed.items():
                count = counts.pop(name, 0)
                if has_failed:
                    counts[name] = failures[name] = max(1, count) if is_repeated else count + 1
            if last is not None and 0 < last.finished_ms - seen.finished_ms <= OVERLAP_MS:
                return None
            passes[digest] = seen
            # Records with a time in the future are removed by the next pass, whatever its digest.
            passes = {name: last for name, last in passes.items() if last.finished_ms - seen.finished_ms <= OVERLAP_MS}
            newest = sorted(passes.items(), key=lambda seen: seen[1].finished_ms)[-_MOST_DIGESTS:]
            return {
                "passes": json_text({name: asdict(last) for name, last in {**dict(newest), digest: seen}.items()}),
                **({"failures": json_text(counts)} if counts else {}),
            }

        self.table.change(table_key(identity), now_prefix("seen", identity), decide)
        return failures

    def record_clustering(self, identity: TableIdentity, snapshot_id: int, recipe: str) -> None:
        """Record that all files that a snapshot added are clustered by a recipe (order or z-order, as text)."""
        self.table.put(
            {
                "pk": copy_key(identity),
                "sk": f"{_clusterings(recipe)}{snapshot_id}",
                "snapshot_id": snapshot_id,
                "recipe": recipe,
            }
        )

    def clustered_snapshots(self, identity: TableIdentity, recipe: str) -> frozenset[int]:
        """The snapshots recorded for a recipe, including expired snapshots: manifest entries keep their ids."""
        found = self.table.query(copy_key(identity), _clusterings(recipe), attributes=("snapshot_id",))
        return frozenset(item["snapshot_id"] for item in found)

    def seen(self, identity: TableIdentity) -> SeenTable | None:
        """What the last passes saw; ``None`` if no pass is recorded."""
        found = self.table.get(table_key(identity), now_prefix("seen", identity))
        return None if found is None else _seen_table(found)


def _clusterings(recipe: str) -> str:
    """The prefix of the sort keys of one recipe, with its digest, because recipes may be long or start alike."""
    return f"clustering#{digest(recipe)}#"


def _pins(identity: TableIdentity, items: Iterable[Item], now_ms: int) -> tuple[Pin, ...]:
    """The pins in force, ordered by name as UTF-8 bytes."""
    pins = (_pin(identity, item) for item in items if item["sk"].startswith(_PINS) and item["until_ms"] > now_ms)
    return tuple(sorted(pins, key=lambda pin: pin.name.encode()))


def _pin(identity: TableIdentity, item: Item) -> Pin:
    with understood(item):
        return Pin(
            identity=identity,
            name=item["name"],
            snapshot_id=item["snapshot_id"],
            metadata_location=item["metadata_location"],
            expires_ms=item["until_ms"],
            kind=PinKind(item["kind"]),
            tag=item.get("tag"),
        )


def _seen_table(item: Item) -> SeenTable:
    with understood(item):
        return SeenTable(
            passes={
                str(digest): LastSeen(
                    snapshot_id=None if document.get("snapshot_id") is None else int(document["snapshot_id"]),
                    looked_ms=int(document.get("looked_ms")),
                    finished_ms=int(document.get("finished_ms")),
                    is_done=document.get("is_done") is True,
                )
                for digest, document in json.loads(item["passes"]).items()
            },
            failures={str(name): int(times) for name, times in json.loads(item.get("failures", "{}")).items()},
        )


def _pass(identity: TableIdentity, item: Item) -> PassRecord:
    with understood(item):
        return PassRecord(
            identity=identity,
            run_id=item["run_id"],
            started_ms=item["started_ms"],
            finished_ms=item["finished_ms"],
            status=item["status"],
            summary=item["summary"],
            metrics=json.loads(item["metrics"]),
            engine=item["engine"],
        )


def _pass_of_hour(item: Item) -> PassRecord:
    with understood(item):
        table = TableName.recorded(item["table_name"])
        catalog = CatalogId(item["catalog"], item["warehouse"])
        identity = TableIdentity(catalog, table, item["uuid"], item["location"])
    item["finished_ms"] = item["ended_ms"]
    return _pass(identity, item)
