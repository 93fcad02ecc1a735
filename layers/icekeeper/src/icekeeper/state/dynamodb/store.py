"""The state store of a fleet, in a DynamoDB table that functions, jobs and laptops share; claims and cut-offs in it.

The Protocols in ``state/store`` and ``state/claims`` document the methods.

The pins and staged loads of a table are in one partition, by its UUID, together with what the last pass saw: detection
reads them with one query.  Records of one copy of a table, paths and orphans have partitions of their own: there may be
very many, and in a table with a local secondary index a partition holds at most 10 GB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import TypeVar

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import TableName
from icekeeper.state.claims import CatalogLook, CutOff, CutWork, Entry, TableClaims, folders_around, store_of
from icekeeper.state.dynamodb.items import (
    Item,
    catalog_key,
    copy_key,
    json_text,
    named_key,
    seen_key,
    sort_key,
    table_key,
    understood,
)
from icekeeper.state.dynamodb.records import (
    LOADS,
    DynamoLakeStats,
    DynamoLeases,
    DynamoPendingDeletions,
    DynamoQuarantine,
    DynamoRequests,
    DynamoSchedules,
    DynamoStaging,
    DynamoUnreadableFiles,
    DynamoUsage,
    load_of,
    schedules_of,
    unreadable_files_of,
)
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable, Records, put_all
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import (
    OVERLAP_MS,
    Glance,
    LastSeen,
    PassRecord,
    Pin,
    PinKind,
    StagedLoad,
    idle_since_text,
    read_idle_since,
)

_LOOKS = "looks#all"
# Sorts before every character of a name, so that a folder comes before longer names that start with its name.
_END = "\x1f"
# A sort key has at most 1,024 bytes: a query uses this many characters of a folder; the rest is compared afterwards.
_SEARCHED = 200


class DynamoClaims(Records):
    """A :class:`.ClaimStore`: an item per catalog entry, and an item per claimed folder to find entries by.

    The folders of one bucket or host are in one partition: all folders inside a folder are one range of sort keys, and
    each folder that contains it is a further range.
    """

    def record(self, claims: TableClaims, *, replaces: TableClaims | None = None) -> None:
        before = self.of_entry(claims.entry) if replaces is None else replaces
        if before == claims:
            return
        known = set() if before is None else {before.location, *before.folders}
        now = {claims.location, *claims.folders}
        # New folders are written first: a concurrent search finds too many entries, never too few.
        for folder in now if before is None or before.uuid != claims.uuid else now - known:
            self.table.put(_folder_item(folder, claims.entry))
        self.table.put(_entry_item(claims))
        for folder in known - now:
            self.table.delete(*_folder_key(folder, claims.entry))
        if before is None:
            self._know_catalogs([claims])

    def record_first_looks(self, claims: Sequence[TableClaims]) -> None:
        # In the same order as above; folders that an entry no longer claims stay, and searches find them needlessly.
        folders = (_folder_item(folder, one.entry) for one in claims for folder in {one.location, *one.folders})
        put_all(self.table, folders)
        put_all(self.table, map(_entry_item, claims))
        self._know_catalogs(claims)

    def looks(self) -> Sequence[CatalogLook]:
        return [*map(_look, self.table.query(_LOOKS))]

    def record_look(self, look: CatalogLook) -> None:
        self.table.put(_look_item(look))

    def _know_catalogs(self, claims: Sequence[TableClaims]) -> None:
        for catalog, warehouse in {(one.catalog, one.warehouse) for one in claims}:
            item = _look_item(CatalogLook(catalog=catalog, warehouse=warehouse))
            self.table.change(item["pk"], item["sk"], partial(_unless_found, item))

    def of_entry(self, entry: Entry) -> TableClaims | None:
        item = self.table.get(*_entry_key(entry))
        return None if item is None else _claims(item)

    def touching(self, folder: str) -> Iterator[TableClaims]:
        pk = named_key("claimed", store_of(folder))
        below = folder if folder.endswith("/") else f"{folder}/"
        entries: dict[Entry, None] = {}
        for item in self.table.query(pk, below[:_SEARCHED]):
            if item["folder"].startswith(below):
                entries.setdefault(_entry(item))
        for around in folders_around(folder):
            for item in self.table.query(pk, f"{around}{_END}"[:_SEARCHED]):
                if item["folder"] == around:
                    entries.setdefault(_entry(item))
        for entry in sorted(entries):
            claims = self.of_entry(entry)
            if claims is not None:
                yield claims

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[TableClaims]:
        yield from map(_claims, self.table.query(catalog_key("claims", catalog, warehouse)))

    def forget(self, entry: Entry) -> None:
        claims = self.of_entry(entry)
        self.table.delete(*_entry_key(entry))
        if claims is not None:
            for folder in (claims.location, *claims.folders):
                self.table.delete(*_folder_key(folder, entry))


def _entry_item(claims: TableClaims) -> Item:
    pk, sk = _entry_key(claims.entry)
    return {
        "pk": pk,
        "sk": sk,
        "entry": json.dumps(claims.entry),
        "uuid": claims.uuid,
        "location": claims.location,
        "folders": json.dumps(sorted(claims.folders)),
        "data_roots": json.dumps(sorted(claims.data_roots)),
        "seen_sequence_number": claims.seen_sequence_number,
        "seen_ms": claims.seen_ms,
    }


def _folder_item(folder: str, entry: Entry) -> Item:
    pk, sk = _folder_key(folder, entry)
    return {"pk": pk, "sk": sk, "folder": folder, "entry": json.dumps(entry)}


def _look_item(look: CatalogLook) -> Item:
    return {
        "pk": _LOOKS,
        "sk": sort_key("", json.dumps(look.key)),
        "catalog": look.catalog,
        "warehouse": look.warehouse,
        "look": json.dumps(look.to_json()),
    }


def _unless_found(new: Item, found: Item | None) -> Item | None:
    return new if found is None else None


def _look(item: Item) -> CatalogLook:
    with understood(item):
        return CatalogLook.from_json(item["catalog"], item["warehouse"], json.loads(item["look"]))


def _entry_key(entry: Entry) -> tuple[str, str]:
    catalog, warehouse, table = entry
    return catalog_key("claims", catalog, warehouse), sort_key("", table)


def _folder_key(folder: str, entry: Entry) -> tuple[str, str]:
    return named_key("claimed", store_of(folder)), sort_key("", f"{folder}{_END}{json.dumps(entry)}")


def _entry(item: Item) -> Entry:
    with understood(item):
        catalog, warehouse, table = json.loads(item["entry"])
        return catalog, warehouse, table


def _claims(item: Item) -> TableClaims:
    with understood(item):
        catalog, warehouse, table = _entry(item)
        return TableClaims(
            catalog=catalog,
            warehouse=warehouse,
            table=TableName.recorded(table),
            uuid=item["uuid"],
            location=item["location"],
            folders=frozenset(json.loads(item["folders"])),
            data_roots=frozenset(json.loads(item["data_roots"])),
            seen_sequence_number=item["seen_sequence_number"],
            seen_ms=item["seen_ms"],
        )


# Records of tables that are gone expire after this time.
_KEPT_MS = 400 * 24 * HOUR_MS


class DynamoCutOffs(Records):
    """A :class:`.CutOffStore`: the records of a catalog are in one partition."""

    def record(self, cut: CutOff) -> None:
        pk, sk = _key(cut.entry, cut.work)
        self.table.put(
            {
                "pk": pk,
                "sk": sk,
                "table_name": cut.entry[2],
                "work": cut.work.value,
                "times": cut.times,
                "cut_ms": cut.cut_ms,
                "why": cut.why,
                "expires_s": self.table.expires_s(_KEPT_MS, at_least_ms=cut.cut_ms),
            }
        )

    def of_catalog(self, catalog: str, warehouse: str) -> Sequence[CutOff]:
        found = [_cut(catalog, warehouse, item) for item in self.table.query(catalog_key("cut", catalog, warehouse))]
        return sorted(found, key=lambda cut: (cut.entry[2].encode(), cut.work.value))

    def forget(self, entry: Entry, work: CutWork) -> None:
        self.table.delete(*_key(entry, work))


def _key(entry: Entry, work: CutWork) -> tuple[str, str]:
    catalog, warehouse, table = entry
    return catalog_key("cut", catalog, warehouse), sort_key(f"{work.value}#", table)


def _cut(catalog: str, warehouse: str, item: Item) -> CutOff:
    with understood(item):
        entry, work = (catalog, warehouse, str(item["table_name"])), CutWork(item["work"])
    return CutOff(entry=entry, work=work, times=item["times"], cut_ms=item["cut_ms"], why=item["why"])


_PINS_KEPT_MS = 7 * 24 * HOUR_MS
# An item has at most 400 KB, and a character up to four bytes: a pass with a longer summary could not be recorded.
_LONGEST_SUMMARY = 50_000
_PASSES = "pass#"
_NOW = "now#"
_PINS = f"{_NOW}pin#"
Named = TypeVar("Named", Pin, StagedLoad)


class DynamoStateStore:
    """A :class:`.StateStore`; the table must exist."""

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
        return nullcontext()  # the client keeps its connections open anyway

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
                "expires_s": self._table.expires_s(_KEPT_MS, at_least_ms=record.finished_ms),
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
                "idle_since": idle_since_text(seen.idle_since),
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
    """The prefix of the sort keys of one recipe, with its digest, because recipes may be long or start alike."""
    return f"clustering#{sha256(recipe.encode()).hexdigest()}#"


def _in_order(named: Iterable[Named]) -> tuple[Named, ...]:
    """Ordered by name as UTF-8 bytes, as DynamoDB orders text."""
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
        idle_since=read_idle_since(item.get("idle_since")),
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
