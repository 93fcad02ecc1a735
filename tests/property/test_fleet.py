"""Fleets over time: the rhythm of sweeps, and write amplification of compaction."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import Nothing
from icekeeper.policy import Policy
from icekeeper.policy.sweep_rhythm import SweepMemory, first_sweep_ms, sweep_due_ms, sweep_interval_ms
from support.examples import examples
from support.paper_table import MB, Arrival, PaperTable
from support.plans import policy

# Sweeps of a fleet are spread over the hours, never late, and not in every hourly pass.

T0 = 1_767_225_600_000
DAY_MS = 24 * HOUR_MS
OLD_MS = 1000 * HOUR_MS


def swept_hours(key: str, hours: int, tables: int, interval_hours: int = 24, late_ms: int = 0) -> list[int]:
    """The hourly passes, by number, in which a new table is swept."""
    policy = Policy.model_validate({"orphan_sweep_interval_hours": interval_hours})
    interval_ms = sweep_interval_ms(policy)
    memory = SweepMemory(first_ms=first_sweep_ms(key, T0, policy, tables=tables, age_ms=OLD_MS))
    found = []
    for hour in range(hours):
        now_ms = T0 + hour * HOUR_MS + (late_ms if hour % 2 else 0)
        if sweep_due_ms(memory, interval_ms, key, now_ms) <= now_ms:
            found.append(hour)
            memory = SweepMemory(swept_ms=now_ms)
    return found


@settings(max_examples=examples(60), deadline=None)
@given(key=st.uuids().map(str), tables=st.integers(1, 3000), late_min=st.integers(0, 20))
def test_a_table_with_hourly_passes_is_swept_once_a_day(key: str, tables: int, late_min: int) -> None:
    found = swept_hours(key, 7 * 24, tables, late_ms=late_min * 60_000)
    assert found[0] <= 24
    assert found[0] == 0 or tables > 24
    # An hourly pass runs within an hour of the due time; the interval is up to a tenth shorter.
    assert {after - before for before, after in pairwise(found)} <= {22, 23, 24}


@settings(max_examples=examples(30), deadline=None)
@given(key=st.uuids().map(str), interval=st.integers(1, 400))
def test_no_table_waits_longer_than_an_interval_for_a_sweep(key: str, interval: int) -> None:
    found = swept_hours(key, 5 * interval + 2, 10**6, interval)
    gaps = [after - before for before, after in pairwise([0, *found])]
    assert max(gaps) <= interval
    assert min(gaps[1:]) >= interval * 0.9 - 1


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_first_sweeps_of_a_new_fleet_are_spread_over_the_day(seed: int) -> None:
    policy = Policy()
    keys = (f"{seed}-{number}" for number in range(1200))
    due = [first_sweep_ms(key, T0, policy, tables=1200, age_ms=OLD_MS) for key in keys]
    hours = Counter((at_ms - T0) // HOUR_MS for at_ms in due)
    assert hours.keys() == set(range(24))
    # 50 an hour, give or take five standard deviations.
    assert 15 <= min(hours.values()) <= max(hours.values()) <= 85


# Bin-packed tables of any write rate: bytes rewritten per byte written, and the largest number of small files.

KB = 1024
START_MS = 1_760_000_000_000
WEEK_MS = 7 * 24 * HOUR_MS


def simulate(size: int, *, files: int = 1, every: int = 1, commits: int) -> tuple[float, int]:
    """Bytes rewritten per byte, and the most small files, of ``files`` files every ``every`` hours and hourly passes.

    The target is a sixteenth of the default, so that files are full sixteen times sooner.
    """
    table = PaperTable(policy(target_file_size_mb=16))
    worst = 0
    for commit in range(commits):
        at_ms = START_MS + commit * every * HOUR_MS
        table.write(at_ms, [Arrival("p", size)] * files)
        for hour in {0, every - 1}:
            now_ms = at_ms + hour * HOUR_MS + HOUR_MS // 2
            while not isinstance(plan := table.plan(now_ms), Nothing):
                table.carry_out(plan, now_ms)
        worst = max(worst, table.small)
        table.settle(0)
        table.forget_snapshots(at_ms - WEEK_MS)
    return table.rewritten / table.written, worst


@pytest.mark.parametrize(
    ("size", "files", "commits", "most_small"),
    [
        (10 * KB // 16, 1, 500, 70),
        (MB // 16, 1, 400, 25),
        (8 * MB // 16, 1, 150, 10),
        (MB // 16, 60, 60, 10),
        (60 * MB // 16, 170, 3, 10),
        (170 * MB // 16, 60, 3, 10),
    ],
    ids=["10 KB", "1 MB", "8 MB", "60 of 1 MB", "170 of 60 MB", "60 of 170 MB"],
)
def test_a_byte_is_rewritten_at_most_three_times_at_any_hourly_rate(
    size: int, files: int, commits: int, most_small: int
) -> None:
    """From 10 KB to 10 GB an hour (rule: bounded-merge-rewrites); merged by size alone, a table of 1 MB an hour is
    rewritten four times."""
    amplification, small = simulate(size, files=files, commits=commits)
    assert amplification <= 3
    assert small <= most_small


@pytest.mark.parametrize(("size", "every"), [(MB // 16, 24), (10 * MB // 16, 25), (20 * MB // 16, 168)])
def test_a_table_with_a_file_a_day_is_not_at_rest(size: int, every: int) -> None:
    """At rest, it would be merged completely after each file: 28 bytes per byte at 1 MB a day."""
    amplification, small = simulate(size, every=every, commits=250)
    assert amplification <= 3
    assert small <= 25
