"""Two weeks of a fleet by the real detection and the operations' planners: no bytes are read or written, only counted.

    PYTHONPATH=tests python -m benchmarks.fleet_fortnight [--tables 1000] [--days 14] [--one-in 5] [--set KEY=VALUE]...

Every hour writers of twelve kinds commit (``benchmarks/paper_fleet.py``), the scanner assesses every table by its
metadata document and a state store, and proposes at most ``max_jobs_per_detection``; workers run their passes, at most
``max_concurrent_jobs`` at a time, a minute each and 20 s for a GB rewritten.  ``--one-in`` plays one table in so
many, under limits as many times tighter, and counts it as so many.

Prints for each kind: data files; small ones, and the most of one table; delete files, the most of one table; files that
a lookup opens (of clustered tables, at most before a pass); bytes rewritten per byte written; passes proposed, those
that did something, and why the others were proposed; orphans that lie there and how old those that went were, at most;
requests a day for the store.  Lambda and Glue are not counted.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paper_fleet import Member, PaperFleet, Tally
from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.sqlite.store import SqliteStateStore


@dataclass(frozen=True)
class Line:
    """The cost of the tables of a kind, or of all tables, in the simulated days."""

    kind: str
    members: list[Member]
    tallies: list[Tally]
    one_in: int
    days: float

    def text(self) -> str:
        tables = [member.table for member in self.members]
        written, rewritten = sum(t.written for t in tables), sum(t.rewritten for t in tables)
        ages = [age for tally in self.tallies for age in tally.orphan_ages_ms]
        depths = [depth for tally in self.tallies for depth in tally.depths]
        requests = sum((tally.requests.counts for tally in self.tallies), Counter[str]())
        numbers = [
            f"{self.one_in * len(tables)}",
            f"{self.one_in * sum(t.data_files for t in tables)}",
            f"{self.one_in * sum(t.small for t in tables)} ({max(t.worst_small for t in self.tallies)})",
            f"{max(t.worst_deletes for t in self.tallies)}",
            f"{max(depths):.1f}" if depths else "",
            f"{rewritten / written:.2f}" if written else "",
            f"{self.one_in * sum(t.proposed for t in self.tallies)}",
            f"{self.one_in * sum(t.useful for t in self.tallies)}",
            f"{self.one_in * sum(m.orphans.count for m in self.members)}",
            f"{max(ages) / HOUR_MS:.0f} h" if ages else "",
            f"{self.one_in * requests.total() / self.days:,.0f}",
        ]
        return f"| {self.kind} | " + " | ".join(numbers) + " |"


_HEAD = (
    "| kind | tables | files | small (most) | deletes | depth | rewritten | passes | useful | orphans | oldest gone "
    "| requests a day |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def lines(fleet: PaperFleet, one_in: int, days: float) -> list[Line]:
    """The costs per kind, and of all tables."""
    members = list(fleet.members.values())
    found = [
        Line(kind, [m for m in members if m.kind == kind], [tally], one_in, days)
        for kind, tally in fleet.tallies.items()
    ]
    return [*found, Line("all", members, list(fleet.tallies.values()), one_in, days)]


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--one-in", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    logging.disable(logging.WARNING)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="icekeeper-fleet-") as folder:
        state = SqliteStateStore(Path(folder) / "state.db")
        fleet = PaperFleet(state, arguments.tables, settings, one_in=arguments.one_in)
        for hour in range(arguments.days * 24):
            fleet.hour(hour)
    print(_HEAD)
    for line in lines(fleet, arguments.one_in, arguments.days):
        print(line.text())
    in_vain = sum((tally.in_vain for tally in fleet.tallies.values()), Counter[str]())
    print(f"\nPasses in vain: {arguments.one_in * in_vain.total()}; they were proposed because of")
    for reason, count in in_vain.most_common(10):
        print(f"  {arguments.one_in * count:6}  {reason}")
    print(f"{time.monotonic() - started:.0f} s, {time.process_time():.0f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
