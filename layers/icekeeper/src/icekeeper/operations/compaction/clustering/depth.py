"""Measures how deep a plan's partitions overlap in the clustering columns, before and after it (pure).

Lookups by a sort order skip files by its first column, those by a z-order curve by any of its columns; for a curve the
depth is the average over them.  Each partition is looked into by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from icekeeper.metadata.overlap_depth import (
    ABOVE_ALL,
    BELOW_ALL,
    Extent,
    Place,
    measure_depth,
    total_depth,
)
from icekeeper.model import DataFile
from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.operations.compaction.clustering.runs import Layout

__all__ = ["ClusteringDepth"]

_Extents = tuple[Extent | None, ...]
"""Per clustering column; ``None``: the file holds no value of it."""


@dataclass(frozen=True, slots=True)
class ClusteringDepth:
    """Where the files that a plan chose from lie in the clustering columns."""

    layout: Layout
    partitions: tuple[Mapping[str, _Extents], ...]
    """Path → extents, per partition."""

    @classmethod
    def of(cls, partitions: Iterable[Sequence[Candidate]], layout: Layout) -> ClusteringDepth:
        return cls(layout, tuple({c.file.file_path: _extents(c.file, layout) for c in files} for files in partitions))

    def now(self) -> float:
        """How many files a lookup of one value opens, on average over bytes."""
        return self._mean([list(partition.values()) for partition in self.partitions])

    def with_outputs(self, groups: Iterable[tuple[Sequence[str], Sequence[DataFile]]]) -> float:
        """The depth after groups are replaced: paths of inputs, and the files that came of them."""
        return self._after([(inputs, [_extents(file, self.layout) for file in files]) for inputs, files in groups])

    def as_planned(self, groups: Iterable[tuple[Sequence[str], int]]) -> float:
        """The depth to expect: paths of inputs, and how many files they become, in order by the key or the curve."""
        known = {path: extents for partition in self.partitions for path, extents in partition.items()}
        return self._after(
            [(inputs, self._expected([known[path] for path in inputs], outputs)) for inputs, outputs in groups]
        )

    def _expected(self, inputs: Sequence[_Extents], outputs: int) -> list[_Extents]:
        """Outputs that divide the values of each column evenly; a curve divides each column into fewer stretches."""
        columns = len(self.layout.measured)
        stretches = max(1, round(outputs ** (1 / columns)))
        size = sum(next((e.size for e in extents if e is not None), 0) for extents in inputs) // max(1, outputs)
        cuts = [_cuts([extents[n] for extents in inputs], stretches) for n in range(columns)]
        return [
            tuple(
                None if cut is None else _extent(cut[number // stretches**n % stretches], size)
                for n, cut in enumerate(cuts)
            )
            for number in range(outputs)
        ]

    def _after(self, groups: Sequence[tuple[Sequence[str], Sequence[_Extents]]]) -> float:
        gone = {path for inputs, _ in groups for path in inputs}
        place = {path: number for number, partition in enumerate(self.partitions) for path in partition}
        after = [[e for path, e in partition.items() if path not in gone] for partition in self.partitions]
        for inputs, outputs in groups:
            after[place[inputs[0]]].extend(outputs)
        return self._mean(after)

    def _mean(self, partitions: Sequence[Sequence[_Extents]]) -> float:
        columns = range(len(self.layout.measured))
        depths = [
            total_depth(measure_depth(e for extents in files if (e := extents[n]) is not None) for files in partitions)
            for n in columns
        ]
        return round(sum(depth.point for depth in depths) / len(columns), 2)


def _extents(file: DataFile, layout: Layout) -> _Extents:
    return tuple(layout.extent(file, column) for column in layout.measured)


def _extent(ends: tuple[Place, Place], size: int) -> Extent:
    return Extent(ends[0], ends[1], size)


def _cuts(
    extents: Sequence[Extent | None], stretches: int
) -> list[tuple[tuple[object, ...], tuple[object, ...]]] | None:
    """The ends of each stretch; unknown ends stay unknown, ``None``: there are no values."""
    present = [e for e in extents if e is not None]
    if not present:
        return None
    if any(e.low == BELOW_ALL or e.high == ABOVE_ALL for e in present):
        return [(BELOW_ALL, ABOVE_ALL)] * stretches
    ends = sorted(end for e in present for end in (e.low, e.high))
    below = [end for end in ends if end < ends[-1]]
    if not below:
        return [(ends[0], ends[0])] * stretches
    # Between equal ends a cut lies just above them: which value it is does not matter to how many files meet there.
    cuts = [(*below[i * len(below) // stretches], i) for i in range(1, stretches)]
    return list(pairwise([ends[0], *cuts, ends[-1]]))
