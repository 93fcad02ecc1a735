"""Records as items of the DynamoDB table: lake statistics, leases, pending deletions, orphans, requests, schedules,
loads, unreadable files and usage.

Each class implements a Protocol of ``state/store`` or ``state/leases``, which documents its methods.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import islice

from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import TableName
from icekeeper.state.dynamodb.items import (
    REQUESTS,
    Item,
    catalog_key,
    copy_key,
    damaged,
    json_text,
    named_key,
    sort_key,
    table_key,
    understood,
)
from icekeeper.state.dynamodb.table import (
    REMOVED,
    Records,
    delete_all,
    delete_paths,
    get_all,
    new_list_id,
    put_all,
    read_paths,
    write_paths,
)
from icekeeper.state.held_lease import of_the_living
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import Lease, renewed_lease, taken_lease
from icekeeper.state.store import (
    HourOfUse,
    LakeStats,
    LoadOrigin,
    LoadState,
    MaintenanceRequest,
    ScheduleRun,
    Sighting,
    StagedLoad,
    UnreadableFile,
    stored_request,
)

log = logging.getLogger(__name__)

# Records of tables that are gone expire after this time.  Pending deletions and orphans are then found again by
# listing, and unreadable files by the next pass.
_KEPT_MS = 400 * 24 * HOUR_MS


class DynamoLakeStats(Records):
    """A :class:`.LakeStatsStore`: the stats of a catalog are in one partition, of which a request reads a megabyte."""

    def record(self, *stats: LakeStats) -> None:
        items = {_stats_key(one.identity): self._item(one) for one in stats}
        put_all(self.table, items.values())  # has no key twice

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
            "expires_s": self.table.expires_s(_KEPT_MS, at_least_ms=stats.observed_ms),
        }

    def of_table(self, identity: TableIdentity) -> LakeStats | None:
        item = self.table.get(*_stats_key(identity))
        return None if item is None else _stats(identity, item)

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[LakeStats]:
        for item in self.table.query(catalog_key("lake", catalog, warehouse)):
            with understood(item):
                table, location = TableName.recorded(item["table_name"]), item["location"]
            identity = TableIdentity(catalog, warehouse, table, item["uuid"], location)
            yield _stats(identity, item)

    def forget(self, identity: TableIdentity) -> None:
        self.table.delete(*_stats_key(identity))


def _stats_key(identity: TableIdentity) -> tuple[str, str]:
    # The separator sorts before every character of a name, so that tables are ordered by name.
    sk = sort_key("", f"{identity.table.key}\x1f{identity.uuid}")
    return catalog_key("lake", identity.catalog, identity.warehouse), sk


def _stats(identity: TableIdentity, item: Item) -> LakeStats:
    with understood(item):
        return LakeStats(
            identity=identity,
            observed_ms=item["observed_ms"],
            snapshot_id=item.get("snapshot_id"),
            counters=json.loads(item["counters"]),
            warnings=json.loads(item["warnings"]),
            policy=json.loads(item["policy"]),
        )


# A lease that expired and was not taken can be renewed for at least this long.
_LEASES_KEPT_MS = 24 * HOUR_MS
_SORT_KEY = "lease"


class DynamoLeases(Records):
    """A :class:`.LeaseStore`: an item per lease, which is replaced if it is still as it was read.

    Leases expire by DynamoDB's clock (the date of the response with the item): a machine whose clock is ahead would
    take leases of others too early.
    """

    def acquire(self, key: str, holder: str, *, now_ms: int, ttl_ms: int, name: str = "") -> Lease:
        taken = Lease(key=key, holder=holder, expires_ms=0, name=name)

        def decide(item: Item | None) -> Item:
            nonlocal taken
            its_now_ms = self.table.to_table_clock(now_ms)
            wanted = Lease(key=key, holder=holder, expires_ms=its_now_ms + ttl_ms, name=name)
            taken = taken_lease(_lease(key, item), wanted, now_ms=its_now_ms)
            return self._item(taken)

        self.table.change(_pk(key), _SORT_KEY, decide)
        return taken

    def renew(self, lease: Lease, *, now_ms: int, ttl_ms: int) -> Lease:
        # One request, without a read: the response to ``acquire`` has shown DynamoDB's time already.
        expires_ms = self.table.to_table_clock(now_ms) + ttl_ms
        wanted = self._item(replace(lease, expires_ms=expires_ms))
        _, there = self.table.set_where(
            _pk(lease.key),
            _SORT_KEY,
            {name: wanted[name] for name in ("until_ms", "expires_s")},
            "holder = :holder AND until_ms < :until",  # never shortened
            {":holder": lease.holder, ":until": expires_ms},
        )
        found = _lease(lease.key, there)
        return renewed_lease(found, lease, expires_ms=0 if found is None else found.expires_ms)

    def release(self, lease: Lease) -> bool:
        def decide(item: Item | None) -> Item | None:
            return REMOVED if item is not None and item["holder"] == lease.holder else None

        return self.table.change(_pk(lease.key), _SORT_KEY, decide)

    def current(self, key: str, *, now_ms: int) -> Lease | None:
        found = _lease(key, self.table.get(_pk(key), _SORT_KEY))
        return found if found is not None and found.holds_at(self.table.to_table_clock(now_ms)) else None

    def _item(self, lease: Lease) -> Item:
        return {
            "holder": lease.holder,
            "until_ms": lease.expires_ms,
            "name": lease.name or None,
            "expires_s": self.table.expires_s(_LEASES_KEPT_MS, at_least_ms=lease.expires_ms),
        }


def _lease(key: str, item: Item | None) -> Lease | None:
    if item is None:
        return None
    return of_the_living(Lease(key=key, holder=item["holder"], expires_ms=item["until_ms"], name=item.get("name", "")))


def _pk(key: str) -> str:
    return named_key("lease", key)


_DELETIONS_PREFIX = "deletions#"


class DynamoPendingDeletions(Records):
    """A :class:`.PendingDeletionStore`: an item per list, with the id of its list of paths."""

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        list_id, expires_s = new_list_id(), self.table.expires_s(_KEPT_MS)
        # The paths first, so that a list with an item is complete.
        count = write_paths(self.table, list_id, paths, expires_s=expires_s)
        named: Item = {"name": name, "list_id": list_id, "expires_s": expires_s}
        self._replace(identity, name, named if count else REMOVED)

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        names = (item["name"] for item in self.table.query(copy_key("copy", identity), _DELETIONS_PREFIX))
        return tuple(sorted(names, key=str.encode))

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        found = self.table.get(*_key(identity, name))
        return iter(()) if found is None else read_paths(self.table, found["list_id"])

    def forget(self, identity: TableIdentity, name: str) -> None:
        self._replace(identity, name, REMOVED)

    def _replace(self, identity: TableIdentity, name: str, wanted: Item) -> None:
        before: Item | None = None

        def decide(found: Item | None) -> Item | None:
            nonlocal before
            before = found
            return wanted if wanted or found else None

        self.table.change(*_key(identity, name), decide)
        if before is not None:
            delete_paths(self.table, before["list_id"])


def _key(identity: TableIdentity, name: str) -> tuple[str, str]:
    return copy_key("copy", identity), sort_key(_DELETIONS_PREFIX, name)


_BATCH = 100


class DynamoQuarantine(Records):
    """A :class:`.QuarantineLedger`: an item per path.

    Counting reads and writes items without a condition, because DynamoDB has none for many items at once.  The lease
    lets only one run at a time count for a table; if two did, a sighting would be lost, and the orphan deleted a pass
    later.
    """

    def see(self, identity: TableIdentity, run_id: str, paths: Iterable[str], *, now_ms: int) -> None:
        pk, expires_s = copy_key("quarantine", identity), self.table.expires_s(_KEPT_MS)
        for batch in _batches(pk, paths):
            known = {item["path"]: _sighting(item) for item in get_all(self.table, batch.values())}
            put_all(
                self.table,
                (
                    {
                        "pk": pk,
                        "sk": sk,
                        "path": path,
                        "sightings": 1 if before is None else before.count + (before.run_id != run_id),
                        "first_seen_ms": now_ms if before is None else before.first_seen_ms,
                        "run_id": run_id,
                        "expires_s": expires_s,
                    }
                    for path, (_, sk) in batch.items()
                    for before in (known.get(path),)
                ),
            )

    def counts(self, identity: TableIdentity, run_id: str, paths: Iterable[str]) -> Mapping[str, int]:
        return {
            entry.path: entry.count - (entry.run_id == run_id)
            for batch in _batches(copy_key("quarantine", identity), paths)
            for entry in map(_sighting, get_all(self.table, batch.values()))
        }

    def forget_unseen(self, identity: TableIdentity, run_id: str) -> None:
        entries = self.table.query(copy_key("quarantine", identity), attributes=("pk", "sk", "run_id"))
        delete_all(self.table, ((entry["pk"], entry["sk"]) for entry in entries if entry["run_id"] != run_id))

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        for batch in _batches(copy_key("quarantine", identity), paths):
            delete_all(self.table, batch.values())

    def sightings(self, identity: TableIdentity) -> Iterator[Sighting]:
        return map(_sighting, self.table.query(copy_key("quarantine", identity)))


def _batches(pk: str, paths: Iterable[str]) -> Iterator[dict[str, tuple[str, str]]]:
    """Batches of path → key."""
    rest = iter(paths)
    while batch := {path: (pk, sort_key("/", path)) for path in islice(rest, _BATCH)}:
        yield batch


def _sighting(item: Mapping[str, object]) -> Sighting:
    return Sighting(
        str(item["path"]),
        count=int(str(item["sightings"])),
        first_seen_ms=int(str(item["first_seen_ms"])),
        run_id=str(item["run_id"]),
    )


class DynamoRequests(Records):
    """A :class:`.RequestStore`: all requests are in one partition."""

    def file(self, request: MaintenanceRequest) -> None:
        pk, sk = _request_key(request.identity)
        self.table.put({"pk": pk, "sk": sk, **_request_item(request)})

    def pending(self) -> tuple[MaintenanceRequest, ...]:
        return tuple(sorted(self._understood(), key=_in_turn))

    def _understood(self) -> Iterator[MaintenanceRequest]:
        """The well-formed requests; to skip one deletes less, never more (rule: skip-malformed-requests)."""
        for item in self.table.query(REQUESTS, passed_over=_tell):
            try:
                yield stored_request(item, partial(_is_filed_under, item))
            except ValueError as error:
                _tell(damaged(item, str(error)))

    def claim(self, request: MaintenanceRequest) -> bool:
        this = request.requested_ms, json_text(request.settings)

        def decide(found: Item | None) -> Item | None:
            return REMOVED if found is not None and (found["requested_ms"], found["settings"]) == this else None

        return self.table.change(*_request_key(request.identity), decide)


def _is_filed_under(item: Item, key: str) -> bool:
    return bool(sort_key("", key) == item["sk"])


def _tell(error: StorageError) -> None:
    log.error("a request is passed over: %s", error)


def _in_turn(request: MaintenanceRequest) -> tuple[int, str, str]:
    return request.requested_ms, str(request.identity.table), request.identity.lease_key


def _request_key(identity: TableIdentity) -> tuple[str, str]:
    return REQUESTS, sort_key("", identity.lease_key)


def _request_item(request: MaintenanceRequest) -> Item:
    return {
        "catalog": request.identity.catalog,
        "warehouse": request.identity.warehouse,
        "table_name": str(request.identity.table),
        "uuid": request.identity.uuid,
        "location": request.identity.location,
        "requested_ms": request.requested_ms,
        "settings": json_text(request.settings),
    }


class DynamoSchedules(Records):
    """A :class:`.ScheduleStore`, in the partition of the table."""

    def record(self, identity: TableIdentity, run: ScheduleRun) -> None:
        self.table.put(_schedule_item(identity, run))

    def record_all(self, runs: Iterable[tuple[TableIdentity, ScheduleRun]]) -> None:
        items = {(item["pk"], item["sk"]): item for item in (_schedule_item(*one) for one in runs)}
        put_all(self.table, items.values())  # has no key twice

    def of_table(self, identity: TableIdentity) -> Mapping[str, ScheduleRun]:
        return schedules_of(identity, self.table.query(table_key(identity), _prefix(identity)))


def _schedule_item(identity: TableIdentity, run: ScheduleRun) -> Item:
    return {
        "pk": table_key(identity),
        "sk": sort_key(_prefix(identity), run.schedule),
        "schedule": run.schedule,
        "counted_ms": run.counted_ms,
        "ended_ms": run.finished_ms,  # not "finished_ms", which would put it into the index of passes
        "snapshot_id": run.snapshot_id,
        "fingerprint": run.fingerprint,
        "idle": run.idle,
    }


def schedules_of(identity: TableIdentity, items: Iterable[Item]) -> dict[str, ScheduleRun]:
    """The records of one copy of a table, from the items of its partition, by schedule."""
    return {
        item["schedule"]: ScheduleRun(
            schedule=item["schedule"],
            counted_ms=item["counted_ms"],
            finished_ms=item["ended_ms"],
            snapshot_id=item.get("snapshot_id"),
            fingerprint=item["fingerprint"],
            idle=item["idle"],
        )
        for item in items
        if item["sk"].startswith(_prefix(identity))
    }


def _prefix(identity: TableIdentity) -> str:
    return f"now#schedule#{sha256(identity.place.encode()).hexdigest()}#"


LOADS = "now#load#"
"""The prefix of the sort keys of staged loads; detection reads all keys that start with ``now#`` in one query."""


class DynamoStaging(Records):
    """A :class:`.StagingStore`: an item per record, and its paths as a list.

    There may be too many paths to write them together with the record.  So the record is written first, and from then
    on protects its prefixes and all recorded paths; then come the paths, and at last their number.
    """

    def stage(self, load: StagedLoad, files: Iterable[str]) -> StagedLoad:
        key = _key_of_staging(load.identity, load.name)
        record: Item = {}

        def begin(found: Item | None) -> Item:
            nonlocal record
            before = found or {"file_count": 0, "list_id": new_list_id(), "turn": 0}
            record = {
                **_fields(load),
                "file_count": before["file_count"],
                "list_id": before["list_id"],
                # Numbers this call, so that concurrent calls write different parts.
                "turn": before["turn"] + 1,
            }
            return record

        self.table.change(*key, begin)
        list_id = record["list_id"]
        count = write_paths(self.table, list_id, files, call=record["turn"])
        if not count:
            return load_of(load.identity, record)

        def add_count(found: Item | None) -> Item:
            nonlocal record
            if found is None or found["list_id"] != list_id:
                delete_paths(self.table, list_id)
                raise StorageError(f"the record {load.name} was removed while its files were recorded: stage it again")
            record = {**found, "file_count": found["file_count"] + count}
            return record

        self.table.change(*key, add_count)
        return load_of(load.identity, record)

    def loads(self, identity: TableIdentity) -> tuple[StagedLoad, ...]:
        items = self.table.query(table_key(identity), LOADS)
        return tuple(sorted((load_of(identity, item) for item in items), key=lambda load: load.name.encode()))

    def files(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        found = self.table.get(*_key_of_staging(identity, name))
        return iter(()) if found is None else read_paths(self.table, found["list_id"])

    def change(self, before: StagedLoad, after: StagedLoad) -> bool:
        def decide(found: Item | None) -> Item | None:
            if found is None or not _is_unchanged(found, before):
                return None
            now = {"state": after.state.value, "changed_ms": after.changed_ms, "run_out_ms": after.expires_ms}
            return {**found, **now}

        return self.table.change(*_key_of_staging(before.identity, before.name), decide)

    def forget(self, load: StagedLoad) -> bool:
        list_id = ""

        def decide(found: Item | None) -> Item | None:
            nonlocal list_id
            if found is None or not _is_unchanged(found, load):
                return None
            list_id = found["list_id"]
            return REMOVED

        gone = self.table.change(*_key_of_staging(load.identity, load.name), decide)
        if gone:  # the paths last: without a record they belong to no load, and the next record has a new list
            delete_paths(self.table, list_id)
        return gone


def load_of(identity: TableIdentity, item: Item) -> StagedLoad:
    """The load of an item."""
    with understood(item):
        return StagedLoad(
            identity=identity,
            name=item["name"],
            origin=LoadOrigin(item["origin"]),
            state=LoadState(item["state"]),
            prefixes=tuple(json.loads(item["prefixes"])),
            changed_ms=item["changed_ms"],
            expires_ms=item.get("run_out_ms"),
            file_count=item["file_count"],
        )


def _key_of_staging(identity: TableIdentity, name: str) -> tuple[str, str]:
    return table_key(identity), sort_key(LOADS, name)


def _fields(load: StagedLoad) -> Item:
    return {
        "name": load.name,
        "origin": load.origin.value,
        "state": load.state.value,
        "prefixes": json.dumps(load.prefixes),
        "changed_ms": load.changed_ms,
        "run_out_ms": load.expires_ms,
    }


def _is_unchanged(item: Item, load: StagedLoad) -> bool:
    recorded = load_of(load.identity, item)
    return (recorded.state, recorded.changed_ms, recorded.expires_ms, recorded.file_count) == (
        load.state,
        load.changed_ms,
        load.expires_ms,
        load.file_count,
    )


class DynamoUnreadableFiles(Records):
    """A :class:`.UnreadableFileStore`, in the partition of the table."""

    def record(self, identity: TableIdentity, files: Iterable[UnreadableFile]) -> None:
        put_all(
            self.table,
            (
                {
                    "pk": table_key(identity),
                    "sk": sort_key(_unreadable_prefix(identity), one.path),
                    "path": one.path,
                    "why": one.why,
                    "schema_digest": one.schema_digest,
                    "tried_ms": one.tried_ms,
                    "expires_s": self.table.expires_s(_KEPT_MS, at_least_ms=one.tried_ms),
                }
                for one in files
            ),
        )

    def of_table(self, identity: TableIdentity) -> Mapping[str, UnreadableFile]:
        return unreadable_files_of(identity, self.table.query(table_key(identity), _unreadable_prefix(identity)))

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        delete_all(self.table, ((table_key(identity), sort_key(_unreadable_prefix(identity), path)) for path in paths))


def unreadable_files_of(identity: TableIdentity, items: Iterable[Item]) -> dict[str, UnreadableFile]:
    """The files of one copy of a table, from the items of its partition, by path."""
    return {
        item["path"]: UnreadableFile(
            path=item["path"], why=item["why"], schema_digest=item["schema_digest"], tried_ms=item["tried_ms"]
        )
        for item in items
        if item["sk"].startswith(_unreadable_prefix(identity))
    }


def _unreadable_prefix(identity: TableIdentity) -> str:
    return f"now#unreadable#{sha256(identity.place.encode()).hexdigest()}#"


_PARTITION = "usage#"
_AMOUNT = "used_"
_METRICS = "metric_names"


class DynamoUsage(Records):
    """A :class:`.UsageStore`: an item per hour, to which all processes add, and a partition per month."""

    def add(self, used: HourOfUse) -> None:
        more: dict[str, int | frozenset[str]] = {f"{_AMOUNT}{name}": value for name, value in used.amounts.items()}
        if used.metrics:
            more[_METRICS] = used.metrics
        if more:
            self.table.add(_partition(used.hour), used.hour, more, keep_ms=_KEPT_MS)

    def between(self, first: str, last: str) -> tuple[HourOfUse, ...]:
        found = [
            HourOfUse(
                item["sk"],
                {name.removeprefix(_AMOUNT): value for name, value in item.items() if name.startswith(_AMOUNT)},
                frozenset(item.get(_METRICS, ())),
            )
            for month in _months(first, last)
            for item in self.table.query(month)
        ]
        return tuple(one for one in found if first <= one.hour <= last)


def _partition(hour: str) -> str:
    return f"{_PARTITION}{hour[:7]}"


def _months(first: str, last: str) -> list[str]:
    """The partitions of all months between two hours."""
    begin, end = (int(hour[:4]) * 12 + int(hour[5:7]) - 1 for hour in (first, last))
    return [f"{_PARTITION}{month // 12:04}-{month % 12 + 1:02}" for month in range(begin, end + 1)]
