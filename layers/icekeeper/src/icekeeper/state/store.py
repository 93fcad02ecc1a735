"""The records that Icekeeper keeps between passes, and the interface of a state store.

There are two stores: a SQLite file for one machine, and a DynamoDB table for a fleet.  One contract suite tests both.
Every method of a store may be called from several threads and processes at once, and raises StorageError when the store
cannot be read or written.  Times are epoch milliseconds.
"""

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

Record = TypeVar("Record")

# Eight requests to DynamoDB, or one SQLite transaction, which takes as long as one for a single row.
_AT_ONCE = 200


class Gathered(Generic[Record]):
    """Collects records of several threads and writes many at a time.

    One write for each of ten thousand tables would cost more than the rest of a scan.  Records that are not written yet
    are lost with the process.  So this is only for what the next scan finds again, never for what protects a table
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
class IdleSince:
    """When and at which snapshot an operation had nothing to do; detection counts what came since."""

    snapshot_id: int
    """The head that was planned on, or the head after the operation."""
    table_digest: str
    """The table's digest then (:mod:`icekeeper.metadata.document`)."""
    looked_ms: int
    """When the operation was planned."""
    run_id: str | None = None
    """Rewrites of this run after that snapshot do not count as changes."""


def idle_since_text(records: Mapping[str, IdleSince]) -> str:
    """The records by operation, as JSON with sorted keys."""
    return json.dumps({name: asdict(one) for name, one in records.items()}, sort_keys=True)


def read_idle_since(text: str | None) -> dict[str, IdleSince]:
    """Parse the text of :func:`idle_since_text`; a malformed record counts as none, so that a pass looks again."""
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


class LakeStatsStore(Protocol):
    """The health of every table that was ever seen, maintained or not."""

    def record(self, *stats: LakeStats) -> None:
        """Replace the stats of these tables; on an error, some may be replaced."""
        ...

    def of_table(self, identity: TableIdentity) -> LakeStats | None: ...

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[LakeStats]:
        """The stats of all tables of a catalog, ordered by name; uses few requests."""
        ...

    def forget(self, identity: TableIdentity) -> None: ...


class PendingDeletionStore(Protocol):
    """Lists of files that a run is going to delete, so that a later run can finish after a crash.

    A list is written before the commit that unreferences its files.  It does not allow a deletion: the run that
    finishes checks every path against the table's newest references.  Source: iceberg 7937, an expiry that resumes
    (rule: record-deletions-before-commit).
    """

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        """Record the files of a list, replacing the list of this name; on an error, some may be recorded."""
        ...

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        """The names of the lists, in order."""
        ...

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        """The files of a list in batches, in the order in which they were recorded."""
        ...

    def forget(self, identity: TableIdentity, name: str) -> None:
        """Remove a list, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Sighting:
    """How often an orphan was seen, since when, and by which run last."""

    path: str
    count: int
    first_seen_ms: int
    run_id: str


class QuarantineLedger(Protocol):
    """How often passes over a table saw each orphan (``orphan_min_sightings``) (rule: limit-orphans-per-sweep).

    There may be millions of paths: they are streamed, and a store writes them in batches.
    """

    def see(self, identity: TableIdentity, run_id: str, paths: Iterable[str], *, now_ms: int) -> None:
        """Count one sighting of each path; repeated sightings of one run count once."""
        ...

    def counts(self, identity: TableIdentity, run_id: str, paths: Iterable[str]) -> Mapping[str, int]:
        """In how many runs other than this one each path was seen, without paths that were never seen."""
        ...

    def forget_unseen(self, identity: TableIdentity, run_id: str) -> None:
        """Remove all entries that this run did not see: the file is not an orphan any more, or is gone."""
        ...

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        """Remove the entries of deleted paths."""
        ...

    def sightings(self, identity: TableIdentity) -> Iterator[Sighting]:
        """All entries of a table, by path."""
        ...


MAX_SETTINGS = 16 * 1024
"""Bytes of a request's settings as JSON text: failures need most of a payload
(platform: step-functions-payload-limit)."""
# A level of a name has at most 255 characters in Glue and S3 Tables; Iceberg allows many levels.
_LONGEST_NAME = 4096
LAST_MS = 253_402_300_799_999
"""The end of the year 9999 in epoch milliseconds; Python cannot show a later time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRequest:
    """A request for a pass outside the schedule; ``settings`` (``operations`` among them) are for that pass only."""

    identity: TableIdentity
    requested_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)


class RequestStore(Protocol):
    """At most one pending request per copy of a table (rule: one-request-one-claim); every method is atomic."""

    def file(self, request: MaintenanceRequest) -> None:
        """Record a request, replacing the table's pending one."""
        ...

    def pending(self) -> tuple[MaintenanceRequest, ...]:
        """The unclaimed requests of all catalogs, oldest first.

        A record for which :func:`stored_request` raises is logged and skipped (rule: skip-malformed-requests).
        """
        ...

    def claim(self, request: MaintenanceRequest) -> bool:
        """Remove exactly this request; false if it was claimed already, or replaced by a newer one, which stays."""
        ...


def requested_table(text: str) -> TableName:
    """Parse the table name of a request.

    Raises:
        ValueError: it is not a table name, is longer than 4,096 characters, or has characters that do not print.
    """
    if len(text) > _LONGEST_NAME:
        raise ValueError(f"a table name of {len(text)} characters is longer than {_LONGEST_NAME}")
    if hidden := next((one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")), None):
        raise ValueError(f"a table name cannot have the character U+{ord(hidden):04X}, which does not print")
    return TableName.parse(text)


def stored_request(record: Mapping[str, object], is_filed_under: Callable[[str], bool]) -> MaintenanceRequest:
    """The request of a record, whose fields are named as the attributes in the state table.

    Anybody who may request a pass can write any record.  So each value is checked, and the record must be filed under
    the key of its table: a request that ``claim`` does not find would be served forever.

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
    value.encode()  # raises for a lone surrogate, which no key or file can hold
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    """The last run of a schedule in which no operation failed."""

    schedule: str
    """A name that starts with ``#`` is not from a policy: for example, the last sweep for orphans."""
    counted_ms: int
    """The next run is due one interval after this time."""
    finished_ms: int
    snapshot_id: int | None
    """The head before the run."""
    fingerprint: str
    """Digest of its settings."""
    idle: bool
    """Whether it found nothing to do."""


class ScheduleStore(Protocol):
    """When each schedule of a copy of a table last ran (rule: table-identity-is-its-uuid)."""

    def record(self, identity: TableIdentity, run: ScheduleRun) -> None:
        """Replace the schedule's record, also one with a later time: a clock that was ahead has written it."""
        ...

    def record_all(self, runs: Iterable[tuple[TableIdentity, ScheduleRun]]) -> None:
        """As :meth:`record`, for many tables; of several for one table and schedule the last is kept.

        On an error, some may be recorded.
        """
        ...

    def of_table(self, identity: TableIdentity) -> Mapping[str, ScheduleRun]:
        """The records of one copy of a table, by schedule."""
        ...


class LoadOrigin(StrEnum):
    """Who wrote the files: a user's load, or a rewrite of Icekeeper."""

    USER = "user"
    JOB = "job"


class LoadState(StrEnum):
    """``pending``: a commit may still add the files; ``adopted``: one has; ``failed``: none will."""

    PENDING = "pending"
    ADOPTED = "adopted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLoad:
    """The record of one load: files that a writer puts into a table's location before a commit adds them.

    The files are read separately, because there may be very many.  A job's files are recorded before they are written:
    an entry is a path, or stands for the files of all attempts of a task (``icekeeper.storage.paths``).

    ``name`` is unique per table; ``changed_ms`` is when state or files last changed.
    """

    identity: TableIdentity
    name: str
    origin: LoadOrigin = LoadOrigin.USER
    state: LoadState = LoadState.PENDING
    prefixes: tuple[str, ...] = ()
    """Folders whose files all belong to this load."""
    changed_ms: int
    expires_ms: int | None = None
    """When a rewrite counts as dead unless it prolongs its record; ``None`` for users' loads."""
    file_count: int = 0

    def is_protected(self, now_ms: int) -> bool:
        """Whether its files must not be deleted."""
        return self.state is not LoadState.FAILED and not self.is_dead(now_ms)

    def is_dead(self, now_ms: int) -> bool:
        """Whether it is a pending job that stopped prolonging its record: its process is gone."""
        return self.state is LoadState.PENDING and self.expires_ms is not None and now_ms >= self.expires_ms

    def can_be_cleaned(self, now_ms: int, grace_ms: int) -> bool:
        """Whether it failed at least ``grace_ms`` ago; after a clock was set back it seems younger, which is safe."""
        since = self.failed_since(now_ms)
        return since is not None and now_ms - since >= grace_ms

    def failed_since(self, now_ms: int) -> int | None:
        """When it failed, or expired as a dead job; ``None`` if neither."""
        if self.state is LoadState.FAILED:
            return self.changed_ms
        return self.expires_ms if self.is_dead(now_ms) else None


class StagingStore(Protocol):
    """As in Modak, staged files that await adoption must never be deleted (rule: staged-files-stay).

    Files of failed loads are deleted by their record, never by listing (rule: clean-failed-loads-from-record).
    """

    def stage(self, load: StagedLoad, files: Iterable[str]) -> StagedLoad:
        """Record a load, or change the one of its name: files are added, everything else is replaced.

        Returns the record as it is now.  On an error, some files may be recorded: they are protected.
        """
        ...

    def loads(self, identity: TableIdentity) -> tuple[StagedLoad, ...]:
        """All loads of a table, ordered by name."""
        ...

    def files(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        """The files of a load in batches, in the order in which they were recorded."""
        ...

    def change(self, before: StagedLoad, after: StagedLoad) -> bool:
        """Replace state and times of a record if it still equals ``before``; else return false."""
        ...

    def forget(self, load: StagedLoad) -> bool:
        """Remove a record and its files if it still equals ``load``; else return false."""
        ...


RETRY_MS = 7 * 24 * HOUR_MS
"""After this time an unreadable file is tried again: somebody may have restored it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableFile:
    """A data or delete file that was not found or could not be read as rows; never one whose store failed."""

    path: str
    why: str
    """A sentence that names the file."""
    schema_digest: str
    """Digest of the schema and name mapping (:func:`icekeeper.metadata.document.schema_digest`) of the attempt."""
    tried_ms: int

    def waits(self, schema_digest: str, now_ms: int) -> bool:
        """Whether it must not be tried again yet: for a week, unless schema or name mapping changed."""
        return self.schema_digest == schema_digest and 0 <= now_ms - self.tried_ms < RETRY_MS


class UnreadableFileStore(Protocol):
    """Files that passes could not read and skip for a week, by table copy (rule: retry-unreadable-files-weekly)."""

    def record(self, identity: TableIdentity, files: Iterable[UnreadableFile]) -> None:
        """Add files, whose paths must differ, replacing records of the same paths."""
        ...

    def of_table(self, identity: TableIdentity) -> Mapping[str, UnreadableFile]:
        """The files of one copy of a table by path, ordered by path."""
        ...

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        """Remove the records of these paths that exist."""
        ...


@dataclass(frozen=True, slots=True)
class HourOfUse:
    """What all functions and jobs used within one hour."""

    hour: str
    """Its start in UTC: ``2026-11-22T15``."""
    amounts: Mapping[str, int]
    """By the values of :class:`icekeeper.machine.metering.Amount`."""
    metrics: frozenset[str] = frozenset()
    """The names of the CloudWatch metrics without a table that were written; each is billed once an hour."""


class UsageStore(Protocol):
    """What the deployment used that AWS bills, hour by hour, for ``icekeeper cost``."""

    def add(self, used: HourOfUse) -> None:
        """Add to the record of the hour; several processes may do so at once."""
        ...

    def between(self, first: str, last: str) -> tuple[HourOfUse, ...]:
        """The recorded hours from ``first`` to ``last``, both included, in order."""
        ...


def hour_of(time_ms: int) -> str:
    """The hour of a time, as in :attr:`HourOfUse.hour`."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H")


def hours_between(first: str, last: str) -> int:
    """How many hours ``last`` is after ``first``."""
    begin, end = (datetime.strptime(f"{hour}+0000", "%Y-%m-%dT%H%z") for hour in (first, last))
    return int((end - begin).total_seconds()) // 3600


UNTIL_REMOVED_MS = 253_402_300_799_000
"""The expiry of a pin that only a person removes: the last second of the year 9999."""
OVERLAP_MS = 24 * HOUR_MS
"""Concurrent passes may report in another order than they ended, within this time.  A record that is later by more is
from a clock that was ahead (rule: future-records-bar-nothing)."""


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
    """What the last pass over a table saw: the head, the policy's fingerprint, and whether it had nothing to do."""

    snapshot_id: int | None
    fingerprint: str
    finished_ms: int
    idle: bool
    idle_since: Mapping[str, IdleSince] = field(default_factory=dict)
    """By operation."""


@dataclass(frozen=True, slots=True)
class Glance:
    """All state of one table that detection needs, read in one request."""

    pins: tuple[Pin, ...]
    last_seen: LastSeen | None
    loads: tuple[StagedLoad, ...]
    schedules: Mapping[str, ScheduleRun] = field(default_factory=dict)
    """By the schedule's name."""
    unreadable: Mapping[str, UnreadableFile] = field(default_factory=dict)
    """By path."""


class StateStore(Protocol):
    """All records: the journal of passes, pins, what the last pass saw, and the stores above."""

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
        """Inside the block, calls of this thread open the store only once."""
        ...

    def glance(self, identity: TableIdentity, *, now_ms: int) -> Glance:
        """Read the state of a table for detection, with the pins that hold at ``now_ms``."""
        ...

    def require_writable(self) -> None:
        """Raise StorageError if nothing can be recorded; called before a table is changed."""
        ...

    def record_pass(self, record: PassRecord) -> None:
        """Add a pass to the journal, replacing a record of the same run and table."""
        ...

    def history(self, identity: TableIdentity, *, limit: int = 100) -> tuple[PassRecord, ...]:
        """The newest passes over a table, newest first."""
        ...

    def add_pin(self, pin: Pin) -> None:
        """Add a pin, or replace the one of the same name."""
        ...

    def pins(self, identity: TableIdentity, *, now_ms: int) -> tuple[Pin, ...]:
        """The pins that hold at ``now_ms``, by name."""
        ...

    def remove_pin(self, identity: TableIdentity, name: str) -> bool:
        """Remove a pin; false if there is none of that name."""
        ...

    def remember(self, identity: TableIdentity, seen: LastSeen) -> None:
        """Record what a pass saw, unless the stored pass finished later by at most ``OVERLAP_MS``."""
        ...

    def record_clustering(self, identity: TableIdentity, snapshot_id: int, recipe: str) -> None:
        """Record that all files that a snapshot added are clustered by a recipe (order or z-order, as text)."""
        ...

    def clustered_snapshots(self, identity: TableIdentity, recipe: str) -> frozenset[int]:
        """The snapshots recorded for a recipe, expired ones too: manifest entries keep their ids."""
        ...

    def last_seen(self, identity: TableIdentity) -> LastSeen | None:
        """What the last pass saw; ``None`` if none is known."""
        ...
