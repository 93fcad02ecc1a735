"""Records as rows of the SQLite file: lake statistics, leases, pending deletions, orphans, requests, schedules, loads,
unreadable files and usage.

Each class implements a Protocol of ``state/store`` or ``state/leases``, which documents its methods.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from operator import eq
from sqlite3 import Connection
from typing import Any

from icekeeper.model import TableName
from icekeeper.state.held_lease import of_the_living
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import Lease, renewed_lease, taken_lease
from icekeeper.state.sqlite.file import THIS_COPY, THIS_TABLE, Read, Records, SqliteFile, copy_columns
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

_TABLES_PER_READ = 1000
_THIS_ENTRY = "catalog = ? AND warehouse = ? AND table_name = ? AND uuid = ?"
_STATS_COLUMNS = "observed_ms, snapshot_id, counters, warnings, policy"


class SqliteLakeStats(Records):
    """A :class:`.LakeStatsStore`."""

    def record(self, *stats: LakeStats) -> None:
        rows = (
            (
                *_entry(one.identity),
                one.observed_ms,
                one.snapshot_id,
                *(json.dumps(dict(some), sort_keys=True) for some in (one.counters, one.warnings, one.policy)),
                one.identity.location,
            )
            for one in stats
        )
        self.state_file.write_all("INSERT OR REPLACE INTO lake_stats VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def of_table(self, identity: TableIdentity) -> LakeStats | None:
        with self.state_file.reading() as read:
            rows = read(f"SELECT {_STATS_COLUMNS} FROM lake_stats WHERE {_THIS_ENTRY}", *_entry(identity))
            return _stats(identity, rows[0]) if rows else None

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[LakeStats]:
        after = ("", "")
        while True:
            with self.state_file.reading() as read:
                rows = read(
                    f"SELECT table_name, uuid, location, {_STATS_COLUMNS} FROM lake_stats WHERE catalog = ? "
                    "AND warehouse = ? AND (table_name, uuid) > (?, ?) ORDER BY table_name, uuid LIMIT ?",
                    catalog,
                    warehouse,
                    *after,
                    _TABLES_PER_READ,
                )
                found = [
                    _stats(TableIdentity(catalog, warehouse, TableName.recorded(table), uuid, location), row)
                    for table, uuid, location, *row in rows
                ]
            if not found:
                return
            yield from found
            after = rows[-1][:2]

    def forget(self, identity: TableIdentity) -> None:
        self.state_file.write(f"DELETE FROM lake_stats WHERE {_THIS_ENTRY}", *_entry(identity))


def _entry(identity: TableIdentity) -> tuple[str, str, str, str]:
    """The key of a row: stats are kept per catalog, so it has the catalog's names of the table."""
    return identity.catalog, identity.warehouse, identity.table.key, identity.uuid


def _stats(identity: TableIdentity, row: Sequence[Any]) -> LakeStats:
    observed_ms, snapshot_id, counters, warnings, policy = row
    return LakeStats(
        identity=identity,
        observed_ms=observed_ms,
        snapshot_id=snapshot_id,
        counters=json.loads(counters),
        warnings=json.loads(warnings),
        policy=json.loads(policy),
    )


class SqliteLeases(Records):
    """A :class:`.LeaseStore`; the file's write lock makes reading and writing a lease atomic."""

    def acquire(self, key: str, holder: str, *, now_ms: int, ttl_ms: int, name: str = "") -> Lease:
        wanted = Lease(key=key, holder=holder, expires_ms=now_ms + ttl_ms, name=name)
        with self.state_file.transaction() as connection:
            taken = taken_lease(_lease(connection, key), wanted, now_ms=now_ms)
            _write(connection, taken)
        return taken

    def renew(self, lease: Lease, *, now_ms: int, ttl_ms: int) -> Lease:
        with self.state_file.transaction() as connection:
            renewed = renewed_lease(_lease(connection, lease.key), lease, expires_ms=now_ms + ttl_ms)
            _write(connection, renewed)
        return renewed

    def release(self, lease: Lease) -> bool:
        return (
            self.state_file.write("DELETE FROM leases WHERE lease_key = ? AND holder = ?", lease.key, lease.holder) > 0
        )

    def current(self, key: str, *, now_ms: int) -> Lease | None:
        with self.state_file.connection() as connection:
            found = _lease(connection, key)
        return found if found is not None and found.holds_at(now_ms) else None


def _lease(connection: Connection, key: str) -> Lease | None:
    row = connection.execute("SELECT holder, expires_ms, name FROM leases WHERE lease_key = ?", (key,)).fetchone()
    if row is None:
        return None
    holder, expires_ms, name = row
    if not (isinstance(holder, str) and isinstance(expires_ms, int) and isinstance(name, str)):
        raise ValueError(f"the lease {key} is damaged: delete it")
    return of_the_living(Lease(key=key, holder=holder, expires_ms=expires_ms, name=name))


def _write(connection: Connection, lease: Lease) -> None:
    row = (lease.key, lease.holder, lease.expires_ms, lease.name)
    connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", row)


# A list of paths is stored in rows of a thousand: key, number of the row, paths as JSON.
_PATHS_PER_ROW = 1000


def _write_paths(
    connection: Connection, table: str, key: Sequence[str], paths: Iterable[str], first_part: int = 0
) -> int:
    """Write paths as rows of ``table``, numbered from ``first_part``; return the number of paths."""
    part, count, rest = first_part, 0, iter(paths)
    while some := list(islice(rest, _PATHS_PER_ROW)):
        row = (*key, part, json.dumps(some))
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        part, count = part + 1, count + len(some)
    return count


def _read_paths(file: SqliteFile, table: str, condition: str, *values: Any) -> Iterator[Sequence[str]]:
    """The paths of all rows that fulfil a condition, with one row in memory at a time."""
    part = -1
    while True:
        with file.reading() as read:
            rows = read(
                f"SELECT part, paths FROM {table} WHERE {condition} AND part > ? ORDER BY part LIMIT 1", *values, part
            )
            found = [(part, json.loads(paths)) for part, paths in rows]
        if not found:
            return
        ((part, some),) = found
        yield some


_THIS_LIST = f"{THIS_COPY} AND name = ?"


class SqlitePendingDeletions(Records):
    """A :class:`.PendingDeletionStore`."""

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        with self.state_file.transaction() as connection:
            connection.execute(f"DELETE FROM pending_deletions WHERE {_THIS_LIST}", (*copy_columns(identity), name))
            _write_paths(connection, "pending_deletions", (*copy_columns(identity), name), paths)

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        rows = self.state_file.read(
            f"SELECT DISTINCT name FROM pending_deletions WHERE {THIS_COPY} ORDER BY name", *copy_columns(identity)
        )
        return tuple(name for (name,) in rows)

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        return _read_paths(self.state_file, "pending_deletions", _THIS_LIST, *copy_columns(identity), name)

    def forget(self, identity: TableIdentity, name: str) -> None:
        self.state_file.write(f"DELETE FROM pending_deletions WHERE {_THIS_LIST}", *copy_columns(identity), name)


# Rows per transaction; other processes can write between two transactions.
_BATCH = 10_000
# Paths per query: below SQLITE_MAX_VARIABLE_NUMBER of every SQLite (999 before 3.32).
_QUESTION = 900


class SqliteQuarantine(Records):
    """A :class:`.QuarantineLedger`."""

    def see(self, identity: TableIdentity, run_id: str, paths: Iterable[str], *, now_ms: int) -> None:
        columns = copy_columns(identity)
        for batch in _batches(paths, _BATCH):
            with self.state_file.transaction() as connection:
                connection.executemany(
                    "INSERT INTO quarantine VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT (table_key, place, path) DO UPDATE "
                    "SET sightings = sightings + (run_id <> excluded.run_id), run_id = excluded.run_id",
                    ((*columns, path, now_ms, run_id) for path in batch),
                )

    def counts(self, identity: TableIdentity, run_id: str, paths: Iterable[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        with self.state_file.connection() as connection:
            for batch in _batches(paths, _QUESTION):
                marks = ", ".join("?" * len(batch))
                rows = connection.execute(
                    f"SELECT path, sightings - (run_id = ?) FROM quarantine WHERE {THIS_COPY} AND path IN ({marks})",
                    (run_id, *copy_columns(identity), *batch),
                )
                found.update(rows)
        return found

    def forget_unseen(self, identity: TableIdentity, run_id: str) -> None:
        self.state_file.write(
            f"DELETE FROM quarantine WHERE {THIS_COPY} AND run_id <> ?", *copy_columns(identity), run_id
        )

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        columns = copy_columns(identity)
        for batch in _batches(paths, _BATCH):
            with self.state_file.transaction() as connection:
                connection.executemany(
                    f"DELETE FROM quarantine WHERE {THIS_COPY} AND path = ?", ((*columns, path) for path in batch)
                )

    def sightings(self, identity: TableIdentity) -> Iterator[Sighting]:
        rows = self.state_file.read(
            f"SELECT path, sightings, first_seen_ms, run_id FROM quarantine WHERE {THIS_COPY} ORDER BY path",
            *copy_columns(identity),
        )
        return (Sighting(*row) for row in rows)


def _batches(paths: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(paths)
    while batch := list(islice(rest, size)):
        yield batch


_FIELDS = ("catalog", "warehouse", "table_name", "uuid", "location", "requested_ms", "settings")


class SqliteRequests(Records):
    """A :class:`.RequestStore`."""

    def file(self, request: MaintenanceRequest) -> None:
        identity = request.identity
        names = (identity.catalog, identity.warehouse, str(identity.table), identity.uuid, identity.location)
        row = (identity.lease_key, *names, request.requested_ms, _text(request))
        self.state_file.write("INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)

    def pending(self) -> tuple[MaintenanceRequest, ...]:
        with self.state_file.reading() as read:
            rows = read(
                f"SELECT table_key, {', '.join(_FIELDS)} FROM requests ORDER BY requested_ms, table_name, table_key"
            )
        return tuple(_understood(rows))

    def claim(self, request: MaintenanceRequest) -> bool:
        statement = "DELETE FROM requests WHERE table_key = ? AND requested_ms = ? AND settings = ?"
        return self.state_file.write(statement, request.identity.lease_key, request.requested_ms, _text(request)) > 0


def _understood(rows: Sequence[Sequence[Any]]) -> Iterator[MaintenanceRequest]:
    """The well-formed requests (rule: skip-malformed-requests)."""
    for key, *values in rows:
        try:
            yield stored_request(dict(zip(_FIELDS, values, strict=True)), partial(eq, key))
        except ValueError as error:
            log.error(
                "a request is passed over: the row %s of the table requests is damaged (%s); delete it", key, error
            )


def _text(request: MaintenanceRequest) -> str:
    return json.dumps(dict(request.settings), sort_keys=True)


class SqliteSchedules(Records):
    """A :class:`.ScheduleStore`."""

    def record(self, identity: TableIdentity, run: ScheduleRun) -> None:
        self.record_all([(identity, run)])

    def record_all(self, runs: Iterable[tuple[TableIdentity, ScheduleRun]]) -> None:
        rows = (
            (
                *copy_columns(identity),
                run.schedule,
                run.counted_ms,
                run.finished_ms,
                run.snapshot_id,
                run.fingerprint,
                run.idle,
            )
            for identity, run in runs
        )
        self.state_file.write_all("INSERT OR REPLACE INTO schedule_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def of_table(self, identity: TableIdentity) -> Mapping[str, ScheduleRun]:
        return read_schedules(self.state_file.read, identity)


def read_schedules(read: Read, identity: TableIdentity) -> dict[str, ScheduleRun]:
    """As :meth:`.ScheduleStore.of_table`."""
    rows = read(
        "SELECT schedule, counted_ms, finished_ms, snapshot_id, fingerprint, idle FROM schedule_runs "
        f"WHERE {THIS_COPY}",
        *copy_columns(identity),
    )
    return {
        schedule: ScheduleRun(
            schedule=schedule,
            counted_ms=counted_ms,
            finished_ms=finished_ms,
            snapshot_id=snapshot_id,
            fingerprint=fingerprint,
            idle=bool(idle),
        )
        for schedule, counted_ms, finished_ms, snapshot_id, fingerprint, idle in rows
    }


_STAGING_COLUMNS = "name, origin, state, prefixes, changed_ms, expires_ms, file_count"
_THIS_LOAD = f"{THIS_TABLE} AND name = ?"
# "IS" compares null with null.
_UNCHANGED = f"{_THIS_LOAD} AND state = ? AND changed_ms = ? AND expires_ms IS ? AND file_count = ?"


class SqliteStaging(Records):
    """A :class:`.StagingStore`."""

    def stage(self, load: StagedLoad, files: Iterable[str]) -> StagedLoad:
        key = load.identity.key, load.name
        with self.state_file.transaction() as connection:
            last = connection.execute(f"SELECT max(part) FROM staged_files WHERE {_THIS_LOAD}", key).fetchone()[0]
            count = _write_paths(connection, "staged_files", key, files, 0 if last is None else last + 1)
            connection.execute(
                "INSERT INTO staged_loads VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (table_key, name) DO UPDATE SET origin = excluded.origin, "
                "state = excluded.state, prefixes = excluded.prefixes, changed_ms = excluded.changed_ms, "
                "expires_ms = excluded.expires_ms, file_count = file_count + excluded.file_count",
                (
                    *key,
                    load.origin.value,
                    load.state.value,
                    json.dumps(load.prefixes),
                    load.changed_ms,
                    load.expires_ms,
                    count,
                ),
            )
            row = connection.execute(f"SELECT {_STAGING_COLUMNS} FROM staged_loads WHERE {_THIS_LOAD}", key).fetchone()
            return _load(load.identity, row)

    def loads(self, identity: TableIdentity) -> tuple[StagedLoad, ...]:
        with self.state_file.reading() as read:
            return read_loads(read, identity)

    def files(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        return _read_paths(self.state_file, "staged_files", _THIS_LOAD, identity.key, name)

    def change(self, before: StagedLoad, after: StagedLoad) -> bool:
        statement = f"UPDATE staged_loads SET state = ?, changed_ms = ?, expires_ms = ? WHERE {_UNCHANGED}"
        now = (after.state.value, after.changed_ms, after.expires_ms)
        return self.state_file.write(statement, *now, *_unchanged(before)) > 0

    def forget(self, load: StagedLoad) -> bool:
        with self.state_file.transaction() as connection:
            gone = connection.execute(f"DELETE FROM staged_loads WHERE {_UNCHANGED}", _unchanged(load)).rowcount > 0
            if gone:
                key = load.identity.key, load.name
                connection.execute(f"DELETE FROM staged_files WHERE {_THIS_LOAD}", key)
            return gone


def read_loads(read: Read, identity: TableIdentity) -> tuple[StagedLoad, ...]:
    """As :meth:`.StagingStore.loads`."""
    rows = read(f"SELECT {_STAGING_COLUMNS} FROM staged_loads WHERE {THIS_TABLE} ORDER BY name", identity.key)
    return tuple(_load(identity, row) for row in rows)


def _load(identity: TableIdentity, row: Sequence[Any]) -> StagedLoad:
    name, origin, state, prefixes, changed_ms, expires_ms, file_count = row
    return StagedLoad(
        identity=identity,
        name=name,
        origin=LoadOrigin(origin),
        state=LoadState(state),
        prefixes=tuple(json.loads(prefixes)),
        changed_ms=changed_ms,
        expires_ms=expires_ms,
        file_count=file_count,
    )


def _unchanged(load: StagedLoad) -> tuple[Any, ...]:
    """The values for :data:`_UNCHANGED`."""
    return load.identity.key, load.name, load.state.value, load.changed_ms, load.expires_ms, load.file_count


class SqliteUnreadableFiles(Records):
    """A :class:`.UnreadableFileStore`."""

    def record(self, identity: TableIdentity, files: Iterable[UnreadableFile]) -> None:
        columns = copy_columns(identity)
        rows = ((*columns, one.path, one.why, one.schema_digest, one.tried_ms) for one in files)
        self.state_file.write_all("INSERT OR REPLACE INTO unreadable_files VALUES (?, ?, ?, ?, ?, ?)", rows)

    def of_table(self, identity: TableIdentity) -> Mapping[str, UnreadableFile]:
        return read_unreadable_files(self.state_file.read, identity)

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        columns = copy_columns(identity)
        self.state_file.write_all(
            f"DELETE FROM unreadable_files WHERE {THIS_COPY} AND path = ?", ((*columns, path) for path in paths)
        )


def read_unreadable_files(read: Read, identity: TableIdentity) -> dict[str, UnreadableFile]:
    """As :meth:`.UnreadableFileStore.of_table`."""
    rows = read(
        f"SELECT path, why, schema_digest, tried_ms FROM unreadable_files WHERE {THIS_COPY} ORDER BY path",
        *copy_columns(identity),
    )
    return {
        path: UnreadableFile(path=path, why=why, schema_digest=schema_digest, tried_ms=tried_ms)
        for path, why, schema_digest, tried_ms in rows
    }


_METRIC = "metric:"


class SqliteUsage(Records):
    """A :class:`.UsageStore`."""

    def add(self, used: HourOfUse) -> None:
        named = {**used.amounts, **dict.fromkeys((f"{_METRIC}{name}" for name in used.metrics), 0)}
        with self.state_file.transaction() as connection:
            connection.executemany(
                "INSERT INTO used VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
                [(used.hour, name, amount) for name, amount in sorted(named.items())],
            )

    def between(self, first: str, last: str) -> tuple[HourOfUse, ...]:
        rows = self.state_file.read(
            "SELECT hour, name, amount FROM used WHERE hour BETWEEN ? AND ? ORDER BY hour, name", first, last
        )
        return tuple(
            _hour(hour, dict(row[1:] for row in named)) for hour, named in groupby(rows, key=lambda row: row[0])
        )


def _hour(hour: str, named: dict[str, int]) -> HourOfUse:
    metrics = frozenset(name.removeprefix(_METRIC) for name in named if name.startswith(_METRIC))
    return HourOfUse(hour, {name: amount for name, amount in named.items() if not name.startswith(_METRIC)}, metrics)
