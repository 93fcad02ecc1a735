"""What Icekeeper remembers between passes: the journal, pins, staged loads, and what the last pass found.

There are two stores: a SQLite file on a laptop, a shared DynamoDB table in a fleet; one contract suite tests both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.claims import ClaimStore
from icekeeper.state.cut_offs import CutOffStore
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStatsStore
from icekeeper.state.leases import LeaseStore
from icekeeper.state.pending_deletions import PendingDeletionStore
from icekeeper.state.quarantine import QuarantineLedger
from icekeeper.state.requests import RequestStore
from icekeeper.state.schedules import ScheduleRun, ScheduleStore
from icekeeper.state.slack import Slack
from icekeeper.state.staging import StagedLoad, StagingStore
from icekeeper.state.unreadable_files import UnreadableFile, UnreadableFileStore
from icekeeper.state.usage import UsageStore

__all__ = ["OVERLAP_MS", "UNTIL_REMOVED_MS", "Glance", "LastSeen", "PassRecord", "Pin", "PinKind", "StateStore"]

UNTIL_REMOVED_MS = 253_402_300_799_000
"""The end of a pin that only a person removes: the last second of the year 9999."""
OVERLAP_MS = 24 * HOUR_MS
"""Passes whose reports cross end within this time; one recorded later still is of a clock that was ahead (rule 170)."""


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
    slack: Mapping[str, Slack] = field(default_factory=dict)
    """By operation: what must come before it can have anything to do, where that is known."""


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
