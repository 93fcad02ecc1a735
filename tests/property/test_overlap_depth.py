"""How many files a lookup opens: counted by a sweep as by hand, and unknown bounds cover everything."""

from __future__ import annotations

import itertools
import math
import struct
import time

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
from support.plans import data_file

LONG = struct.Struct("<q")


def extent(low: int | None, high: int | None, size: int = 1) -> Extent:
    return Extent(BELOW_ALL if low is None else (1, low), ABOVE_ALL if high is None else (1, high), size)


def by_hand(extents: list[Extent]) -> OverlapDepth:
    """The definition, file by file and place by place."""
    points = sorted({end for e in extents for end in (e.low, e.high) if end not in (BELOW_ALL, ABOVE_ALL)})
    size = sum(e.size for e in extents)
    if not points:
        return OverlapDepth(len(extents), size, len(extents), len(extents), len(extents))
    gaps = list(itertools.pairwise(points))
    width = max(1, math.ceil(len(points) / 100))

    def holding(low: Place, high: Place) -> int:
        return sum(e.low <= low and e.high >= high for e in extents)

    def point(e: Extent) -> float:
        own = [(b[1] - a[1], holding(a, b)) for a, b in gaps if e.low <= a and e.high >= b]
        width = sum(w for w, _ in own)
        return sum(w * depth for w, depth in own) / width if own else holding(*[max(e.low, points[0])] * 2)

    def ranged(e: Extent) -> int:
        start = max(e.low, points[0])
        end = points[min(len(points) - 1, points.index(start) + width)]
        return sum(o.low <= end and o.high >= start for o in extents)

    def mean(values: list[float]) -> float:
        weights = [e.size for e in extents] if size else [1] * len(extents)
        return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)

    deepest = max(holding(p, p) for p in points)
    return OverlapDepth(
        len(extents), size, mean([point(e) for e in extents]), mean([ranged(e) for e in extents]), deepest
    )


ends = st.one_of(st.none(), st.integers(0, 12), st.integers(0, 400))


@st.composite
def extents(draw: st.DrawFn) -> Extent:
    low, high = draw(ends), draw(ends)
    if low is not None and high is not None:
        low, high = min(low, high), max(low, high)
    return extent(low, high, draw(st.integers(0, 50)))


@given(st.lists(extents(), min_size=1, max_size=120))
def test_the_sweep_counts_as_one_counts_by_hand(files: list[Extent]) -> None:
    swept, counted = measure_depth(files), by_hand(files)
    assert (swept.files, swept.size, swept.deepest) == (counted.files, counted.size, counted.deepest)
    assert swept.point == pytest.approx(counted.point)
    assert swept.small_range == pytest.approx(counted.small_range)


def test_sorted_files_have_depth_1_and_spread_ones_that_of_all() -> None:
    in_order = [extent(n, n + 1) for n in range(200)]
    assert measure_depth(in_order).point == 1
    assert measure_depth(in_order).deepest == 2  # a value that ends one file and begins the next
    assert measure_depth(in_order).small_range == pytest.approx(4.96, abs=0.05)
    assert measure_depth([extent(0, 9)] * 7) == OverlapDepth(7, 7, 7.0, 7.0, 7)


def test_bytes_weigh() -> None:
    """A lookup meets the large file that lies alone nine times out of ten."""
    assert measure_depth([extent(0, 1, 90), extent(5, 6, 5), extent(5, 6, 5)]).point == pytest.approx(1.1)


def test_one_file_of_unknown_bounds_is_opened_for_everything() -> None:
    known = [extent(n, n + 1) for n in range(10)]
    assert measure_depth([*known, extent(None, None)]).point == pytest.approx(2.0)
    assert measure_depth([*known, extent(5, None)]).point == pytest.approx((5 + 5 * 2 + 2) / 11)
    assert measure_depth([extent(None, None)] * 3) == OverlapDepth(3, 3, 3.0, 3.0, 3)
    assert measure_depth([]) == OverlapDepth(0, 0, 0.0, 0.0, 0)


def test_partitions_are_looked_into_one_by_one() -> None:
    deep, flat = measure_depth([extent(0, 9, 10)] * 4), measure_depth([extent(0, 9, 60)])
    assert total_depth([deep, flat, measure_depth([])]) == OverlapDepth(5, 100, 2.2, 2.2, 4)
    assert total_depth([]) == OverlapDepth(0, 0, 0.0, 0.0, 0)


def bounded(low: bytes | None, high: bytes | None, **more: object) -> Extent | None:
    bounds = {
        "lower_bounds": None if low is None else {1: low},
        "upper_bounds": {} if high is None else {1: high},
    }
    return column_extent(data_file("f", 5, **(bounds | more)), 1, str(more.pop("kind", "long")))  # type: ignore[arg-type]


def of_type(kind: str, low: bytes, high: bytes) -> Extent | None:
    return column_extent(data_file("f", 5, lower_bounds={1: low}, upper_bounds={1: high}), 1, kind)


EVERYTHING = Extent(BELOW_ALL, ABOVE_ALL, 5)


def test_bounds_become_an_extent() -> None:
    assert bounded(LONG.pack(-3), LONG.pack(7)) == extent(-3, 7, 5)
    assert of_type("long", struct.pack("<i", -3), LONG.pack(7)) == extent(-3, 7, 5)  # from before a promotion
    decimals = of_type("decimal(9,2)", b"\xff", b"\x01\x00")
    assert decimals == extent(-1, 256, 5)
    cut = of_type("string", b"ab", b"ac")
    assert cut is not None
    assert (cut.low, cut.high) == ((1, b"ab"), (1, b"ac"))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (None, None, EVERYTHING),
        (LONG.pack(3), None, extent(3, None, 5)),  # a string of the highest characters has no upper bound
        (None, LONG.pack(3), extent(None, 3, 5)),
        (b"\x01", LONG.pack(3), extent(None, 3, 5)),
        (LONG.pack(4), LONG.pack(3), EVERYTHING),
    ],
)
def test_what_bounds_do_not_tell_is_everything(low: bytes | None, high: bytes | None, expected: Extent) -> None:
    assert bounded(low, high) == expected


def test_a_bound_that_is_nan_tells_nothing() -> None:
    nan, one = struct.pack("<d", math.nan), struct.pack("<d", 1.0)
    assert of_type("double", nan, nan) == EVERYTHING
    half = of_type("double", one, nan)
    assert half is not None
    assert (half.low, half.high) == ((1, (1.0, 1)), ABOVE_ALL)


def test_a_file_of_nulls_alone_is_opened_for_no_value() -> None:
    assert bounded(None, None, value_counts={1: 10}, null_value_counts={1: 10}) is None
    assert bounded(None, None, value_counts={1: 10}, null_value_counts={1: 9}) == EVERYTHING
    assert bounded(None, None, null_value_counts={1: 10}) == EVERYTHING
    assert bounded(None, None, records=0) is None


def test_ten_thousand_files_are_measured_in_a_moment() -> None:
    """As a sweep does; comparing all pairs would take minutes."""
    files = [extent(n * 7919 % 10_000, n * 7919 % 10_000 + n % 50) for n in range(10_000)]
    started = time.process_time()
    assert measure_depth(files).files == 10_000
    assert time.process_time() - started < 2


@pytest.mark.parametrize("scale", ["numbers", "decimals below zero", "doubles", "strings"])
def test_values_of_any_type_lie_apart_as_their_bounds_do(scale: str) -> None:
    """Three files over nearly all values: a value is looked for in nearly three, wherever their ends lie."""

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
