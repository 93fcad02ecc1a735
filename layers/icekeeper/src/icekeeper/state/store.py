"""What Icekeeper remembers between passes, record by record, and the interface of a state store."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import TableName
from icekeeper.state.claims import ClaimStore, CutOffStore
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import LeaseStore

# What a scan remembers of its tables, gathered and written many tables at a time (rule: protection-is-written-at-once).
#
# A write waits for the disk or for an answer, and one for each of ten thousand tables costs more than all that a scan
# decides.  So this is for what a scan finds out again where it is lost, and for nothing that protects a table.

Record = TypeVar("Record")

# Eight requests to DynamoDB, or a commit to SQLite that takes no longer than one of a single row.
_AT_ONCE = 200


class Gathered(Generic[Record]):
    """Records of several threads; those that no :meth:`write_rest` has followed are lost with the process."""

    def __init__(self, write: Callable[[Sequence[Record]], None]) -> None:
        """``write`` is called with some records at a time, by whoever adds the last of them."""
        self._write = write
        self._lock = Lock()
        self._waiting: list[Record] = []

    def add(self, record: Record) -> None:
        """Keep a record, and write those that have gathered if they are enough; raises what ``write`` raises."""
        with self._lock:
            self._waiting.append(record)
            is_enough = len(self._waiting) >= _AT_ONCE
        if is_enough:
            self.write_rest()

    def write_rest(self) -> None:
        """Write what has gathered; raises what ``write`` raises, and then these records are lost."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        if taken:
            self._write(taken)


# The record of an operation that has nothing more to do at a snapshot.
#
# Detection counts what came since (:mod:`icekeeper.detection.look_again`).  The record is kept as JSON; one that cannot
# be read counts as none, so that a pass looks once more.


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSince:
    """When and where an operation had nothing more to do."""

    snapshot_id: int
    """The head that was planned on, or the one that the operation left."""
    table_digest: str
    """That of the table then (:mod:`icekeeper.metadata.document`)."""
    looked_ms: int
    """When it was planned, in epoch milliseconds."""
    run_id: str | None = None
    """A run whose own rewrites after that snapshot bring nothing new."""


def idle_since_text(records: Mapping[str, IdleSince]) -> str:
    """The records by operation, as JSON with sorted keys."""
    return json.dumps({name: asdict(one) for name, one in records.items()}, sort_keys=True)


def read_idle_since(text: str | None) -> dict[str, IdleSince]:
    """What :func:`idle_since_text` wrote, without what cannot be read."""
    try:
        found = json.loads(text or "{}")
        records = {str(name): _record(one) for name, one in found.items()}
    except (AttributeError, RecursionError, TypeError, ValueError):
        return {}
    return {name: one for name, one in records.items() if one is not None}


def _record(values: Any) -> IdleSince | None:
    try:
        return IdleSince(
            snapshot_id=int(values["snapshot_id"]),
            table_digest=str(values["table_digest"]),
            looked_ms=int(values["looked_ms"]),
            run_id=None if values["run_id"] is None else str(values["run_id"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


# Lake stats: how every table looked when last seen, maintained or not.


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeStats:
    """One table's health: counters by metric name (``lake_data_files``, …) and warnings by kind, in words."""

    identity: TableIdentity
    observed_ms: int
    snapshot_id: int | None
    counters: Mapping[str, int | float]
    warnings: Mapping[str, str] = field(default_factory=dict)
    """Kind (``delete_debt``, ``manifest_sprawl``, …) → the sentence for people."""
    policy: Mapping[str, object] = field(default_factory=dict)
    """The settings in force that are not the defaults: key → ``{"source": …, "value": …}``, as JSON."""


class LakeStatsStore(Protocol):
    """Each method raises StorageError when the store fails."""

    def record(self, *stats: LakeStats) -> None:
        """Replace the stats of these tables; when that fails, those of some may be replaced."""
        ...

    def of_table(self, identity: TableIdentity) -> LakeStats | None: ...

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[LakeStats]:
        """The stats of every table of a catalog that was ever seen, ordered by name; read in few requests."""
        ...

    def forget(self, identity: TableIdentity) -> None:
        """Remove the stats of a table that is gone."""
        ...


# Lists of files that a run is going to delete, so that a later run can finish after a crash.
#
# A list is written before the commit that unreferences its files.  It is a hint and no permission: the run that
# finishes checks every path against the table's newest references.  Source: iceberg 7937, an expiry that resumes
# (rule: record-deletions-before-commit).


class PendingDeletionStore(Protocol):
    """The part of a state store for unfinished deletions; :class:`StateStore` says how its methods fail."""

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        """Record the files of one list, replacing what was recorded under its name.

        When the call fails, part of the files may be recorded.
        """
        ...

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        """The names of the lists that are not forgotten, in order."""
        ...

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        """The files of one list, some at a time, in the order of their recording."""
        ...

    def forget(self, identity: TableIdentity, name: str) -> None:
        """Remove a list, if it is there."""
        ...


# The quarantine ledger: how often passes over a table saw each orphan (``orphan_min_sightings``)
# (rule: limit-orphans-per-sweep).


@dataclass(frozen=True, slots=True)
class Sighting:
    """How often an orphan was seen, since when (epoch milliseconds), and by which run last."""

    path: str
    count: int
    first_seen_ms: int
    run_id: str


class QuarantineLedger(Protocol):
    """Entries by table and path; each method raises StorageError when the store cannot be used.

    Paths come in millions: they are streamed, and a store writes them in batches.
    """

    def see(self, identity: TableIdentity, run_id: str, paths: Iterable[str], *, now_ms: int) -> None:
        """Count one sighting of each path; a run that sees a path again is not counted twice."""
        ...

    def counts(self, identity: TableIdentity, run_id: str, paths: Iterable[str]) -> Mapping[str, int]:
        """In how many other runs than this one each path was seen; paths never seen are left out."""
        ...

    def forget_unseen(self, identity: TableIdentity, run_id: str) -> None:
        """Drop every entry that this run did not see: the file is no orphan any more, or gone."""
        ...

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        """Drop the entries of paths, which were deleted."""
        ...

    def sightings(self, identity: TableIdentity) -> Iterator[Sighting]:
        """Every entry of a table, by path."""
        ...


# Requests for a pass outside the schedule: at most one per copy of a table, a new one replaces it
# (rule: one-request-one-claim).

MAX_SETTINGS = 16 * 1024
"""Bytes of a request's settings as JSON text; failures take most of a payload when there are any
(platform: step-functions-payload-limit)."""
# Names in Glue and S3 Tables have at most 255 characters a level, of which Iceberg knows many.
_LONGEST_NAME = 4096
LAST_MS = 253_402_300_799_999
"""The end of the year 9999, in epoch milliseconds: no later time can be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRequest:
    """Somebody wants a pass over a table; ``settings`` hold for that pass only (``operations`` among them)."""

    identity: TableIdentity
    requested_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)


class RequestStore(Protocol):
    """Every method is atomic; each raises StorageError when the store fails."""

    def file(self, request: MaintenanceRequest) -> None:
        """Record a request, replacing the one that is pending for the table."""
        ...

    def pending(self) -> tuple[MaintenanceRequest, ...]:
        """The requests of all catalogs that no pass has claimed, oldest first.

        A record that :func:`stored_request` does not understand is passed over, with a line in the log
        (rule: skip-malformed-requests).
        """
        ...

    def claim(self, request: MaintenanceRequest) -> bool:
        """Remove this very request; false when it was claimed already, or replaced by a newer one, which stays."""
        ...


def requested_table(text: str) -> TableName:
    """The name of a table as a request gives it.

    Raises:
        ValueError: it is no table name, longer than 4,096 characters, or has characters that do not print.
    """
    if len(text) > _LONGEST_NAME:
        raise ValueError(f"a table name of {len(text)} characters is longer than {_LONGEST_NAME}")
    if hidden := next((one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")), None):
        raise ValueError(f"a table name cannot have the character U+{ord(hidden):04X}, which does not print")
    return TableName.parse(text)


def stored_request(record: Mapping[str, object], is_filed_under: Callable[[str], bool]) -> MaintenanceRequest:
    """The request of a record: its fields by the names of the state table's attributes.

    Whoever may ask for a pass can write any record.  So each value is checked, and the record must be filed under a key
    of its table: a request that its claim does not find would be served for ever.

    Raises:
        ValueError: the record is not as :meth:`RequestStore.file` writes it; the message says how.
    """
    catalog, warehouse, table, uuid, location, settings = (
        _text(record, name) for name in ("catalog", "warehouse", "table_name", "uuid", "location", "settings")
    )
    requested_ms = record.get("requested_ms")
    if not (isinstance(requested_ms, int) and not isinstance(requested_ms, bool) and 0 <= requested_ms <= LAST_MS):
        raise ValueError("its requested_ms is no time in milliseconds")
    identity = TableIdentity(catalog, warehouse, requested_table(table), uuid, location)
    if not is_filed_under(identity.lease_key):
        raise ValueError("it is not filed under the key of its table")
    return MaintenanceRequest(identity=identity, requested_ms=requested_ms, settings=_settings(settings))


def _text(record: Mapping[str, object], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise ValueError(f"its {name} is no text")
    if name != "settings" and len(value) > _LONGEST_NAME:
        raise ValueError(f"its {name} is longer than {_LONGEST_NAME} characters")
    value.encode()  # a lone surrogate fits no key and no file
    return value


def _settings(text: str) -> dict[str, str]:
    if len(text) > MAX_SETTINGS:
        raise ValueError(f"its settings are longer than {MAX_SETTINGS} bytes")
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("its settings are nested too deeply") from None
    if not (isinstance(found, dict) and all(isinstance(value, str) for value in found.values())):
        raise ValueError("its settings are no object of texts")
    if json.dumps(found, sort_keys=True) != text:
        raise ValueError("its settings are not written as Icekeeper writes them, by which a claim finds them")
    for part in (*found, *found.values()):
        part.encode()
    return found


# When each named schedule of a table last ran: one record per copy of the table and schedule
# (rule: table-identity-is-its-uuid).


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    """The last turn of a schedule in which no operation failed; times in epoch milliseconds."""

    schedule: str
    """A name that begins with ``#`` is none of a policy: the last sweep for orphans, for example."""
    counted_ms: int
    """From when the next turn is counted: it is due one interval later."""
    finished_ms: int
    snapshot_id: int | None
    """The head before the turn."""
    fingerprint: str
    """Digest of the settings that held for it."""
    idle: bool
    """Whether it found nothing to do."""


class ScheduleStore(Protocol):
    """Each method raises StorageError when the store fails."""

    def record(self, identity: TableIdentity, run: ScheduleRun) -> None:
        """Replace the schedule's record, also one that a clock which was ahead has left."""
        ...

    def record_all(self, runs: Iterable[tuple[TableIdentity, ScheduleRun]]) -> None:
        """As :meth:`record`, of many tables; of two for one table and schedule the last stays.

        When that fails, some may be recorded.
        """
        ...

    def of_table(self, identity: TableIdentity) -> Mapping[str, ScheduleRun]:
        """The records of one copy of a table, by schedule."""
        ...


# Staged loads: files that a writer puts into a table's location before a commit names them, and how the load ended.
#
# As in Modak, staged files awaiting adoption must never be deleted (rule: staged-files-stay).  Files of failed loads
# are deleted as the record names them, never by listing (rule: clean-failed-loads-from-record).


class LoadOrigin(StrEnum):
    """Who wrote the files: a user's load, or a rewrite of Icekeeper's."""

    USER = "user"
    JOB = "job"


class LoadState(StrEnum):
    """``pending``: a commit may name the files any time; ``adopted``: one has; ``failed``: none will."""

    PENDING = "pending"
    ADOPTED = "adopted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLoad:
    """The record of one load; its files, which may be very many, are asked for separately.

    A job's files are recorded before they are written: an entry is a path, or stands for the files of all attempts at a
    task (``icekeeper.storage.paths``).

    ``name`` is unique per table.  Times are epoch milliseconds; ``changed_ms`` is when state or files last changed.
    """

    identity: TableIdentity
    name: str
    origin: LoadOrigin = LoadOrigin.USER
    state: LoadState = LoadState.PENDING
    prefixes: tuple[str, ...] = ()
    """Folders whose files are all of this load."""
    changed_ms: int
    expires_ms: int | None = None
    """Of a rewrite: it counts as dead unless it prolongs its record before this moment; ``None`` for users' loads."""
    file_count: int = 0

    def is_protected(self, now_ms: int) -> bool:
        """Whether its files must not be deleted."""
        return self.state is not LoadState.FAILED and not self.is_dead(now_ms)

    def is_dead(self, now_ms: int) -> bool:
        """Whether it is a pending job that stopped prolonging its record: its process is gone."""
        return self.state is LoadState.PENDING and self.expires_ms is not None and now_ms >= self.expires_ms

    def can_be_cleaned(self, now_ms: int, grace_ms: int) -> bool:
        """Whether it failed at least ``grace_ms`` ago; a clock that was set back makes it younger, which is safe."""
        since = self.failed_since(now_ms)
        return since is not None and now_ms - since >= grace_ms

    def failed_since(self, now_ms: int) -> int | None:
        """The epoch millisecond at which it failed, or a dead job expired; ``None`` when neither is so."""
        if self.state is LoadState.FAILED:
            return self.changed_ms
        return self.expires_ms if self.is_dead(now_ms) else None


class StagingStore(Protocol):
    """The part of a state store for staged loads; :class:`StateStore` says how its methods fail."""

    def stage(self, load: StagedLoad, files: Iterable[str]) -> StagedLoad:
        """Record a load, or add to the one of its name: everything but its files is replaced, files are added.

        Returns the record as it is now.  When the call fails, part of the files may be recorded: they are protected.
        """
        ...

    def loads(self, identity: TableIdentity) -> tuple[StagedLoad, ...]:
        """Every load of a table that is not forgotten, ordered by name."""
        ...

    def files(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        """The files of one load, some at a time, in the order of their recording."""
        ...

    def change(self, before: StagedLoad, after: StagedLoad) -> bool:
        """Replace state and times of a record, if it is still as in ``before``; else return false."""
        ...

    def forget(self, load: StagedLoad) -> bool:
        """Remove a record and its list of files, if it is still as in ``load``; else return false."""
        ...


# Data and delete files that a pass could not read, so that the next ones leave them alone for a while
# (rule: retry-unreadable-files-weekly).

RETRY_MS = 7 * 24 * HOUR_MS
"""After so long a file is tried again: somebody may have restored it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableFile:
    """A file that was not found, or could not be read as rows of the table.  Never one whose store failed."""

    path: str
    why: str
    """A sentence that names the file."""
    schema_digest: str
    """That of the schema and name mapping it was read by (:func:`icekeeper.metadata.document.schema_digest`)."""
    tried_ms: int
    """When, in epoch milliseconds."""

    def waits(self, schema_digest: str, now_ms: int) -> bool:
        """Whether it is not yet to be tried again: not within a week, unless it would be read otherwise now."""
        return self.schema_digest == schema_digest and 0 <= now_ms - self.tried_ms < RETRY_MS


class UnreadableFileStore(Protocol):
    """Files by copy of a table and path; each method raises StorageError when the store fails."""

    def record(self, identity: TableIdentity, files: Iterable[UnreadableFile]) -> None:
        """Add these files, which have different paths, replacing those known by the same paths."""
        ...

    def of_table(self, identity: TableIdentity) -> Mapping[str, UnreadableFile]:
        """The files of one copy of a table, by path, in the order of the paths."""
        ...

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        """Remove files, as far as they are known."""
        ...


# What the deployment used that AWS bills, hour by hour; ``icekeeper cost`` makes a month's bill of it.


@dataclass(frozen=True, slots=True)
class HourOfUse:
    """What was used within one hour, by all functions and jobs."""

    hour: str
    """Its beginning in UTC: ``2026-11-22T15``."""
    amounts: Mapping[str, int]
    """By the values of :class:`icekeeper.machine.metering.Amount`."""
    metrics: frozenset[str] = frozenset()
    """The names of CloudWatch's metrics without a table that were written; each is billed once an hour."""


class UsageStore(Protocol):
    """Each method raises StorageError when the store fails."""

    def add(self, used: HourOfUse) -> None:
        """Add to what is recorded of the hour; several processes may do so at once."""
        ...

    def between(self, first: str, last: str) -> tuple[HourOfUse, ...]:
        """The hours from ``first`` to ``last``, both included, in which something was used; in order."""
        ...


def hour_of(time_ms: int) -> str:
    """The hour that a time (epoch milliseconds) lies in."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H")


def hours_between(first: str, last: str) -> int:
    """How many hours after one hour another one begins."""
    begin, end = (datetime.strptime(f"{hour}+0000", "%Y-%m-%dT%H%z") for hour in (first, last))
    return int((end - begin).total_seconds()) // 3600


# What Icekeeper remembers between passes: the journal, pins, staged loads, and what the last pass found.
#
# There are two stores: a SQLite file on a laptop, a shared DynamoDB table in a fleet; one contract suite tests both.

UNTIL_REMOVED_MS = 253_402_300_799_000
"""The end of a pin that only a person removes: the last second of the year 9999."""
OVERLAP_MS = 24 * HOUR_MS
"""Passes whose reports cross end within this time; one recorded later still is of a clock that was ahead
(rule: future-records-bar-nothing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """One pass in the journal; times in epoch milliseconds, ``status`` and ``summary`` as the pass reported them."""

    identity: TableIdentity
    run_id: str
    started_ms: int
    finished_ms: int
    status: str
    summary: str
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    engine: str


class PinKind(StrEnum):
    """Who holds a pin: a reader who asked for it, a rewrite while it runs, or a branch or tag that a catalog dropped
    together with its snapshot."""

    READER = "reader"
    JOB = "job"
    LOST_REF = "lost-ref"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Keeps a snapshot, all newer ones, and a metadata file from being removed for a while.

    ``name`` is unique per table; ``expires_ms`` is the first epoch millisecond at which the pin no longer holds.
    """

    identity: TableIdentity
    name: str
    snapshot_id: int
    metadata_location: str
    expires_ms: int
    kind: PinKind = PinKind.READER
    tag: str | None = None
    """The Iceberg tag that was written for it, for engines that do not know Icekeeper's pins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSeen:
    """What the last pass over a table saw: its head, the policy's fingerprint, and whether it had nothing to do."""

    snapshot_id: int | None
    fingerprint: str
    finished_ms: int
    idle: bool
    idle_since: Mapping[str, IdleSince] = field(default_factory=dict)
    """By operation: where it had nothing more to do."""


@dataclass(frozen=True, slots=True)
class Glance:
    """All that detection needs to know of one table, read in one request."""

    pins: tuple[Pin, ...]
    last_seen: LastSeen | None
    loads: tuple[StagedLoad, ...]
    schedules: Mapping[str, ScheduleRun] = field(default_factory=dict)
    """The last turn of each schedule, by its name."""
    unreadable: Mapping[str, UnreadableFile] = field(default_factory=dict)
    """Files that passes could not read, by path."""


class StateStore(Protocol):
    """Every method may be called from several threads and processes at once; each raises StorageError when the
    store cannot be read or written."""

    @property
    def quarantine(self) -> QuarantineLedger: ...

    @property
    def staging(self) -> StagingStore: ...

    @property
    def pending_deletions(self) -> PendingDeletionStore: ...

    @property
    def leases(self) -> LeaseStore: ...

    @property
    def requests(self) -> RequestStore: ...

    @property
    def lake_stats(self) -> LakeStatsStore: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    @property
    def claims(self) -> ClaimStore: ...

    @property
    def unreadable_files(self) -> UnreadableFileStore: ...

    @property
    def cut_offs(self) -> CutOffStore: ...

    @property
    def usage(self) -> UsageStore: ...

    def kept_open(self) -> AbstractContextManager[None]:
        """Within the block, calls of this thread share what it costs to open the store; they mean the same."""
        ...

    def glance(self, identity: TableIdentity, *, now_ms: int) -> Glance:
        """The pins that hold at ``now_ms``, the last pass, staged loads, schedules' turns and unreadable files of a
        table."""
        ...

    def require_writable(self) -> None:
        """Raise StorageError if nothing can be recorded; called before a table is changed, and records nothing."""
        ...

    def record_pass(self, record: PassRecord) -> None:
        """Append a pass to the journal; the same run over the same table replaces its record."""
        ...

    def history(self, identity: TableIdentity, *, limit: int = 100) -> tuple[PassRecord, ...]:
        """The newest passes over a table, newest first."""
        ...

    def add_pin(self, pin: Pin) -> None:
        """Add a pin, or replace (prolong) the one of the same name."""
        ...

    def pins(self, identity: TableIdentity, *, now_ms: int) -> tuple[Pin, ...]:
        """The pins that hold at ``now_ms``, by name."""
        ...

    def remove_pin(self, identity: TableIdentity, name: str) -> bool:
        """Remove a pin; false when there was none of that name."""
        ...

    def remember(self, identity: TableIdentity, seen: LastSeen) -> None:
        """Record what a pass saw, unless one is recorded already that finished later, by at most ``OVERLAP_MS``."""
        ...

    def record_clustering(self, identity: TableIdentity, snapshot_id: int, recipe: str) -> None:
        """Record that all files which a snapshot added are clustered by a recipe (order or z-order, as text)."""
        ...

    def clustered_snapshots(self, identity: TableIdentity, recipe: str) -> frozenset[int]:
        """The snapshots recorded for a recipe, expired ones too: manifest entries keep their ids."""
        ...

    def last_seen(self, identity: TableIdentity) -> LastSeen | None:
        """What the last pass saw, ``None`` when none is known."""
        ...
