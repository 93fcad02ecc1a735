"""A year of compaction by the pure planner: no bytes are read or written, only files counted.

    PYTHONPATH=tests python -m benchmarks.layout_year [--days 365] [--table NAME] [--set KEY=VALUE]...

Every hour writers commit, the planner plans, and what it plans is carried out on paper.  Detection, which sees counters
only, is asked as well: what it would have proposed in vain, and what it would have missed.  The tables:

* ``streaming``: 60 commits of 1 MB an hour into an unpartitioned table;
* ``trickle``, ``slow``, ``tiny``: one commit of 8 MB, 1 MB or 10 KB an hour into one partition;
* ``hourly``: 12 commits of 4 MB an hour, partitioned by hour, and a late file of 1 MB for one of the last 48 hours;
* ``cdc``: 16 MB an hour that replace rows all over 20 GB, by an equality delete for the whole table.

Prints data files (small ones at worst and at last), delete files at worst, bytes rewritten per byte written, passes
that did something and how detection judged, requests and US dollars a day (of the rewrites, by the prices of payback).
The claims it checks: append-only tables are rewritten at most three times, CDC within ten times;
small files and delete files stay few.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import mean

from icekeeper.detection.signals import summary_signals
from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import Nothing
from icekeeper.policy import ResolvedPolicy, resolve
from icekeeper.policy.layers import Layer
from icekeeper.report.prices import GETS_1000_USD, PUTS_1000_USD
from support.paper_table import MB, ROW_BYTES, Arrival, PaperTable

START_MS = 1_760_000_000_000
# Metadata file, manifest list and manifests of a commit; the reads of a plan.
COMMIT_PUTS, PLAN_GETS = 4, 4
# Late files come for 48 hours, and a day later a partition is at rest.
HOURS_UNTIL_SETTLED = 96


@dataclass(frozen=True)
class Workload:
    """What writers do in an hour, and what is promised of the table then."""

    arrivals: Callable[[int, random.Random], Iterable[Arrival]]
    deletes_per_hour: int = 0
    """Rows that an equality delete file removes from the whole table."""
    begins_with: int = 0
    """Files of 240 MB that are there at first."""
    most_small_files: Callable[[int], float] = lambda hours: 12
    """From hours to the most small files that are promised."""
    most_amplification: float = 3.0
    """Bytes rewritten per byte written that are promised at most."""
    most_deletes: int = 0
    """Delete files that are promised at most."""


def _hourly(hour: int, chance: random.Random) -> Iterator[Arrival]:
    yield from (Arrival(hour, 4 * MB) for _ in range(12))
    yield Arrival(max(0, hour - chance.randint(1, 48)), MB)


WORKLOADS = {
    "streaming": Workload(lambda hour, chance: (Arrival(0, MB) for _ in range(60))),
    "trickle": Workload(lambda hour, chance: (Arrival(0, 8 * MB),)),
    "slow": Workload(lambda hour, chance: (Arrival(0, MB),), most_small_files=lambda hours: 25),
    "tiny": Workload(lambda hour, chance: (Arrival(0, 10 * 1024),), most_small_files=lambda hours: 120),
    # One file that is not full, and fewer late ones than are worth a merge, for every hour.
    "hourly": Workload(_hourly, most_small_files=lambda hours: 5 * hours + 60),
    "cdc": Workload(
        lambda hour, chance: (Arrival(0, 16 * MB),),
        16 * MB // ROW_BYTES,
        begins_with=85,
        most_small_files=lambda hours: 25,
        most_amplification=10.0,
        most_deletes=400,
    ),
}


@dataclass
class Year:
    """A table and what happened to it."""

    table: PaperTable
    useful: int = 0
    in_vain: int = 0
    """Passes that detection proposes and that find nothing to do."""
    missed: int = 0
    """Passes that detection does not propose and that find something."""
    requests: int = 0
    dollars: float = 0.0
    worst_small: int = 0
    worst_deletes: int = 0
    dead_shares: list[float] = field(default_factory=list)
    """Of the rows in live files, after each hour."""


def play(workload: Workload, resolved: ResolvedPolicy, hours: int) -> Year:
    """So many hours of a workload under a policy."""
    year, chance = Year(PaperTable(resolved.policy)), random.Random(0)
    table = year.table
    if workload.begins_with:
        table.write(START_MS - HOUR_MS, [Arrival(0, 240 * MB)] * workload.begins_with)
        table.written = 0
    for hour in range(hours):
        now_ms = START_MS + hour * HOUR_MS
        table.write(now_ms, workload.arrivals(hour, chance), deleted_rows=workload.deletes_per_hour)
        _pass(year, resolved, now_ms)
        table.forget_snapshots(now_ms - resolved.policy.snapshot_retention_ms)
        if not workload.deletes_per_hour:
            table.settle(now_ms - HOURS_UNTIL_SETTLED * HOUR_MS)
        year.worst_small = max(year.worst_small, table.small)
        year.worst_deletes = max(year.worst_deletes, len(table.deletes))
        year.dead_shares.append(table.dead_share)
    return year


def _pass(year: Year, resolved: ResolvedPolicy, now_ms: int) -> None:
    policy, table = resolved.policy, year.table
    head = table.metadata.head("main")
    is_proposed = head is not None and any(True for _ in summary_signals(head, resolved, ()))
    plan = table.plan(now_ms)
    year.requests += PLAN_GETS
    year.dollars += PLAN_GETS * float(GETS_1000_USD) / 1000
    if isinstance(plan, Nothing):
        converts = policy.convert_equality_deletes and table.convert(now_ms)
        year.useful += converts
        year.in_vain += is_proposed and not converts
        return
    year.useful += 1
    year.missed += not is_proposed
    for group in plan.groups:
        year.requests += group.worth.requests
        year.dollars += group.worth.cost
    table.carry_out(plan, now_ms)
    if policy.convert_equality_deletes:
        table.convert(now_ms)
    year.requests += COMMIT_PUTS
    year.dollars += COMMIT_PUTS * float(PUTS_1000_USD) / 1000


def _report(name: str, year: Year, days: int) -> str:
    table = year.table
    amplification = table.rewritten / table.written
    return (
        f"{name:<10} {table.data_files:>6} files, {table.small:>5} small (worst {year.worst_small:>5}), "
        f"worst {year.worst_deletes:>4} delete files, {mean(year.dead_shares):.1%} dead rows; "
        f"{amplification:5.2f} bytes rewritten per byte; "
        f"{year.useful:>5} passes did something (detection missed {year.missed}, proposed {year.in_vain} in vain); "
        f"{year.requests / days:8.1f} requests and ${year.dollars / days:.5f} a day"
    )


def main() -> int:
    """Simulate the tables and print a line each; return 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--table", choices=WORKLOADS, action="append")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    resolved = resolve([Layer("this call", settings)] if settings else [])
    held = True
    for name in arguments.table or WORKLOADS:
        workload, hours = WORKLOADS[name], arguments.days * 24
        year = play(workload, resolved, hours)
        print(_report(name, year, arguments.days), flush=True)
        held = held and year.table.rewritten <= workload.most_amplification * year.table.written
        held = held and year.worst_small <= workload.most_small_files(hours)
        held = held and year.worst_deletes <= workload.most_deletes
    print("every claim holds" if held else "A CLAIM DOES NOT HOLD")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
