"""Where entries in partition order are cut: into manifests, and before that into what one worker handles (pure)."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

from icekeeper.metadata.single_value import Section
from icekeeper.operations.manifests.partition_ranges import PartitionOrder

__all__ = ["OrderKey", "Place", "even_cuts", "lane_bounds"]

Place: TypeAlias = tuple[Section, PartitionOrder]
"""Of a partition: sections come one after the other, since none shares a manifest with another."""
OrderKey: TypeAlias = tuple[Place, int, str] | tuple[Place]
"""Partition, data sequence number and path; of a partition alone: before all its entries."""

# A cut moves by so much of a manifest to where a partition ends.
_TOLERANCE = 8


def even_cuts(sizes: Sequence[int], ends_partition: Sequence[bool], room: int, most: int) -> list[int]:
    """Ends of the manifests that blocks of these sizes are put into: as few as fit ``room`` bytes each, ``most`` at
    most, of about even size, cut at the end of a partition where there is one near by."""
    totals = list(itertools.accumulate(sizes))
    count = min(len(sizes), most, max(1, math.ceil(totals[-1] / room))) if sizes else 0
    if not count:
        return []
    even = totals[-1] / count
    cuts: list[int] = []
    start = 0
    for number in range(1, count):
        first, last = start + 1, len(sizes) - (count - number)
        aim = number * even
        nearest = min(max(bisect_left(totals, aim) + 1, first), last)
        if nearest > first and aim - totals[nearest - 2] < totals[nearest - 1] - aim:
            nearest -= 1
        low = max(first, bisect_left(totals, aim - even / _TOLERANCE) + 1)
        high = min(last, bisect_left(totals, aim + even / _TOLERANCE))
        ends = [end for end in range(low, high + 1) if ends_partition[end - 1]]
        start = min(ends, key=lambda end: abs(totals[end - 1] - aim), default=nearest)
        cuts.append(start)
    return [*cuts, len(sizes)]


def lane_bounds(sample: Sequence[tuple[Place, int, str]], lanes: int) -> list[OrderKey]:
    """Keys that cut the entries into so many lanes or fewer, as a sample of them shows; a partition that needs no lane
    of its own stays whole."""
    keys = sorted(sample)
    bounds: list[OrderKey] = []
    for number in range(1, lanes):
        key = keys[len(keys) * number // lanes]
        begins = bisect_left(keys, (key[0], -1, ""))
        ends = bisect_left(keys, (key[0], math.inf, ""), lo=begins)
        bound: OrderKey = (key[0],) if ends - begins <= len(keys) / lanes else key
        if not bounds or bounds[-1] < bound:
            bounds.append(bound)
    return bounds
