"""Tasks and results of workers that sort a file group together, and the key ranges that they share.

The rows of a group are cut into *ranges* of the sort key, each small enough to be sorted in memory.  Adjacent ranges
form a *lane*: one worker sorts its ranges one after another and writes them into files.  Tasks and results are
picklable.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.model import DataFile
from icekeeper.operations.compaction.clustering.sort_keys import ZOrderCurve
from icekeeper.operations.compaction.proof import Evidence
from icekeeper.operations.compaction.recipe import KeyColumn
from icekeeper.operations.compaction.rewrite_task import RewriteTask

# A bound may move by one part of this many of a range.
_EVEN_PART = 4


@dataclass(frozen=True, slots=True)
class Bound:
    """The start of a range: a key, and among rows of that key a row number within the group.

    With row numbers, rows of equal keys can be cut too.  A group whose rows all have one key still becomes ranges that
    fit into memory, in the order of its rows.
    """

    key: tuple[Any, ...]
    row: int


def choose_bounds(
    keys: Sequence[pa.Array | pa.ChunkedArray], rows: Sequence[int], order: pa.Array, ranges: int
) -> tuple[Bound, ...]:
    """``ranges - 1`` bounds that cut a sample into equal parts.

    ``rows`` are the numbers of the sampled rows within the group, ``order`` the indexes of the sample in sorted order.
    """
    count = len(order)
    positions = [order[count * i // ranges].as_py() for i in range(1, ranges)] if count else []
    return tuple(Bound(tuple(key[p].as_py() for key in keys), rows[p]) for p in positions)


def at_cells(bounds: Sequence[Bound], cells: pa.Array, count: int) -> tuple[Bound, ...]:
    """Move the bounds of a sample to places that divide a curve of ``count`` cells evenly.

    ``cells`` are the cells of the sample, sorted.  A bound stays if the share of rows before such a place differs from
    the share of cells, because many rows with equal values are in one cell.
    """
    ranges, rows = len(bounds) + 1, len(cells)
    moved = []
    for number, bound in enumerate(bounds, start=1):
        cell = count * number // ranges
        before = pc.sum(pc.less(cells, cell)).as_py() or 0
        is_even = abs(before - rows * number // ranges) <= rows // ranges // _EVEN_PART
        moved.append(Bound((cell,), 0) if is_even else bound)
    return tuple(moved)


def cut(
    keys: Sequence[pa.Array], order: pa.Array, first_row: int, bounds: Sequence[Bound], columns: Sequence[KeyColumn]
) -> Iterator[tuple[int, pa.Array]]:
    """Yield ``(range, indexes)`` for every range that has rows of a batch: indexes into the batch, sorted.

    ``order`` are all indexes of the batch, sorted; ``first_row`` is the number of its first row within the group.
    """

    def key_at(position: int) -> tuple[_Place, ...]:
        row = order[position].as_py()
        return _places([key[row].as_py() for key in keys], columns)

    start = 0
    for number, bound in enumerate(bounds):
        wanted = _places(bound.key, columns)
        low = bisect_left(range(len(order)), wanted, lo=start, key=key_at)
        high = bisect_right(range(len(order)), wanted, lo=low, key=key_at)
        # Rows of equal keys keep their order, so these numbers rise.
        end = bisect_left(range(len(order)), bound.row - first_row, lo=low, hi=high, key=lambda p: order[p].as_py())
        if end > start:
            yield number, order.slice(start, end - start)
        start = end
    if start < len(order):
        yield len(bounds), order.slice(start)


class _Place:
    """A value with the order of its key column: direction, nulls first or last."""

    __slots__ = ("_descending", "_null_side", "_value")

    def __init__(self, value: Any, column: KeyColumn) -> None:
        self._value = value
        self._descending = column.descending
        self._null_side = 0 if value is not None else (-1 if column.nulls_first else 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and (self._null_side, self._value) == (other._null_side, other._value)

    def __lt__(self, other: _Place) -> bool:
        if self._null_side or other._null_side:
            return self._null_side < other._null_side
        return bool(other._value < self._value if self._descending else self._value < other._value)

    __hash__ = None  # type: ignore[assignment]


def _places(values: Sequence[Any], columns: Sequence[KeyColumn]) -> tuple[_Place, ...]:
    return tuple(_Place(value, column) for value, column in zip(values, columns, strict=True))


MB = 1024 * 1024
# Planned Arrow bytes of a range.  With the copy for sorting and a row group, a worker needs about half a gigabyte.
RANGE_BYTES = 64 * MB
# Arrow bytes that are sorted at once before they are cut into ranges.
RUN_BYTES = 32 * MB
# The most Arrow bytes that are sorted at once.  A larger range, which the sample did not show, is sorted in pieces,
# each written into files of its own.
PIECE_BYTES = 4 * RANGE_BYTES


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Sample every ``step``-th row of some inputs of a group."""

    task: RewriteTask
    first_rows: tuple[int, ...]
    """Per input: the number of its first row within the group."""
    step: int

    @property
    def input_bytes(self) -> int:
        """Estimated bytes of the key columns in the files; see :class:`.ReadTask`."""
        recipe, columns = self.task.recipe, len(self.task.schema["fields"])
        keys = columns if recipe is None else len(recipe.columns)
        return self.task.input_bytes * min(keys, columns) // max(1, columns)


@dataclass(frozen=True, slots=True)
class Sample:
    """Sampled sort keys: one array per key column."""

    values: tuple[pa.Array, ...]
    rows: tuple[int, ...]
    """The numbers of the sampled rows within the group."""
    row_bytes: float
    """Arrow bytes of a row with all its columns."""
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """As in :class:`.RewriteResult`."""


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Read some inputs of a group and send every row to the lane of its key."""

    task: RewriteTask
    number: int
    """The number of the split task within the group."""
    first_row: int
    """The number of the first row within the group."""
    curve: ZOrderCurve | None
    bounds: tuple[Bound, ...]
    """The start of each range but the first."""
    lanes: tuple[int, ...]
    """Per range: the number of its lane."""

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadTask`."""
        return self.task.input_bytes


@dataclass(frozen=True, slots=True)
class RunSlice:
    """Sorted rows of one range."""

    range: int
    run: tuple[int, int]
    """The numbers of the split task and of the run within it; slices sorted by them are in the order of their rows."""
    arrow_bytes: int
    data: bytes
    """The rows as an Arrow IPC stream."""


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The report of a split task, which is sent to the group's first lane."""

    rows_read: int
    rows_deleted: int
    evidence: Evidence
    """Evidence of the rows sent to lanes."""
    seconds: float
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """As in :class:`.RewriteResult`."""


@dataclass(frozen=True, slots=True)
class LaneTask:
    """Sort the ranges of one lane and write them; ``task`` has no inputs."""

    task: RewriteTask
    number: int
    """The number of the lane within the group, from which its file names follow."""
    curve: ZOrderCurve | None
    disk_ratio: float
    """Bytes on disk per Arrow byte of the inputs."""
    lanes: int = 1
    """The number of lanes of the group."""

    def in_attempt(self, attempt: int) -> LaneTask:
        """The same lane with the file names of that attempt."""
        return replace(self, task=self.task.in_attempt(attempt))


@dataclass(frozen=True, slots=True)
class LaneResult:
    """The files that one lane wrote, and the split reports that it received."""

    group_id: int
    written: tuple[DataFile, ...]
    evidence: Evidence
    """Evidence of the rows in the written files."""
    reports: tuple[SplitReport, ...]
    seconds: float
    error: str | None = None
