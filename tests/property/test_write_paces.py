"""Bin-packed tables of any pace: what is rewritten per byte written, and how many small files there are at worst."""

from __future__ import annotations

import pytest

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import Nothing
from support.paper_table import MB, Arrival, PaperTable
from support.plans import policy

KB = 1024
START_MS = 1_760_000_000_000
WEEK_MS = 7 * 24 * HOUR_MS


def played(size: int, *, files: int = 1, every: int = 1, commits: int) -> tuple[float, int]:
    """A pass every hour, as many files at a time every few hours: bytes rewritten per byte, small files at worst.

    The target is a sixteenth of the default, so that a file is full sixteen times as soon.
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
        (100 * KB // 16, 1, 700, 50),
        (MB // 16, 1, 400, 25),
        (3 * MB // 16, 1, 300, 20),
        (8 * MB // 16, 1, 150, 10),
        (MB // 16, 60, 60, 10),
        (60 * MB // 16, 170, 3, 10),
        (170 * MB // 16, 60, 3, 10),
    ],
    ids=["10 KB", "100 KB", "1 MB", "3 MB", "8 MB", "60 of 1 MB", "170 of 60 MB", "60 of 170 MB"],
)
def test_a_byte_is_rewritten_three_times_at_most_whatever_came_in_an_hour(
    size: int, files: int, commits: int, most_small: int
) -> None:
    """From 10 KB to 10 GB an hour (rule 50); merged by size alone, tables of 1 MB an hour are rewritten four times."""
    amplification, small = played(size, files=files, commits=commits)
    assert amplification <= 3
    assert small <= most_small


@pytest.mark.parametrize(("size", "every"), [(MB // 16, 24), (10 * MB // 16, 25), (20 * MB // 16, 168)])
def test_a_table_that_gets_a_file_a_day_is_not_taken_for_one_at_rest(size: int, every: int) -> None:
    """It would be merged as a whole between any two files: 28 bytes per byte at 1 MB a day."""
    amplification, small = played(size, every=every, commits=250)
    assert amplification <= 3
    assert small <= 25
