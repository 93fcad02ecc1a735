"""Which sorted runs are merged: never more often than the tiers' formula, and never piled up deeper than it says."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.operations.compaction.clustering.plan_clustering import Piece, run_depth, runs_to_merge, tier_of

OUTPUT_ROWS = 10_000


def piece(run: int, low: float, high: float, rows: int = 1000) -> Piece:
    return Piece(run, (((low,), (high,)),), rows)


def merged(pieces: Sequence[Piece], groups: Sequence[Sequence[int]], next_run: int) -> list[Piece]:
    """The partition afterwards: each group is one run of files that follow one another."""
    gone = {n for group in groups for n in group}
    after = [p for n, p in enumerate(pieces) if n not in gone]
    for number, group in enumerate(groups):
        ends = sorted(end[0] for n in group for end in pieces[n].ranges[0])
        rows = sum(pieces[n].rows for n in group)
        count = max(1, min(round(rows / OUTPUT_ROWS), len(ends) - 1))
        cuts = [ends[round(i * (len(ends) - 1) / count)] for i in range(count + 1)]
        for i in range(count):
            share = rows * (i + 1) // count - rows * i // count
            after.append(piece(next_run + number, cuts[i], cuts[i + 1], share))
    return after


@dataclass
class Table:
    """A partition to which runs are appended, and what that cost."""

    limit: int = 4
    factor: int = 4
    pieces: list[Piece] = field(default_factory=list)
    appended: int = 0
    rows_written: int = 0
    depths: list[int] = field(default_factory=list)

    def append(self, low: float, high: float, rows: int = 1000) -> None:
        self.appended += 1
        self.rows_written += rows
        self.pieces.append(piece(2 * self.appended, low, high, rows))
        groups = runs_to_merge(self.pieces, limit=self.limit, factor=self.factor)
        if groups:
            self.rows_written += sum(self.pieces[n].rows for group in groups for n in group)
            # Odd names: at most one pass an append, and never more than a few groups.
            self.pieces = merged(self.pieces, groups, 1_000_001 + 100 * self.appended)
        if groups or self.appended % 10 == 0:
            self.depths.append(run_depth(self.pieces))

    @property
    def amplification(self) -> float:
        return self.rows_written / sum(p.rows for p in self.pieces)


KEYS: dict[str, Callable[[random.Random, int], tuple[float, float]]] = {
    "random": lambda rng, n: (rng.random(), 100 - rng.random()),
    "in order": lambda rng, n: (10 * n, 10 * n + 12),
    "late rows": lambda rng, n: (10 * n - rng.expovariate(1 / 50), 10 * n + 12),
    "very late rows": lambda rng, n: (10 * n - rng.expovariate(1 / 3000), 10 * n + 12),
    "hot keys": lambda rng, n: ((c := 1000 * rng.random() ** 4) - 50 * rng.random(), c + 200 * rng.random()),
}


def appended(keys: str, appends: int) -> Table:
    rng, table = random.Random(7), Table()
    for n in range(appends):
        table.append(*KEYS[keys](rng, n))
    return table


def test_a_thousand_appends_cost_and_leave_what_the_formula_says() -> None:
    """Rows are rewritten 1 + log_T(runs) times at most, and at most T - 1 runs a tier lie over one another."""
    table = appended("random", 1000)
    assert table.amplification <= 1 + math.log(1000, 4)
    assert max(table.depths) <= 14
    assert sum(table.depths) / len(table.depths) < 8
    assert len(table.pieces) <= 110  # of 10,000 rows each, and what waits


@pytest.mark.parametrize("keys", ["late rows", "very late rows", "hot keys"])
def test_the_formula_holds_wherever_rows_come(keys: str) -> None:
    table = appended(keys, 250)
    assert table.amplification <= 1 + math.log(250, 4)
    assert max(table.depths) <= 3 * (math.ceil(math.log(250, 4)) + 1)


def test_rows_that_come_in_order_are_never_sorted_again() -> None:
    table = appended("in order", 100)
    assert table.amplification == 1.0
    assert max(table.depths) == 2


@pytest.mark.parametrize("factor", [2, 3, 8, 10])
def test_the_factor_trades_bytes_rewritten_for_depth(factor: int) -> None:
    table = Table(factor=factor)
    for _ in range(300):
        table.append(0, 100)
    assert table.amplification <= 1 + math.log(300, factor)
    assert max(table.depths) <= max(table.limit, (factor - 1) * (math.ceil(math.log(300, factor)) + 1))


def test_within_the_limit_nothing_is_merged() -> None:
    piled = [piece(n, 0, 9) for n in range(4)]
    assert runs_to_merge(piled, limit=4, factor=2) == []
    assert runs_to_merge(piled, limit=3, factor=2) == [[0, 1, 2, 3]]
    assert runs_to_merge(piled[:3], limit=2, factor=4) == []  # too few of a tier


def test_runs_of_another_tier_are_left_alone() -> None:
    """Five small runs over a large one: merging it with them each time would rewrite it each time."""
    large = [piece(1, n, n + 1, OUTPUT_ROWS) for n in range(10)]
    small = [piece(2 + n, 0, 10, 500) for n in range(5)]
    assert runs_to_merge([*large, *small], limit=4, factor=4) == [[10, 11, 12, 13, 14]]


def test_what_a_merge_brings_about_is_merged_at_once() -> None:
    """Three runs of a tier and four of the one below, whose merge makes the fourth and is still too deep."""
    above = [piece(n, 0, 9, 4 * 256) for n in range(3)]
    below = [piece(10 + n, 0, 9, 256) for n in range(4)]
    assert runs_to_merge([*above, *below], limit=3, factor=4) == [[0, 1, 2, 3, 4, 5, 6]]


def test_runs_that_touch_or_hold_one_key_do_not_overlap() -> None:
    touching = [piece(n, n, n + 1) for n in range(9)]
    one_key = [piece(10 + n, 5, 5) for n in range(9)]
    assert run_depth(touching) == run_depth([*touching, *one_key]) == 1
    assert runs_to_merge([*touching, *one_key], limit=1, factor=2) == []


def test_on_a_curve_runs_must_overlap_in_every_column() -> None:
    def box(run: int, first: tuple[int, int], second: tuple[int, int]) -> Piece:
        return Piece(run, (((first[0],), (first[1],)), ((second[0],), (second[1],))), 100)

    apart = [box(n, (0, 9), (10 * n, 10 * n + 9)) for n in range(6)]
    assert run_depth(apart) == 1
    assert runs_to_merge(apart, limit=1, factor=2) == []
    piled = [box(n, (0, 9), (0, 9)) for n in range(6)]
    assert runs_to_merge(piled, limit=4, factor=4) == [[0, 1, 2, 3, 4, 5]]
    # One country, all times: the single value of one column does not hide the other.
    assert run_depth([box(n, (7, 7), (0, 9)) for n in range(6)]) == 6


@pytest.mark.parametrize(("rows", "tier"), [(0, 0), (1, 0), (3, 0), (4, 1), (15, 1), (16, 2), (4**9 - 1, 8), (4**9, 9)])
def test_tiers_are_powers_of_the_factor(rows: int, tier: int) -> None:
    assert tier_of(rows, 4) == tier


ranges = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda t: (min(t), max(t)))
partitions = st.lists(
    st.tuples(st.integers(0, 12), ranges, st.integers(1, 5000)).map(lambda t: piece(t[0], *t[1], t[2])), max_size=40
)


def depth_by_hand(pieces: Sequence[Piece]) -> int:
    ends = sorted({end[0] for p in pieces for end in p.ranges[0]})
    between = [(a + b) / 2 for a, b in pairwise(ends)]
    return max((len({p.run for p in pieces if p.ranges[0][0][0] < x < p.ranges[0][1][0]}) for x in between), default=0)


@given(partitions)
def test_the_sweep_counts_runs_as_one_counts_by_hand(pieces: list[Piece]) -> None:
    assert run_depth(pieces) == depth_by_hand(pieces)


@given(partitions, st.integers(1, 6), st.integers(2, 5))
def test_merges_leave_nothing_to_merge_and_lift_every_row_a_tier(pieces: list[Piece], limit: int, factor: int) -> None:
    groups = runs_to_merge(pieces, limit=limit, factor=factor)
    assert (groups == []) or run_depth(pieces) > limit
    rows: Counter[object] = Counter()
    for p in pieces:
        rows[p.run] += p.rows
    members = [n for group in groups for n in group]
    assert len(members) == len(set(members))
    for group in groups:
        runs = {pieces[n].run for n in group}
        # Whole runs, and every one of them comes out at least one tier higher.
        assert len([p for p in pieces if p.run in runs]) == len(group)
        lifted = tier_of(sum(pieces[n].rows for n in group), factor)
        assert all(lifted > tier_of(rows[run], factor) for run in runs)
        assert len(runs) >= factor
    named = [
        Piece(f"out{next(i for i, group in enumerate(groups) if n in group)}", p.ranges, p.rows) if n in members else p
        for n, p in enumerate(pieces)
    ]
    assert runs_to_merge(named, limit=limit, factor=factor) == []
    assert run_depth(named) <= run_depth(pieces)
    if run_depth(named) > limit:
        tiers = {tier_of(sum(p.rows for p in named if p.run == run), factor) for run in {p.run for p in named}}
        assert run_depth(named) <= (factor - 1) * len(tiers)
