"""A fleet of tables on paper: writers every hour, the real detection, and passes by the operations' own planners."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.detection.assessor import Assessor, Observer, assessor
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.detection.proposal import Proposal
from icekeeper.detection.scan import Scanner
from icekeeper.machine.clock import HOUR_MS
from icekeeper.maintenance.begin_and_end_pass import DonePart, PassStart, record_outcome
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.policy import Operation, resolve
from icekeeper.policy.due import why_no_sweep
from icekeeper.policy.layers import Layer
from icekeeper.report.outcome import PassOutcome
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import StateStore
from support.paper_lives import LIVES, Life, Orphans, born
from support.paper_passes import Requests, carried_out_pass
from support.paper_table import PaperTable

START_MS = 1_760_000_000_000
_MINUTE_MS = 60_000
# A pass takes a minute, and as long as one machine needs to rewrite its bytes.
_PASS_MS, _REWRITTEN_PER_MS = _MINUTE_MS, 50 * 1024


@dataclass
class Tally:
    """What happened to the tables of one kind."""

    tables: int = 0
    proposed: int = 0
    useful: int = 0
    in_vain: Counter[str] = field(default_factory=Counter)
    """Reasons of proposals whose passes found nothing to do."""
    requests: Requests = field(default_factory=Requests)
    orphan_ages_ms: list[int] = field(default_factory=list)
    depths: list[float] = field(default_factory=list)
    worst_small: int = 0
    """Of one table."""
    worst_deletes: int = 0


@dataclass
class Member:
    """One table of the fleet."""

    kind: str
    name: TableName
    table: PaperTable
    orphans: Orphans
    busy_until_ms: int = 0

    @cached_property
    def uuid(self) -> str:
        return str(self.table.document["table-uuid"])

    def loaded(self) -> LoadedTable:
        """As a catalog would load it; the document is put together anew only when it has changed."""
        key = (self.table.sequence, len(self.table.snapshots))
        if self._made is None or self._made[0] != key:
            self._made = key, self.table.metadata
        return LoadedTable(self.name, self._made[1], f"m{key}", f"m{key}", {})

    _made: tuple[tuple[int, int], TableMetadata] | None = None


class PaperFleet:
    """Tables of all kinds, in one catalog, under one policy; :meth:`hour` lets an hour pass.

    With ``one_in`` only one table in so many is played, and limits that hold for all of them are as many times tighter.
    """

    name, warehouse, built_in_maintenance = "paper", "s3://lake/", None

    def __init__(
        self, state: StateStore, tables: int, settings: Mapping[str, str] | None = None, *, one_in: int = 1
    ) -> None:
        most = max(1, resolve([Layer("--set", settings or {})]).policy.max_jobs_per_detection // one_in)
        self.resolved = resolve([Layer("--set", {**(settings or {}), "max_jobs_per_detection": str(most)})])
        self.state = state
        self._one_in = one_in
        self.tallies = {kind: Tally() for kind in LIVES}
        self.members: dict[str, Member] = {}
        self._chance = random.Random(0)
        self._workers = [0] * self.resolved.policy.max_concurrent_jobs
        self._cursor: tuple[str, str] | None = None
        for number, (kind, life) in enumerate(_kinds(tables // one_in)):
            name = TableName.parse(f"ns.t{number:05d}")
            table = born(life, name.name, self.resolved.policy, START_MS)
            self.members[str(name)] = Member(kind, name, table, Orphans())
            self.tallies[kind].tables += 1

    def list_tables(self) -> Iterator[TableName]:
        return iter([member.name for member in self.members.values()])

    def load(self, table: TableName) -> LoadedTable:
        member = self.members[str(table)]
        self.tallies[member.kind].requests.add(gets=1)
        return member.loaded()

    def commit(self, base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        raise AssertionError("nothing commits through the catalog")

    def hour(self, number: int) -> None:
        """Writers write, detection proposes, and passes run as workers become free."""
        now_ms = START_MS + number * HOUR_MS
        for member in self.members.values():
            LIVES[member.kind].hour(member.table, member.orphans, number, now_ms, self._chance)
        for proposal in self._proposals(now_ms + _MINUTE_MS):
            free_ms = max(heapq.heappop(self._workers), now_ms + _MINUTE_MS)
            if free_ms < now_ms + HOUR_MS:  # else the next detection comes first
                free_ms = self._pass(self.members[proposal.table], proposal, free_ms)
            heapq.heappush(self._workers, free_ms)
        for member in self.members.values():
            tally = self.tallies[member.kind]
            tally.worst_small = max(tally.worst_small, member.table.small)
            tally.worst_deletes = max(tally.worst_deletes, len(member.table.deletes))

    def _proposals(self, now_ms: int) -> list[Proposal]:
        def assessor_of(catalog: Any, observe: Observer) -> Assessor:
            return assessor(
                catalog, resolve_policy=lambda loaded: self.resolved, store=self.state, now_ms=now_ms, observe=None
            )

        source = CatalogSource(self.name, lambda: self)
        report = Scanner(self.resolved.policy, self.state, now_ms, threads=1).scan([source], assessor_of, self._cursor)
        self._cursor = report.cursor
        if report.errors:
            raise AssertionError([skip.reason for skip in report.skipped if skip.is_error])
        found = [item.proposal for item in report.proposals]
        return [one for one in found if self.members[one.table].busy_until_ms <= now_ms]

    def _pass(self, member: Member, proposal: Proposal, now_ms: int) -> int:
        """Run one pass; returns when it ends."""
        tally, table = self.tallies[member.kind], member.table
        head = table.snapshots[-1]["snapshot-id"] if table.snapshots else None
        rewritten = table.rewritten
        identity = TableIdentity(self.name, self.warehouse, member.name, member.uuid, table.document["location"])
        operations = [one for one in self.resolved.policy.operations if self.resolved.runs(one)]
        turns = self.state.schedules.of_table(identity)
        if why_no_sweep(self.resolved, None, turns, identity.key, now_ms) is not None:
            operations = [one for one in operations if one is not Operation.REMOVE_ORPHANS]
        outcomes, ages, depth = carried_out_pass(table, member.orphans, now_ms, tally.requests, operations)
        ended_ms = now_ms + self._one_in * (_PASS_MS + (table.rewritten - rewritten) // _REWRITTEN_PER_MS)
        outcome = PassOutcome(
            table=str(member.name), catalog=self.name, run_id=f"r{now_ms}", dry_run=False, operations=tuple(outcomes)
        )
        part = DonePart(None, self.resolved.fingerprint())
        record_outcome(self.state, PassStart(identity, head, now_ms), outcome, [part], "paper", ended_ms)
        tally.proposed += 1
        tally.useful += not outcome.is_idle
        tally.orphan_ages_ms += ages
        tally.depths += [] if depth is None else [depth]
        if outcome.is_idle:
            tally.in_vain["; ".join(_in_short(reason) for reason in proposal.reasons)] += 1
        member.busy_until_ms = ended_ms
        return ended_ms


def _in_short(reason: str) -> str:
    """A reason without its numbers."""
    return " ".join(word for word in reason.split() if not any(letter.isdigit() for letter in word))


def _kinds(tables: int) -> Iterator[tuple[str, Life]]:
    """So many tables, of each kind at least one, in the shares that a thousand have."""
    whole = sum(life.of_a_thousand for life in LIVES.values())
    counts: Mapping[str, int] = {kind: max(1, tables * life.of_a_thousand // whole) for kind, life in LIVES.items()}
    for kind, life in LIVES.items():
        yield from ((kind, life) for _ in range(counts[kind]))
