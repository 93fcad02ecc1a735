"""The state store of a fleet: one DynamoDB table, shared by functions, jobs and laptops.

The pins and staged loads of a table lie in one partition, by its UUID, together with what the last pass saw, so that
detection reads them with one query.  Records of one copy of a table, and paths and orphans, which may be very many, lie
in partitions of their own: in a table with a local secondary index, a partition holds at most 10 GB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from itertools import islice
from typing import TypeVar

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.dynamodb.claims import DynamoClaims
from icekeeper.state.dynamodb.cut_offs import DynamoCutOffs
from icekeeper.state.dynamodb.items import Item, copy_key, json_text, seen_key, sort_key, table_key, understood
from icekeeper.state.dynamodb.lake_stats import DynamoLakeStats
from icekeeper.state.dynamodb.leases import DynamoLeases
from icekeeper.state.dynamodb.pending_deletions import DynamoPendingDeletions
from icekeeper.state.dynamodb.quarantine import DynamoQuarantine
from icekeeper.state.dynamodb.requests import DynamoRequests
from icekeeper.state.dynamodb.schedules import DynamoSchedules, schedules_of
from icekeeper.state.dynamodb.staging import LOADS, DynamoStaging, load_of
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable
from icekeeper.state.dynamodb.unreadable_files import DynamoUnreadableFiles, unreadable_files_of
from icekeeper.state.dynamodb.usage import DynamoUsage
from icekeeper.state.identity import TableIdentity
from icekeeper.state.slack import read_slack, slack_text
from icekeeper.state.store import OVERLAP_MS, Glance, LastSeen, PassRecord, Pin, PinKind, StagedLoad

__all__ = ["DynamoStateStore"]

_DAY_MS = 24 * HOUR_MS
_PASSES_KEPT_MS = 400 * _DAY_MS
_PINS_KEPT_MS = 7 * _DAY_MS
# An item may have 400 KB, and a character four bytes: a longer summary would keep the pass out of the journal.
_LONGEST_SUMMARY = 50_000
_PASSES = "pass#"
_NOW = "now#"
_PINS = f"{_NOW}pin#"
Named = TypeVar("Named", Pin, StagedLoad)


class DynamoStateStore:
    """A :class:`icekeeper.state.store.StateStore`; the table must exist."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table
        self.staging = DynamoStaging(table)
        self.pending_deletions = DynamoPendingDeletions(table)
        self.quarantine = DynamoQuarantine(table)
        self.leases = DynamoLeases(table)
        self.requests = DynamoRequests(table)
        self.lake_stats = DynamoLakeStats(table)
        self.schedules = DynamoSchedules(table)
        self.claims = DynamoClaims(table)
        self.unreadable_files = DynamoUnreadableFiles(table)
        self.cut_offs = DynamoCutOffs(table)
        self.usage = DynamoUsage(table)

    def kept_open(self) -> AbstractContextManager[None]:
        return nullcontext()  # the client keeps its connections as it is

    def glance(self, identity: TableIdentity, *, now_ms: int) -> Glance:
        items = list(self._table.query(table_key(identity), _NOW))
        _, seen_sk = seen_key(identity)
        seen = next((item for item in items if item["sk"] == seen_sk), None)
        return Glance(
            _in_order(_pin(identity, item) for item in items if _holds(item, now_ms)),
            None if seen is None else _last_seen(seen),
            _in_order(load_of(identity, item) for item in items if item["sk"].startswith(LOADS)),
            schedules_of(identity, items),
            unreadable_files_of(identity, items),
        )

    def require_writable(self) -> None:
        self._table.require_writable()

    def record_pass(self, record: PassRecord) -> None:
        self._table.put(
            {
                "pk": copy_key("copy", record.identity),
                "sk": sort_key(_PASSES, record.run_id),
                "catalog": record.identity.catalog,
                "table_name": str(record.identity.table),
                "run_id": record.run_id,
                "started_ms": record.started_ms,
                "finished_ms": record.finished_ms,
                "status": record.status,
                "summary": record.summary[:_LONGEST_SUMMARY],
                "metrics": json_text(record.metrics),
                "engine": record.engine,
                "expires_s": self._table.expires_s(_PASSES_KEPT_MS, at_least_ms=record.finished_ms),
            }
        )

    def history(self, identity: TableIdentity, *, limit: int = 100) -> tuple[PassRecord, ...]:
        if limit < 1:
            return ()
        found = islice(self._table.newest(copy_key("copy", identity), limit), limit)
        return tuple(_pass(identity, item) for item in found)

    def add_pin(self, pin: Pin) -> None:
        self._table.put(
            {
                "pk": table_key(pin.identity),
                "sk": sort_key(_PINS, pin.name),
                "name": pin.name,
                "snapshot_id": pin.snapshot_id,
                "metadata_location": pin.metadata_location,
                "until_ms": pin.expires_ms,
                "kind": pin.kind.value,
                "tag": pin.tag,
                "expires_s": self._table.expires_s(_PINS_KEPT_MS, at_least_ms=pin.expires_ms),
            }
        )

    def pins(self, identity: TableIdentity, *, now_ms: int) -> tuple[Pin, ...]:
        items = self._table.query(table_key(identity), _PINS)
        return _in_order(_pin(identity, item) for item in items if _holds(item, now_ms))

    def remove_pin(self, identity: TableIdentity, name: str) -> bool:
        def decide(found: Item | None) -> Item | None:
            return None if found is None else REMOVED

        return self._table.change(table_key(identity), sort_key(_PINS, name), decide)

    def remember(self, identity: TableIdentity, seen: LastSeen) -> None:
        def decide(found: Item | None) -> Item | None:
            if found is not None and 0 < found["seen_ms"] - seen.finished_ms <= OVERLAP_MS:
                return None
            return {
                "snapshot_id": seen.snapshot_id,
                "fingerprint": seen.fingerprint,
                "seen_ms": seen.finished_ms,  # not "finished_ms", which would put it into the index of passes
                "idle": seen.idle,
                "slack": slack_text(seen.slack),
            }

        self._table.change(*seen_key(identity), decide)

    def record_clustering(self, identity: TableIdentity, snapshot_id: int, recipe: str) -> None:
        self._table.put(
            {
                "pk": copy_key("copy", identity),
                "sk": f"{_clusterings(recipe)}{snapshot_id}",
                "snapshot_id": snapshot_id,
                "recipe": recipe,
            }
        )

    def clustered_snapshots(self, identity: TableIdentity, recipe: str) -> frozenset[int]:
        found = self._table.query(copy_key("copy", identity), _clusterings(recipe), attributes=("snapshot_id",))
        return frozenset(item["snapshot_id"] for item in found)

    def last_seen(self, identity: TableIdentity) -> LastSeen | None:
        found = self._table.get(*seen_key(identity))
        return None if found is None else _last_seen(found)


def _clusterings(recipe: str) -> str:
    """The prefix of the sort keys of one recipe: its digest, because recipes may be long or begin alike."""
    return f"clustering#{sha256(recipe.encode()).hexdigest()}#"


def _in_order(named: Iterable[Named]) -> tuple[Named, ...]:
    """Ordered by name, in UTF-8 bytes, as DynamoDB orders text."""
    return tuple(sorted(named, key=lambda one: one.name.encode()))


def _holds(item: Item, now_ms: int) -> bool:
    return bool(item["sk"].startswith(_PINS)) and item["until_ms"] > now_ms


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


def _last_seen(item: Item) -> LastSeen:
    return LastSeen(
        snapshot_id=item.get("snapshot_id"),
        fingerprint=item["fingerprint"],
        finished_ms=item["seen_ms"],
        idle=item["idle"],
        slack=read_slack(item.get("slack")),
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
