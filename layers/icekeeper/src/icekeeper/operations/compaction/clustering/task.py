"""What workers exchange when a file group is sorted by several of them.  Plain picklable values.

A group's rows are cut into *ranges* of the sort key, each small enough to be sorted in memory.  Neighbouring ranges
form a *lane*: one worker sorts its ranges one after another and writes them into files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
# Arrow bytes of a range as planned: with the copy that sorting makes and a row group being written, a worker stays
# near half a gigabyte.
RANGE_BYTES = 64 * MB
# Arrow bytes that are sorted at once before they are cut into ranges.
RUN_BYTES = 32 * MB
# Arrow bytes sorted at once at most, should a sample have misled: what is left becomes files of its own.
PIECE_BYTES = 4 * RANGE_BYTES


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Look at some inputs of a group; ``first_rows`` are the numbers of their first rows within the group."""

    task: RewriteTask
    first_rows: tuple[int, ...]
    step: int
    """Every ``step``-th row is taken."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sort key values, the numbers of their rows within the group, and how wide whole rows are in Arrow."""

    values: tuple[pa.Array, ...]
    rows: tuple[int, ...]
    row_bytes: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Read some inputs of a group and send every row to the lane that its key belongs to."""

    task: RewriteTask
    number: int
    first_row: int
    curve: ZOrderCurve | None
    bounds: tuple[Bound, ...]
    lanes: tuple[int, ...]
    """Per range: the number of its lane within the exchange."""


@dataclass(frozen=True, slots=True)
class RunSlice:
    """Sorted rows of one range as an Arrow IPC stream; ``run`` puts slices in the order of their rows."""

    range: int
    run: tuple[int, int]
    arrow_bytes: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What a split did; it goes to the group's first lane."""

    rows_read: int
    rows_deleted: int
    evidence: Evidence
    """Of the rows that it sent on."""
    seconds: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LaneTask:
    """Sort the ranges of one lane and write them; ``task`` has no inputs."""

    task: RewriteTask
    number: int
    """Within the group; lanes name their files by it."""
    curve: ZOrderCurve | None
    disk_ratio: float
    """Bytes on disk per Arrow byte, as the inputs have it."""

    def in_attempt(self, attempt: int) -> LaneTask:
        """The lane as this attempt writes it."""
        return replace(self, task=self.task.in_attempt(attempt))


@dataclass(frozen=True, slots=True)
class LaneResult:
    """What one lane wrote, and the split reports that it got."""

    group_id: int
    written: tuple[DataFile, ...]
    evidence: Evidence
    """Of the rows in what it wrote."""
    reports: tuple[SplitReport, ...]
    seconds: float
    error: str | None = None
