"""A year of compaction by the pure planner: no bytes are read or written, only files counted.

    PYTHONPATH=tests python benchmarks/layout_year.py [--days 365] [--table NAME] [--set KEY=VALUE]...

Every hour writers commit, the planner plans, and what it plans is carried out on paper.  Detection, which sees counters
only, is asked as well: what it would have proposed in vain, and what it would have missed.  The tables:

* ``streaming``: 60 commits of 1 MB an hour into an unpartitioned table;
* ``trickle``: one commit of 8 MB an hour into one partition;
* ``hourly``: 12 commits of 4 MB an hour, partitioned by hour, and a late file of 1 MB for one of the last 48 hours;
* ``cdc``: 16 MB an hour that replace rows all over 20 GB, by an equality delete for the whole table.

Prints data files (small ones at worst and at last), delete files at worst, bytes rewritten per byte written, passes
that did something and how detection judged, requests and US dollars a day (of the rewrites, by the policy's prices).
The claims it checks: append-only tables are rewritten at most three times, and their small files stay few.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from icekeeper.clock import HOUR_MS
from icekeeper.detection.signals import summary_signals
from icekeeper.metadata.delete_scope import DeleteIndex, DeleteIndexBuilder
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import EntryStatus, FileContent, LiveEntry, ManifestEntry, Nothing
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.plan import CompactionPlan, FileGroup, plan_compaction
from icekeeper.policy import ResolvedPolicy, resolve
from icekeeper.policy.layers import Layer
from support.plans import data_file, live_file, manifest
from support.tables import new_document, snapshot

MB = 1024 * 1024
START_MS = 1_760_000_000_000
ROW_BYTES = 100
# Metadata file, manifest list and manifests of a commit; the reads of a plan.
COMMIT_PUTS, PLAN_GETS = 4, 4
# Older snapshots have expired: about those of a week.
SNAPSHOTS_KEPT = 250
# Late files come for 48 hours, and a day later a partition is at rest.
HOURS_UNTIL_SETTLED = 96
MOST_AMPLIFICATION = 3.0


class Arrival(NamedTuple):
    """A data file that a writer commits."""

    partition: int
    size: int


@dataclass(frozen=True)
class Workload:
    """What writers do in an hour, and what is promised of the table then."""

    arrivals: Callable[[int, random.Random], Iterable[Arrival]]
    deletes_per_hour: int = 0
    """Rows that one equality delete file removes from the whole table."""
    begins_with: int = 0
    """Files of 240 MB that are there at first."""
    most_small_files: Callable[[int], float] | None = None
    """From hours to the most small files that are promised; ``None``: nothing is."""


def _hourly(hour: int, chance: random.Random) -> Iterator[Arrival]:
    yield from (Arrival(hour, 4 * MB) for _ in range(12))
    yield Arrival(max(0, hour - chance.randint(1, 48)), MB)


WORKLOADS = {
    "streaming": Workload(lambda hour, chance: (Arrival(0, MB) for _ in range(60)), most_small_files=lambda hours: 12),
    "trickle": Workload(lambda hour, chance: (Arrival(0, 8 * MB),), most_small_files=lambda hours: 12),
    # One file that is not full, and fewer late ones than are worth a merge, for every hour.
    "hourly": Workload(_hourly, most_small_files=lambda hours: 5 * hours + 60),
    "cdc": Workload(lambda hour, chance: (Arrival(0, 16 * MB),), 16 * MB // ROW_BYTES, begins_with=85),
}


@dataclass
class Table:
    """The live files of a table, and what happened to it."""

    resolved: ResolvedPolicy
    files: dict[str, LiveEntry] = field(default_factory=dict)
    deletes: list[ManifestEntry] = field(default_factory=list)
    dead_rows: dict[str, float] = field(default_factory=dict)
    """Path → rows that equality deletes have removed since it was written."""
    settled: int = 0
    """Files that nothing will rewrite any more: large ones without deletes, and those of partitions long at rest."""
    settled_small: int = 0
    settled_bytes: int = 0
    snapshots: list[dict[str, object]] = field(default_factory=list)
    sequence: int = 0
    written: int = 0
    rewritten: int = 0
    useful: int = 0
    in_vain: int = 0
    """Passes that detection proposes and that find nothing to do."""
    missed: int = 0
    """Passes that detection does not propose and that find something."""
    requests: int = 0
    dollars: float = 0.0
    worst_small: int = 0
    worst_deletes: int = 0

    def commit(
        self,
        at_ms: int,
        added: Iterable[tuple[int, int, int]],
        summary: dict[str, str],
        *,
        planned_at: int | None = None,
    ) -> None:
        """Add files (partition, bytes, rows) as one snapshot; a rewrite's keep the data sequence number of its plan."""
        self.sequence += 1
        size = 0
        for number, (partition, bytes_, rows) in enumerate(added):
            path = f"{self.sequence}-{number}"
            file = data_file(path, bytes_, (partition,), records=rows)
            live = live_file(file, age=self.sequence, snapshot_id=self.sequence)
            entry = replace(live.entry, sequence_number=planned_at or self.sequence)
            self.files[path] = live._replace(entry=entry)
            size += bytes_
        raw = snapshot(self.sequence, format_version=2, sequence_number=self.sequence, timestamp_ms=at_ms)
        raw |= {"summary": {"added-files-size": str(size), **summary}}
        if self.snapshots:
            raw["parent-snapshot-id"] = self.sequence - 1
        self.snapshots = [*self.snapshots, raw][-SNAPSHOTS_KEPT:]

    @property
    def small(self) -> int:
        """How many files are small."""
        limit = self.resolved.policy.min_file_size_bytes
        return self.settled_small + sum(entry.entry.file.file_size_in_bytes < limit for entry in self.files.values())

    def totals(self) -> dict[str, str]:
        """The totals of a head's summary."""
        sizes = [entry.entry.file.file_size_in_bytes for entry in self.files.values()]
        return {
            "operation": "append",
            "total-data-files": str(self.settled + len(sizes)),
            "total-files-size": str(self.settled_bytes + sum(sizes)),
            "total-delete-files": str(len(self.deletes)),
            "total-equality-deletes": str(sum(entry.file.record_count for entry in self.deletes)),
            "total-records": str((self.settled_bytes + sum(sizes)) // ROW_BYTES),
        }

    def metadata(self) -> TableMetadata:
        document = new_document("s3://b/t", 2, snapshots=self.snapshots)
        return TableMetadata(document | {"current-snapshot-id": self.sequence, "last-sequence-number": self.sequence})


def play(workload: Workload, resolved: ResolvedPolicy, hours: int) -> Table:
    """So many hours of a workload under a policy."""
    table, chance = Table(resolved), random.Random(0)
    start = [(0, 240 * MB, 240 * MB // ROW_BYTES)] * workload.begins_with
    if start:
        table.commit(START_MS - HOUR_MS, start, {"operation": "append"})
    for hour in range(hours):
        now_ms = START_MS + hour * HOUR_MS
        arrivals = list(workload.arrivals(hour, chance))
        table.commit(now_ms, ((a.partition, a.size, a.size // ROW_BYTES) for a in arrivals), {"operation": "append"})
        table.written += sum(arrival.size for arrival in arrivals)
        if workload.deletes_per_hour:
            _delete(table, workload.deletes_per_hour)
        _pass(table, now_ms, has_deletes=bool(workload.deletes_per_hour))
        table.worst_small = max(table.worst_small, table.small)
        table.worst_deletes = max(table.worst_deletes, len(table.deletes))
    return table


def _delete(table: Table, rows: int) -> None:
    """One equality delete file; it has the sequence number of the commit that inserted the rows anew."""
    file = data_file(f"d{table.sequence}", rows * 20, (), records=rows)
    file = replace(file, content=FileContent.EQUALITY_DELETES, equality_ids=(1,))
    table.deletes.append(ManifestEntry(EntryStatus.ADDED, table.sequence, table.sequence, table.sequence, file))
    older = [live.entry.file for live in table.files.values() if live.entry.sequence_number != table.sequence]
    total = sum(one.record_count for one in older)
    for one in older:
        dead = table.dead_rows.get(one.file_path, 0.0) + rows * one.record_count / total
        table.dead_rows[one.file_path] = min(dead, one.record_count)


def _pass(table: Table, now_ms: int, *, has_deletes: bool) -> None:
    table.snapshots[-1] = table.snapshots[-1] | {"summary": {**_summary(table), **table.totals()}}
    metadata = table.metadata()
    head = metadata.snapshots[table.sequence]
    is_proposed = any(True for _ in summary_signals(head, table.resolved, None))
    index = _index(table.deletes)
    state = TableState(metadata, head, [manifest()], table.files.values(), index)
    plan = plan_compaction(state, table.resolved.policy, now_ms=now_ms)
    table.requests += PLAN_GETS
    table.dollars += PLAN_GETS * float(table.resolved.policy.price_per_1000_gets) / 1000
    if isinstance(plan, Nothing):
        table.in_vain += is_proposed
        return
    table.useful += 1
    table.missed += not is_proposed
    _carry_out(table, plan, now_ms)
    if not has_deletes:
        _settle(table, (now_ms - START_MS) // HOUR_MS)


def _summary(table: Table) -> dict[str, str]:
    summary = table.snapshots[-1]["summary"]
    return dict(summary) if isinstance(summary, dict) else {}


def _index(deletes: Iterable[ManifestEntry]) -> DeleteIndex:
    builder = DeleteIndexBuilder()
    for entry in deletes:
        builder.add(0, entry, is_unpartitioned=True)
    return builder.build()


def _carry_out(table: Table, plan: CompactionPlan, now_ms: int) -> None:
    policy = table.resolved.policy
    outputs: list[tuple[int, int, int]] = []
    for group in plan.groups:
        outputs += _outputs(group, sum(table.dead_rows.pop(c.file.file_path, 0.0) for c in group.files))
        table.rewritten += group.total_bytes
        if group.worth is not None:
            table.requests += group.worth.requests
            table.dollars += group.worth.cost
        for candidate in group.files:
            del table.files[candidate.file.file_path]
    needs = dict(plan.delete_needs)
    for group in plan.groups:
        for candidate in group.files:
            for entry in candidate.deletes:
                needs[entry.file.key] -= 1
    table.deletes = [entry for entry in table.deletes if needs.get(entry.file.key, 0) > 0]
    removed = sum(group.total_bytes for group in plan.groups)
    ours = {"operation": "replace", "icekeeper.run-id": "r", "deleted-data-files": str(len(plan.input_files))}
    ours["removed-files-size"] = str(removed)
    table.commit(now_ms, outputs, ours, planned_at=plan.sequence_number)
    table.requests += COMMIT_PUTS
    table.dollars += COMMIT_PUTS * float(policy.price_per_1000_puts) / 1000


def _outputs(group: FileGroup, dead_rows: float) -> Iterator[tuple[int, int, int]]:
    size = max(1, (group.total_bytes - int(dead_rows * ROW_BYTES)) // group.output_count)
    partition = group.partition[0]
    assert isinstance(partition, int)
    yield from ((partition, size, max(1, size // ROW_BYTES)) for _ in range(group.output_count))


def _settle(table: Table, hour: int) -> None:
    limit = table.resolved.policy.min_file_size_bytes
    for path, live in list(table.files.items()):
        size, partition = live.entry.file.file_size_in_bytes, live.entry.file.partition[0]
        is_past = isinstance(partition, int) and 0 < partition < hour - HOURS_UNTIL_SETTLED
        if size >= limit or is_past:
            table.settled += 1
            table.settled_small += size < limit
            table.settled_bytes += size
            del table.files[path]


def _report(name: str, table: Table, days: int) -> str:
    amplification = table.rewritten / table.written
    return (
        f"{name:<10} {table.settled + len(table.files):>6} files, "
        f"{table.small:>5} small (worst {table.worst_small:>5}), "
        f"worst {table.worst_deletes:>4} delete files; {amplification:5.2f} bytes rewritten per byte; "
        f"{table.useful:>5} passes did something (detection missed {table.missed}, proposed {table.in_vain} in vain); "
        f"{table.requests / days:8.1f} requests and ${table.dollars / days:.5f} a day"
    )


def main() -> int:
    """Play the tables and print one line each; 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--table", choices=WORKLOADS, action="append")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    resolved = resolve([Layer("--set", settings)] if settings else [])
    held = True
    for name in arguments.table or WORKLOADS:
        workload, hours = WORKLOADS[name], arguments.days * 24
        table = play(workload, resolved, hours)
        print(_report(name, table, arguments.days), flush=True)
        if workload.most_small_files is not None:
            held = held and table.rewritten <= MOST_AMPLIFICATION * table.written
            held = held and table.worst_small <= workload.most_small_files(hours)
    print("every claim holds" if held else "A CLAIM DOES NOT HOLD")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
