"""A fleet of tables on paper: writers, the real detection, and passes by the real planners."""

from __future__ import annotations

import heapq
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.detection.proposal import Proposal
from icekeeper.detection.scan import Scanner
from icekeeper.machine.clock import HOUR_MS
from icekeeper.maintenance.pass_steps import PassStart, record_outcome
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import (
    CatalogId,
    FileContent,
    LiveEntry,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Nothing,
    PartitionFieldSummary,
    TableName,
)
from icekeeper.operations.compaction.terms.recipe import choose_recipe
from icekeeper.operations.manifests.plan_manifests import plan_manifests
from icekeeper.operations.position_deletes.plan_merges import plan_position_deletes
from icekeeper.policy import Operation, Policy, resolve
from icekeeper.policy.layers import Layer
from icekeeper.policy.sweep_rhythm import why_no_sweep
from icekeeper.report.outcome import OperationOutcome, PassOutcome, skipped, succeeded
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import StateStore
from support.paper_table import MB, ROW_BYTES, Arrival, PaperTable
from support.plans import manifest, plan_expiry
from support.tables import new_document

# What writers do to the tables of a fleet on paper, by kind, and how many of a thousand are of each.

KB = 1024
_BY_P = [{"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}]}]
_BY_ID = [
    {
        "order-id": 1,
        "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
    }
]


@dataclass
class Orphans:
    """Files that crashes left, in groups of one time."""

    groups: list[tuple[int, int]] = field(default_factory=list)
    """(epoch milliseconds, number of files)."""

    @property
    def count(self) -> int:
        return sum(files for _, files in self.groups)


Hour = Callable[[PaperTable, Orphans, int, int, random.Random], None]
"""What happens to a table in an hour: the table, its orphans, the hour since the beginning, its time, chance."""


@dataclass(frozen=True)
class Life:
    """One kind of table."""

    of_a_thousand: int
    hour: Hour
    begins_with: tuple[int, int] = (0, 0)
    """Files that are there at first, and their bytes."""
    document: dict[str, Any] = field(default_factory=dict)


def born(life: Life, name: str, policy: Policy, start_ms: int) -> PaperTable:
    """A new table of a kind."""
    document = new_document(f"s3://lake/{name}", 2, **life.document)
    table = PaperTable(policy, document)
    files, size = life.begins_with
    table.write(start_ms - HOUR_MS, [Arrival(0, size)] * files)
    table.written = 0
    return table


def _streaming(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    table.write(at_ms, [Arrival(0, chance.randint(1, 8) * MB) for _ in range(12)])


def _trickle(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    table.write(at_ms, [Arrival(0, chance.randint(100, 3000) * KB)])


def _tiny(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 4 == 0:
        table.write(at_ms, [Arrival(0, 10 * KB)])


def _hourly(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    late = [Arrival(max(0, hour - chance.randint(1, 48)), MB)] if chance.random() < 0.5 else []
    table.write(at_ms, [*(Arrival(hour, 20 * MB) for _ in range(6)), *late])


def _daily(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 24 == int(table.document["location"][-3:]) % 24:
        table.write(at_ms, [Arrival(hour // 24, chance.randint(5, 60) * MB) for _ in range(12)])


def _over_partitioned(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 24 == 3:
        table.write(at_ms, [Arrival(hour // 24 * 40 + n, 500 * KB) for n in range(40)])


def _cdc(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    table.write(at_ms, [Arrival(0, 8 * MB)], deleted_rows=8 * MB // ROW_BYTES)


def _merge_on_read(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 6 == 0:
        table.write(at_ms, [Arrival(0, 20 * MB)])
        large = [path for path, live in table.files.items() if live.entry.file.file_size_in_bytes >= 100 * MB]
        table.mark_deleted(chance.sample(large, len(large) // 3), 40_000)


def _clustered(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    def bounds() -> tuple[bytes, bytes]:
        low, high = sorted(chance.randrange(10**9) for _ in range(2))
        return struct.pack("<q", low), struct.pack("<q", high)

    table.write(at_ms, [Arrival(0, 30 * MB, bounds()) for _ in range(2)])


def _crashing(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 24 == 5:
        table.write(at_ms, [Arrival(0, 60 * MB) for _ in range(4)])
    if chance.random() < 1 / 12:
        orphans.groups.append((at_ms, 20))


def _only_orphans(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if chance.random() < 1 / 12:
        orphans.groups.append((at_ms, 20))


def _idle(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    """Nobody writes any more."""


LIVES: dict[str, Life] = {
    "streaming": Life(110, _streaming),
    "trickle": Life(80, _trickle),
    "tiny": Life(60, _tiny),
    "hourly": Life(90, _hourly, document={"partition-specs": _BY_P}),
    "daily": Life(240, _daily, document={"partition-specs": _BY_P}),
    "over-partitioned": Life(40, _over_partitioned, document={"partition-specs": _BY_P}),
    "cdc": Life(40, _cdc, begins_with=(12, 240 * MB)),
    "merge-on-read": Life(40, _merge_on_read, begins_with=(12, 240 * MB)),
    "clustered": Life(20, _clustered, document={"sort-orders": _BY_ID, "default-sort-order-id": 1}),
    "crashing": Life(60, _crashing),
    "only orphans": Life(20, _only_orphans, begins_with=(4, 240 * MB)),
    "idle": Life(200, _idle, begins_with=(40, 60 * MB)),
}


# A pass over a table on paper, by the operations' own planners; counts what it asks of the store.

# Iceberg's commit.manifest.target-size-bytes, and what a manifest takes without and for each entry, about.
_MANIFEST_BYTES, _HEADER_BYTES, _ENTRY_BYTES = 8 * 1024 * 1024, 4000, 150
_LISTED_AT_ONCE = 1000


@dataclass
class Requests:
    """Requests to the store, by kind, and bytes that passes read and wrote."""

    counts: Counter[str] = field(default_factory=Counter)
    bytes_rewritten: int = 0

    def add(self, *, gets: int = 0, puts: int = 0, lists: int = 0) -> None:
        self.counts.update(gets=gets, puts=puts, lists=lists)


@dataclass
class _Pass:
    table: PaperTable
    orphans: Orphans
    now_ms: int
    requests: Requests
    orphan_ages_ms: list[int]
    depth: float | None = None


def carried_out_pass(
    table: PaperTable, orphans: Orphans, now_ms: int, requests: Requests, operations: Iterable[Operation]
) -> tuple[list[OperationOutcome], list[int], float | None]:
    """Outcomes, the ages of the orphans that were removed, and the depth in the clustering columns before it."""
    run = _Pass(table, orphans, now_ms, requests, [])
    requests.add(gets=2)
    outcomes = [_STEPS[operation](run) for operation in operations]
    return outcomes, run.orphan_ages_ms, run.depth


def _compact(run: _Pass) -> OperationOutcome:
    table, metadata = run.table, run.table.metadata
    recipe = choose_recipe(metadata, table.policy)
    clustered_by: set[int] = set()
    if recipe is not None:
        by_it = {raw["snapshot-id"] for raw in table.snapshots if raw["summary"].get(RECIPE_KEY) == recipe.text}
        clustered_by = by_it | table.clustered_by
    run.requests.add(gets=len(table.manifests) + bool(table.deletes))
    plan = table.plan(run.now_ms, recipe=recipe, clustered_by=clustered_by)
    if isinstance(plan, Nothing):
        return skipped(Operation.COMPACT, plan.reason)
    run.depth = None if plan.depth is None else plan.depth.now()
    before = table.rewritten
    table.carry_out(plan, run.now_ms)
    if recipe is not None:
        table.clustered_by.add(table.sequence)
    deletes = len(plan.delete_files)
    written = sum(group.output_count for group in plan.groups)
    run.requests.add(gets=2 * len(plan.input_files) + deletes, puts=written + 4)
    run.requests.bytes_rewritten += table.rewritten - before
    outcome = succeeded(Operation.COMPACT, "compacted", snapshot_ids=[table.sequence])
    return replace(outcome, leaves_work=bool(plan.groups_waiting))


def _position_deletes(run: _Pass) -> OperationOutcome:
    table, metadata = run.table, run.table.metadata
    entries = [LiveEntry(_DELETES, e) for e in table.deletes if e.file.content is FileContent.POSITION_DELETES]
    live = table.files.values()
    plan = plan_position_deletes(metadata, metadata.head("main"), [_DELETES], entries, lambda: iter(live), table.policy)
    if isinstance(plan, Nothing):
        return skipped(Operation.REWRITE_POSITION_DELETES, plan.reason)
    gone = set(plan.input_files)
    kept = [entry for entry in table.deletes if entry.file.file_path not in gone]
    table.commit(run.now_ms, (), {"operation": "replace", "icekeeper.run-id": "r"})
    for group in plan.groups:
        entry = group.deletes[0]
        rows = sum(one.file.record_count for one in group.deletes)
        file = replace(entry.file, file_path=f"m{table.sequence}-{group.group_id}", record_count=rows)
        kept.append(ManifestEntry(entry.status, table.sequence, group.sequence_number, table.sequence, file))
    table.deletes = kept
    run.requests.add(gets=len(gone), puts=len(plan.groups) + 4)
    return succeeded(Operation.REWRITE_POSITION_DELETES, "merged", snapshot_ids=[table.sequence])


def _expire(run: _Pass) -> OperationOutcome:
    plan = plan_expiry(run.table.metadata, run.table.policy, now_ms=run.now_ms)
    if isinstance(plan, Nothing):
        return skipped(Operation.EXPIRE_SNAPSHOTS, plan.reason)
    gone = set(plan.snapshot_ids)
    run.table.snapshots = [raw for raw in run.table.snapshots if raw["snapshot-id"] not in gone]
    run.requests.add(gets=2 * len(gone) + 2, puts=1)
    return succeeded(Operation.EXPIRE_SNAPSHOTS, "expired", files_deleted=["manifest lists"])


def _sweep(run: _Pass) -> OperationOutcome:
    old_ms = run.now_ms - run.table.policy.orphan_older_than_ms
    old = [group for group in run.orphans.groups if group[0] < old_ms]
    listed = run.table.data_files + run.orphans.count + 3 * len(run.table.snapshots)
    run.requests.add(lists=2 + listed // _LISTED_AT_ONCE)
    run.orphans.groups = [group for group in run.orphans.groups if group[0] >= old_ms]
    run.orphan_ages_ms += [run.now_ms - at_ms for at_ms, files in old for _ in range(files)]
    gone = [f"orphan-{at_ms}" for at_ms, _ in old]
    return succeeded(Operation.REMOVE_ORPHANS, f"removed {len(gone)} orphan file(s)", files_deleted=gone)


def _rewrite_manifests(run: _Pass) -> OperationOutcome:
    table, metadata = run.table, run.table.metadata
    listed = {f"m{number}": number for number in table.manifests}
    files = [_manifest_file(table, number) for number in table.manifests]
    plan = plan_manifests(
        metadata,
        metadata.head("main"),
        files,
        table.policy,
        target_bytes=_MANIFEST_BYTES,
        header_bytes={(0, content): _HEADER_BYTES for content in ManifestContent},
    )
    if isinstance(plan, Nothing):
        return skipped(Operation.REWRITE_MANIFESTS, plan.reason)
    table.rewrite_manifests([listed[one.manifest_path] for one in plan.manifests], run.now_ms)
    run.requests.add(gets=len(plan.manifests), puts=4)
    return succeeded(Operation.REWRITE_MANIFESTS, "rewritten", snapshot_ids=[table.sequence])


def _manifest_file(table: PaperTable, number: int) -> ManifestFile:
    paths = table.manifests[number]
    summaries: Sequence[PartitionFieldSummary] = ()
    if table.document["partition-specs"][0]["fields"]:
        values = sorted(value for path in paths if isinstance(value := table.files[path].entry.file.partition[0], int))
        low, high = (struct.pack("<q", value) for value in (values[0], values[-1]))
        summaries = [PartitionFieldSummary(False, None, low, high)]
    listed = manifest(f"m{number}", live=len(paths), length=_HEADER_BYTES + _ENTRY_BYTES * len(paths))
    return replace(listed, sequence_number=number, min_sequence_number=number, partitions=tuple(summaries))


_DELETES = manifest("deletes", content=ManifestContent.DELETES)
_STEPS: dict[Operation, Callable[[_Pass], OperationOutcome]] = {
    Operation.COMPACT: _compact,
    Operation.REWRITE_POSITION_DELETES: _position_deletes,
    Operation.EXPIRE_SNAPSHOTS: _expire,
    Operation.REMOVE_ORPHANS: _sweep,
    Operation.REWRITE_MANIFESTS: _rewrite_manifests,
}


# A fleet of tables on paper: writers every hour, the real detection, and passes by the operations' own planners.

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

    id, built_in_maintenance = CatalogId("paper", "s3://lake/"), None

    def __init__(
        self, state: StateStore, tables: int, settings: Mapping[str, str] | None = None, *, one_in: int = 1
    ) -> None:
        most = max(1, resolve([Layer("this call", settings or {})]).policy.max_jobs_per_detection // one_in)
        self.resolved = resolve([Layer("this call", {**(settings or {}), "max_jobs_per_detection": str(most)})])
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
        scanner = Scanner(
            self.resolved.policy,
            self.state,
            now_ms,
            resolve_policy=lambda catalog, loaded: self.resolved,
            plan_sweep=self.state.sweeps.record,
            threads=1,
        )
        report = scanner.scan([CatalogSource(self.id.name, lambda: self)], self._cursor)
        self._cursor = report.cursor
        if report.errors:
            raise AssertionError([skip.reason for skip in report.skipped if skip.is_error])
        return [one for one in report.proposals if self.members[one.table].busy_until_ms <= now_ms]

    def _pass(self, member: Member, proposal: Proposal, now_ms: int) -> int:
        """Run one pass; returns when it ends."""
        tally, table = self.tallies[member.kind], member.table
        head = table.snapshots[-1]["snapshot-id"] if table.snapshots else None
        rewritten, digest = table.rewritten, self.resolved.digest_over(table.metadata)
        identity = TableIdentity(self.id, member.name, member.uuid, table.document["location"])
        operations = [one for one in self.resolved.policy.operations if self.resolved.runs(one)]
        sweeps = self.state.sweeps.of_table(identity)
        if why_no_sweep(self.resolved.policy, sweeps, identity.key, now_ms) is not None:
            operations = [one for one in operations if one is not Operation.REMOVE_ORPHANS]
        outcomes, ages, depth = carried_out_pass(table, member.orphans, now_ms, tally.requests, operations)
        ended_ms = now_ms + self._one_in * (_PASS_MS + (table.rewritten - rewritten) // _REWRITTEN_PER_MS)
        outcome = PassOutcome(
            table=str(member.name), catalog=self.id.name, run_id=f"r{now_ms}", dry_run=False, operations=tuple(outcomes)
        )
        record_outcome(self.state, PassStart(identity, head, now_ms, digest), outcome, "paper", ended_ms)
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
