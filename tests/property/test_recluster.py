"""Which sorted runs are merged, and the number of files that a lookup opens."""

from __future__ import annotations

import itertools
import math
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.metadata.overlap_depth import (
    ABOVE_ALL,
    BELOW_ALL,
    Extent,
    OverlapDepth,
    Place,
    column_extent,
    measure_depth,
    total_depth,
)
from icekeeper.operations.compaction.plan import plan_clustering
from icekeeper.operations.compaction.plan.plan_clustering import Piece, runs_to_merge, tier_of
from support.plans import data_file

# Merges of sorted runs keep to the formula of the tiers, in write amplification and in depth.

OUTPUT_ROWS = 10_000


def piece(run: int, low: float, high: float, rows: int = 1000) -> Piece:
    return Piece(run, (((low,), (high,)),), rows)


def run_depth(pieces: Sequence[Piece]) -> int:
    """The number of runs that overlap at the worst key; on a curve, in the column with the fewest overlapping runs."""
    runs = [piece.run for piece in pieces]
    return min((sweep.depth(runs) for sweep in plan_clustering._sweeps(pieces)), default=0)


def merged(pieces: Sequence[Piece], groups: Sequence[Sequence[int]], next_run: int) -> list[Piece]:
    """The partition after the merge: each group becomes a single run of consecutive files."""
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
    """A partition to which runs are appended, with the rows written and the depths."""

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
            # Odd run numbers are unique: there is at most one pass per append, with a few groups.
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


def test_a_thousand_appends_keep_to_the_formula() -> None:
    """Rows are written at most 1 + log_T(runs) times, and at most T - 1 runs of each tier overlap."""
    table = appended("random", 1000)
    assert table.amplification <= 1 + math.log(1000, 4)
    assert max(table.depths) <= 14
    assert sum(table.depths) / len(table.depths) < 8
    assert len(table.pieces) <= 110  # of 10,000 rows each, and unmerged pieces


@pytest.mark.parametrize("keys", ["late rows", "very late rows", "hot keys"])
def test_the_formula_holds_for_late_and_hot_keys(keys: str) -> None:
    table = appended(keys, 150)
    assert table.amplification <= 1 + math.log(150, 4)
    assert max(table.depths) <= 3 * (math.ceil(math.log(150, 4)) + 1)


def test_rows_that_arrive_in_order_are_never_sorted_again() -> None:
    table = appended("in order", 100)
    assert table.amplification == 1.0
    assert max(table.depths) == 2


def test_runs_are_merged_by_tier() -> None:
    piled = [piece(n, 0, 9) for n in range(4)]
    assert runs_to_merge(piled, limit=4, factor=2) == [], "within the limit"
    assert runs_to_merge(piled, limit=3, factor=2) == [[0, 1, 2, 3]]
    assert runs_to_merge(piled[:3], limit=2, factor=4) == [], "too few of a tier"
    # Five small runs over a large run: the large run is not rewritten for them.
    large = [piece(1, n, n + 1, OUTPUT_ROWS) for n in range(10)]
    small = [piece(2 + n, 0, 10, 500) for n in range(5)]
    assert runs_to_merge([*large, *small], limit=4, factor=4) == [[10, 11, 12, 13, 14]]
    # Three runs of a tier and four of the tier below: their merge is a fourth run, which is still too deep.
    above = [piece(n, 0, 9, 4 * 256) for n in range(3)]
    below = [piece(10 + n, 0, 9, 256) for n in range(4)]
    assert runs_to_merge([*above, *below], limit=3, factor=4) == [[0, 1, 2, 3, 4, 5, 6]]
    # Runs that only touch, or hold a single key, do not overlap.
    apart = [*(piece(n, n, n + 1) for n in range(9)), *(piece(10 + n, 5, 5) for n in range(9))]
    assert run_depth(apart) == run_depth(apart[:9]) == 1
    assert runs_to_merge(apart, limit=1, factor=2) == []
    rows = (0, 1, 3, 4, 15, 16, 4**9 - 1, 4**9)
    assert [tier_of(count, 4) for count in rows] == [0, 0, 0, 1, 1, 2, 8, 9], "tiers are powers of the factor"


def test_on_a_curve_runs_must_overlap_in_every_column() -> None:
    def box(run: int, first: tuple[int, int], second: tuple[int, int]) -> Piece:
        return Piece(run, (((first[0],), (first[1],)), ((second[0],), (second[1],))), 100)

    apart = [box(n, (0, 9), (10 * n, 10 * n + 9)) for n in range(6)]
    assert run_depth(apart) == 1
    assert runs_to_merge(apart, limit=1, factor=2) == []
    piled = [box(n, (0, 9), (0, 9)) for n in range(6)]
    assert runs_to_merge(piled, limit=4, factor=4) == [[0, 1, 2, 3, 4, 5]]
    # A column with a single value does not hide the overlap in the other column.
    assert run_depth([box(n, (7, 7), (0, 9)) for n in range(6)]) == 6


ranges = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda t: (min(t), max(t)))
partitions = st.lists(
    st.tuples(st.integers(0, 12), ranges, st.integers(1, 5000)).map(lambda t: piece(t[0], *t[1], t[2])), max_size=40
)


def depth_by_hand(pieces: Sequence[Piece]) -> int:
    ends = sorted({end[0] for p in pieces for end in p.ranges[0]})
    between = [(a + b) / 2 for a, b in pairwise(ends)]
    return max((len({p.run for p in pieces if p.ranges[0][0][0] < x < p.ranges[0][1][0]}) for x in between), default=0)


@given(partitions)
def test_the_sweep_counts_runs_correctly(pieces: list[Piece]) -> None:
    assert run_depth(pieces) == depth_by_hand(pieces)


@given(partitions, st.integers(1, 6), st.integers(2, 5))
def test_merges_converge_and_lift_every_row_a_tier(pieces: list[Piece], limit: int, factor: int) -> None:
    groups = runs_to_merge(pieces, limit=limit, factor=factor)
    assert (groups == []) or run_depth(pieces) > limit
    rows: Counter[object] = Counter()
    for p in pieces:
        rows[p.run] += p.rows
    members = [n for group in groups for n in group]
    assert len(members) == len(set(members))
    for group in groups:
        runs = {pieces[n].run for n in group}
        # Groups contain whole runs, and each run rises by at least one tier.
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


# How many files a lookup opens: a sweep equals a count by hand, and unknown bounds cover everything.

LONG = struct.Struct("<q")


def extent(low: int | None, high: int | None, size: int = 1) -> Extent:
    return Extent(BELOW_ALL if low is None else (1, low), ABOVE_ALL if high is None else (1, high), size)


def by_hand(extents: list[Extent]) -> OverlapDepth:
    """The definition, evaluated for each file and each place."""
    points = sorted({end for e in extents for end in (e.low, e.high) if end not in (BELOW_ALL, ABOVE_ALL)})
    size = sum(e.size for e in extents)
    if not points:
        return OverlapDepth(len(extents), size, len(extents))
    gaps = list(itertools.pairwise(points))

    def holding(low: Place, high: Place) -> int:
        return sum(e.low <= low and e.high >= high for e in extents)

    def point(e: Extent) -> float:
        own = [(b[1] - a[1], holding(a, b)) for a, b in gaps if e.low <= a and e.high >= b]
        width = sum(w for w, _ in own)
        return sum(w * depth for w, depth in own) / width if own else holding(*[max(e.low, points[0])] * 2)

    def mean(values: list[float]) -> float:
        weights = [e.size for e in extents] if size else [1] * len(extents)
        return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)

    return OverlapDepth(len(extents), size, mean([point(e) for e in extents]))


ends = st.one_of(st.none(), st.integers(0, 12), st.integers(0, 400))


@st.composite
def extents(draw: st.DrawFn) -> Extent:
    low, high = draw(ends), draw(ends)
    if low is not None and high is not None:
        low, high = min(low, high), max(low, high)
    return extent(low, high, draw(st.integers(0, 50)))


@given(st.lists(extents(), min_size=1, max_size=120))
def test_the_sweep_counts_opened_files_correctly(files: list[Extent]) -> None:
    swept, counted = measure_depth(files), by_hand(files)
    assert (swept.files, swept.size) == (counted.files, counted.size)
    assert swept.point == pytest.approx(counted.point)


def test_sorted_files_have_depth_1_and_overlapping_files_full_depth() -> None:
    in_order = [extent(n, n + 1) for n in range(200)]
    assert measure_depth(in_order).point == 1
    assert measure_depth([extent(0, 9)] * 7) == OverlapDepth(7, 7, 7.0)


def test_depth_weighs_bytes_and_unknown_bounds_match_every_lookup() -> None:
    """Nine of ten lookups open the large file, which overlaps no other file; partitions are added up."""
    assert measure_depth([extent(0, 1, 90), extent(5, 6, 5), extent(5, 6, 5)]).point == pytest.approx(1.1)
    known = [extent(n, n + 1) for n in range(10)]
    assert measure_depth([*known, extent(None, None)]).point == pytest.approx(2.0)
    assert measure_depth([*known, extent(5, None)]).point == pytest.approx((5 + 5 * 2 + 2) / 11)
    assert measure_depth([extent(None, None)] * 3) == OverlapDepth(3, 3, 3.0)
    deep, flat = measure_depth([extent(0, 9, 10)] * 4), measure_depth([extent(0, 9, 60)])
    assert total_depth([deep, flat, measure_depth([])]) == OverlapDepth(5, 100, 2.2)
    assert total_depth([]) == measure_depth([]) == OverlapDepth(0, 0, 0.0)


def bounded(low: bytes | None, high: bytes | None, **more: object) -> Extent | None:
    bounds = {"lower_bounds": None if low is None else {1: low}, "upper_bounds": {} if high is None else {1: high}}
    return column_extent(data_file("f", 5, **(bounds | more)), 1, str(more.pop("kind", "long")))  # type: ignore[arg-type]


def of_type(kind: str, low: bytes, high: bytes) -> Extent | None:
    return column_extent(data_file("f", 5, lower_bounds={1: low}, upper_bounds={1: high}), 1, kind)


EVERYTHING = Extent(BELOW_ALL, ABOVE_ALL, 5)


def test_bounds_become_an_extent() -> None:
    assert bounded(LONG.pack(-3), LONG.pack(7)) == extent(-3, 7, 5)
    assert of_type("long", struct.pack("<i", -3), LONG.pack(7)) == extent(-3, 7, 5)  # written before the promotion
    assert of_type("decimal(9,2)", b"\xff", b"\x01\x00") == extent(-1, 256, 5)
    assert of_type("string", b"ab", b"ac") == Extent((1, b"ab"), (1, b"ac"), 5)
    for low, high, expected in (
        (None, None, EVERYTHING),
        (LONG.pack(3), None, extent(3, None, 5)),  # a string of the highest characters has no truncated upper bound
        (None, LONG.pack(3), extent(None, 3, 5)),
        (b"\x01", LONG.pack(3), extent(None, 3, 5)),
        (LONG.pack(4), LONG.pack(3), EVERYTHING),
    ):
        assert bounded(low, high) == expected
    nan, one_bound = struct.pack("<d", math.nan), struct.pack("<d", 1.0)
    assert of_type("double", nan, nan) == EVERYTHING
    assert of_type("double", one_bound, nan) == Extent((1, (1.0, 1)), ABOVE_ALL, 5)
    # A file that contains only nulls is opened for no value.
    assert bounded(None, None, value_counts={1: 10}, null_value_counts={1: 10}) is None
    assert bounded(None, None, value_counts={1: 10}, null_value_counts={1: 9}) == EVERYTHING
    assert bounded(None, None, null_value_counts={1: 10}) == EVERYTHING
    assert bounded(None, None, records=0) is None


def test_ten_thousand_files_are_measured_quickly() -> None:
    """A sweep does this; comparing all pairs would take minutes."""
    files = [extent(n * 7919 % 10_000, n * 7919 % 10_000 + n % 50) for n in range(10_000)]
    started = time.process_time()
    assert measure_depth(files).files == 10_000
    assert time.process_time() - started < 2


@pytest.mark.parametrize("scale", ["numbers", "decimals below zero", "doubles", "strings"])
def test_distances_are_measured_between_values_of_any_type(scale: str) -> None:
    """Three files cover nearly all values, so a lookup opens nearly three files, whatever the exact bounds."""

    def place(n: int) -> Place:
        if scale == "strings":
            return 1, b"user-" + bytes([n])
        return 1, {"numbers": n, "decimals below zero": n - 10**30, "doubles": (n / 3 - 5.0, 1)}[scale]

    files = [Extent(place(n), place(200 - n), 1) for n in range(3)]
    expected = ((196 * 3 + 2 * 2 + 2) / 200 + (196 * 3 + 2 * 2) / 198 + 3) / 3
    assert measure_depth(files).point == pytest.approx(expected, rel=1e-6)


def test_infinite_and_very_small_doubles_are_measured_too() -> None:
    ends = [-math.inf, -1.0, 0.0, 5e-324, math.inf]
    files = [Extent((1, (a, 1)), (1, (b, 1)), 1) for a in ends for b in ends if a <= b]
    assert 1 <= measure_depth(files).point <= len(files)
    tiny = [Extent((1, (0.0, 1)), (1, (5e-324, 1)), 1)] * 2
    assert measure_depth(tiny).point == 2
