"""Finds the sorted runs of a partition, and where they lie over one another, from manifest entries alone (pure).

A *run* is what one rewrite sorted together: its files follow one another without overlap, so that a lookup opens one
of them.  Which files form a run is read off the table and needs no memory of ours: entries keep the id of the snapshot
that added their file, and where files of one snapshot overlap nevertheless, the fewest runs are made of them that do
not.

Files that a value merely ends and begins, or that hold one single value, do not overlap by the sort key: sorting them
together again would change nothing.  On a z-order curve files of one run overlap in every single column, so there a run
is all that one snapshot added, and runs lie over one another only where they do so in every column.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from icekeeper.metadata.overlap_depth import ABOVE_ALL, BELOW_ALL, Extent, Place, column_extent
from icekeeper.model import DataFile
from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.operations.compaction.recipe import ClusterRecipe, KeyColumn
from icekeeper.policy import Strategy
from icekeeper.rows.arrow_schema import leaf_columns

__all__ = ["KeyRange", "Layout", "Piece", "pieces_of_runs", "single_value"]

KeyRange: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Where the keys of a file begin and end."""
# Nulls are a value of their own to a sort, at whichever end; which one does not matter to overlap.
_NULL: Place = (-1,)
# Transforms whose results rise with the value, so that bounds of the values are bounds of the key.
_RISING = frozenset({"identity", "truncate", "year", "month", "day", "hour"})
_WHOLE: KeyRange = ((BELOW_ALL,), (ABOVE_ALL,))


@dataclass(frozen=True, slots=True)
class Piece:
    """A file as part of a run."""

    run: Hashable
    ranges: tuple[KeyRange, ...]
    """One by the sort key, or one per column of a z-order curve."""
    rows: int


@dataclass(frozen=True, slots=True)
class Layout:
    """By which columns a table is clustered, and of which types they are."""

    columns: tuple[KeyColumn, ...]
    types: Mapping[int, str]
    """Iceberg type by field id."""
    is_curve: bool = False
    """Whether rows lie along a z-order curve, not in the order of the columns."""
    _decoded: dict[tuple[str, int], Extent | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By path and field id, so that a plan decodes the bounds of each file once."""

    @classmethod
    def of(cls, recipe: ClusterRecipe, schema: Mapping[str, Any]) -> Layout:
        types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(schema)}
        return cls(recipe.columns, types, recipe.strategy is Strategy.ZORDER)

    @property
    def measured(self) -> tuple[KeyColumn, ...]:
        """The columns by which lookups skip files: all of a curve, the first one of a sort order."""
        return self.columns if self.is_curve else self.columns[:1]

    def extent(self, file: DataFile, column: KeyColumn) -> Extent | None:
        """Which values of a column the file may hold; ``None``: it holds none."""
        key = file.file_path, column.field_id
        if key not in self._decoded:
            self._decoded[key] = column_extent(file, column.field_id, self.types.get(column.field_id, ""))
        return self._decoded[key]

    def ranges(self, file: DataFile) -> tuple[KeyRange, ...]:
        if not self.is_curve:
            return (self._key_range(file),)
        return tuple(self._column_range(file, column) for column in self.columns)

    def _column_range(self, file: DataFile, column: KeyColumn) -> KeyRange:
        extent = self.extent(file, column)
        return ((_NULL,), (_NULL,)) if extent is None else ((extent.low,), (extent.high,))

    def _key_range(self, file: DataFile) -> KeyRange:
        """By the columns in turn, as long as the file has one single value of each; then by the next one."""
        same: tuple[Place, ...] = ()
        for column in self.columns:
            if column.transform.partition("[")[0] not in _RISING:
                return (*same, BELOW_ALL), (*same, ABOVE_ALL)
            ((low,), (high,)) = self._column_range(file, column)
            if low != high:
                # After every file that holds one value of the column, which is this one's lowest.
                return (*same, low, ABOVE_ALL), (*same, high)
            same = (*same, low)
        return same, same


def single_value(key_range: KeyRange) -> bool:
    """Whether all rows have one key, so that no sorting divides them."""
    return key_range[0] == key_range[1]


def pieces_of_runs(files: Sequence[Candidate], layout: Layout) -> list[Piece]:
    """The clustered files of a partition as pieces of the runs that they belong to, in the order given."""
    ranges = [layout.ranges(c.file) for c in files]
    runs: list[Hashable] = [c.identity.snapshot_id for c in files]
    if not layout.is_curve:
        by_snapshot: dict[Hashable, list[int]] = {}
        for number, snapshot_id in enumerate(runs):
            by_snapshot.setdefault(snapshot_id, []).append(number)
        for snapshot_id, numbers in by_snapshot.items():
            own = _fewest_runs([ranges[n][0] for n in numbers])
            for number, run in zip(numbers, own, strict=True):
                # A file of one single key is a run of its own: no merge makes it easier to skip.
                runs[number] = snapshot_id, run if run is not None else ("single", number)
    return [Piece(run, r, c.file.record_count) for run, r, c in zip(runs, ranges, files, strict=True)]


def _fewest_runs(ranges: Iterable[KeyRange]) -> list[int | None]:
    """Per file the number of its run: the fewest runs in which files follow one another; ``None``: it has one key.

    A file of unknown ends is put into the first: nothing tells that it is not part of it.
    """
    ranges = list(ranges)
    own: list[int | None] = [None if single_value(r) else 0 for r in ranges]
    free: list[int] = []
    busy: list[tuple[tuple[Any, ...], int]] = []
    opened = 0
    for number in sorted(range(len(ranges)), key=lambda n: ranges[n]):
        low, high = ranges[number]
        if own[number] is None or _is_open(ranges[number]):
            continue
        while busy and busy[0][0] <= low:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, opened)
            opened += 1
        run = heapq.heappop(free)
        own[number] = run
        heapq.heappush(busy, (high, run))
    return own


def _is_open(key_range: KeyRange) -> bool:
    """Whether a bound is unknown."""
    return BELOW_ALL in key_range[0] or key_range[1][-1] == ABOVE_ALL
