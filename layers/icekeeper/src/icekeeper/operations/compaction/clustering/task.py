"""What workers get and give back when several of them sort a file group: picklable values.

A group's rows are cut into *ranges* of the sort key, each small enough to be sorted in memory.  Neighbouring ranges
form a *lane*: one worker sorts its ranges one after another and writes them into files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from icekeeper.model import DataFile
from icekeeper.operations.compaction.clustering.ranges import Bound
from icekeeper.operations.compaction.clustering.zorder import ZOrderCurve
from icekeeper.operations.compaction.proof import Evidence
from icekeeper.operations.compaction.task import RewriteTask

__all__ = [
    "PIECE_BYTES",
    "RANGE_BYTES",
    "RUN_BYTES",
    "LaneResult",
    "LaneTask",
    "RunSlice",
    "Sample",
    "SampleTask",
    "SplitReport",
    "SplitTask",
]

MB = 1024 * 1024
# Planned Arrow bytes of a range: with the copy that sorting makes and a row group that is written, a worker needs
# about half a gigabyte.
RANGE_BYTES = 64 * MB
# Arrow bytes that are sorted at once before they are cut into ranges.
RUN_BYTES = 32 * MB
# At most so many Arrow bytes are sorted at once.  A range that is larger, because the sample misled, is sorted in
# pieces, each written into files of its own.
PIECE_BYTES = 4 * RANGE_BYTES


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Sample some inputs of a group."""

    task: RewriteTask
    first_rows: tuple[int, ...]
    """Per input: the number of its first row within the group."""
    step: int
    """Every ``step``-th row is taken."""

    @property
    def input_bytes(self) -> int:
        """About what the key columns take of the files; see :class:`.ReadTask`."""
        recipe, columns = self.task.recipe, len(self.task.schema["fields"])
        keys = columns if recipe is None else len(recipe.columns)
        return self.task.input_bytes * min(keys, columns) // max(1, columns)


@dataclass(frozen=True, slots=True)
class Sample:
    """Sampled sort keys."""

    values: tuple[pa.Array, ...]
    """Per key column: the values of the sampled rows."""
    rows: tuple[int, ...]
    """The numbers of the sampled rows within the group."""
    row_bytes: float
    """Arrow bytes of a row with all its columns."""
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """As in :class:`.RewriteResult`."""


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Read some inputs of a group and send every row to the lane that its key belongs to."""

    task: RewriteTask
    number: int
    """Of the split task within the group."""
    first_row: int
    """The number of the first row within the group."""
    curve: ZOrderCurve | None
    bounds: tuple[Bound, ...]
    """Where each range but the first begins."""
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
    """The numbers of the split task and of the run within it; they put slices in the order of their rows."""
    arrow_bytes: int
    data: bytes
    """The rows as an Arrow IPC stream."""


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What a split task did; it is sent to the group's first lane."""

    rows_read: int
    rows_deleted: int
    evidence: Evidence
    """Evidence of the rows that it sent to lanes."""
    seconds: float
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """As in :class:`.RewriteResult`."""


@dataclass(frozen=True, slots=True)
class LaneTask:
    """Sort the ranges of one lane and write them; ``task`` has no inputs."""

    task: RewriteTask
    number: int
    """Of the lane within the group; it numbers the files that the lane writes."""
    curve: ZOrderCurve | None
    disk_ratio: float
    """Bytes on disk per Arrow byte of the inputs."""
    lanes: int = 1
    """How many lanes the group has."""

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
