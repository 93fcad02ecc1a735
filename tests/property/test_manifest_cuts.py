"""Where a merged manifest is cut, and where the next lane begins: evenly, and rather where a partition ends."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.operations.manifests.layout import Place, even_cuts, lane_bounds
from support.examples import examples


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 400),
    st.integers(1, 60),
)
def test_cuts_are_even_and_prefer_the_ends_of_partitions(blocks: list[tuple[int, bool]], room: int, most: int) -> None:
    """As few as fit; none more than an eighth of a manifest, or one block, away from where it would be even."""
    sizes, ends = [size for size, _ in blocks], [end for _, end in blocks]
    cuts = even_cuts(sizes, ends, room, most)
    assert cuts == sorted(set(cuts))
    assert cuts[-1] == len(sizes)
    assert len(cuts) == min(len(sizes), most, max(1, math.ceil(sum(sizes) / room)))
    even = sum(sizes) / len(cuts)
    totals = [sum(sizes[:cut]) for cut in cuts]
    if max(sizes) <= even / 8:  # rare; exact cases are below
        for number, total in enumerate(totals, start=1):
            assert abs(total - number * even) <= even / 8 + 1e-6
        for number, cut in enumerate(cuts[:-1], start=1):
            near = [i for i in range(1, len(sizes)) if ends[i - 1] and abs(sum(sizes[:i]) - number * even) <= even / 8]
            assert ends[cut - 1] or not near


def test_lanes_begin_where_partitions_do_unless_one_fills_several() -> None:
    def key(partition: int, number: int) -> tuple[Place, int, str]:
        return ((), ((1, partition),)), number, f"{partition}-{number}"

    assert lane_bounds([key(p, n) for p in range(8) for n in range(5)], 4) == [(((), ((1, p),)),) for p in (2, 4, 6)]
    assert lane_bounds([key(0, n) for n in range(8)], 4) == [key(0, n) for n in (2, 4, 6)]
    assert lane_bounds([key(0, 0)], 4) == [key(0, 0)]


def test_a_cut_moves_to_where_a_partition_ends_near_by() -> None:
    """By an eighth of a manifest at most, to the nearest; else it stays where the manifests are even."""

    def cut_of(*ends: int) -> list[int]:
        return even_cuts([10] * 20, [i + 1 in ends for i in range(20)], 100, 99)

    assert cut_of() == [10, 20]
    assert cut_of(9) == [9, 20]
    assert cut_of(11) == [11, 20]
    assert cut_of(8, 12) == [10, 20]
    assert cut_of(9, 10) == [10, 20]
