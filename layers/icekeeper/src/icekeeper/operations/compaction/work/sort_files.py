"""Units of work that sort the rows of a file group: in a single worker, or divided by key and sorted range by range.

The second way was the fastest in measurements (docs/decisions/rdd-and-arrow.md): sample the key, cut the rows
into ranges where they are read, send them as Arrow IPC bytes, and sort them where they arrive.  Every Arrow type can be
sorted, because rows never become columns of Spark.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from icekeeper.engines.engine import Payload
from icekeeper.errors import FileUnreadable, MaintenanceError
from icekeeper.model import DataFile
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask, planned_sorted_files
from icekeeper.operations.compaction.work.proof import Evidence, RowProof, proof_of_file
from icekeeper.operations.compaction.work.sort_keys import Bound, RowOrder, ZOrderCurve, cut, fitted_curve, holds_column
from icekeeper.operations.compaction.work.sorted_output import (
    FileSizes,
    SortedPiece,
    one_batch,
    sort_piece,
    write_sorted_files,
)
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.storage.local_files import scratch_folder
from icekeeper.storage.paths import PlannedFile
from icekeeper.storage.storage import Storage

_IPC = pa.ipc.IpcWriteOptions(compression="lz4")
# Arrow bytes of a slice.  A large group has so many ranges that a slice for each range of a run would have a few rows,
# and every slice has the schema and is compressed alone: 51 columns of a group of 100 GB took 15 bytes for a byte.
_SLICE_BYTES = 256 * 1024
# The most files of a lane; a lane's file numbers start at a multiple of it.
_FILES_PER_LANE = 1000


# Tasks and results of workers that sort a file group together are picklable.  Adjacent ranges of the key form a *lane*:
# a worker sorts its ranges one after another and writes them into files.

MB = 1024 * 1024
# Planned Arrow bytes of a range.  With the copy for sorting and a row group, a worker needs about half a gigabyte.
RANGE_BYTES = 64 * MB
# Arrow bytes that are sorted at once before they are cut into ranges.
RUN_BYTES = 32 * MB
# The most Arrow bytes that are sorted at once.  A range that turns out larger than the sample showed is sorted in
# pieces, each written into files of its own.
PIECE_BYTES = 4 * RANGE_BYTES


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Sample every ``step``-th row of some inputs of a group."""

    task: RewriteTask
    first_rows: tuple[int, ...]
    """Per input: the number of its first row within the group."""
    step: int
    lanes: int
    """The number of lanes of the group."""

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
    sent_bytes: float
    """Bytes of a row on its way to a lane; see :func:`_row_sizes`."""
    free_bytes: int
    """Free bytes of the disk on which the worker keeps rows."""
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
    """The start of each range except the first."""
    lanes: tuple[int, ...]
    """Per range: the number of its lane."""
    exchanged: range
    """The lanes of this exchange, if the group is sorted in several; rows of other lanes are read and not sent."""
    is_again: bool = False
    """Whether an earlier exchange has read the inputs, and has reported their rows."""

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadTask`."""
        return self.task.input_bytes


Run: TypeAlias = tuple[int, int]
"""The numbers of the split task and of the run within it; sorting rows by them restores their order."""


@dataclass(frozen=True, slots=True)
class RunSlice:
    """The rows of a run that are in ranges of a lane, in the order of the ranges."""

    ranges: tuple[tuple[int, int], ...]
    """The numbers of the ranges, each with the number of its rows."""
    run: Run
    arrow_bytes: int
    data: Payload
    """The rows as an Arrow IPC stream."""


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The report of a split task, which is sent to the group's first lane."""

    rows_read: int
    rows_deleted: int
    evidence: Evidence
    """Evidence of the rows that were read."""
    split: int
    """The number of the split task within the group."""
    lanes: frozenset[int]
    """The lanes for which the inputs have rows, also lanes of other exchanges."""
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """As in :class:`.RewriteResult`."""


@dataclass(frozen=True, slots=True)
class LaneTask:
    """Sort the ranges of a lane and write them; ``task`` has no inputs."""

    task: RewriteTask
    number: int
    """The number of the lane within the group; it determines the lane's file names."""
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
    """The files that a lane wrote, and the split reports that it received."""

    group_id: int
    written: tuple[DataFile, ...]
    evidence: Evidence
    """Evidence of the rows in the written files."""
    reports: tuple[SplitReport, ...]
    error: str | None = None


def write_clustered(
    rows: Iterator[pa.RecordBatch], task: RewriteTask, recipe: ClusterRecipe, storage: Storage
) -> tuple[DataFile, ...] | None:
    """Sort all rows of a group and write them; ``None`` and no file if the rows turn out too large for a worker.

    Raises:
        StorageError: an input cannot be read or an output cannot be written; no output of this attempt remains.
    """
    held = _taken(rows, PIECE_BYTES)
    if not held:
        return ()
    if _taken(rows, 1):
        return None
    batch = one_batch(held)
    order = RowOrder(recipe, task.schema, fitted_curve(recipe, task.schema, batch))
    disk_bytes = task.file_bytes * batch.num_rows / max(1, task.record_count)
    sizes = FileSizes(recipe, task.most_files, batch.nbytes, disk_bytes)
    return tuple(write_sorted_files([sort_piece(batch, order)], task, storage, sizes))


def split_rows(work: SplitTask) -> Iterator[tuple[int, RunSlice | SplitReport]]:
    """Read the live rows of the inputs and yield ``(part, slice)`` for the lanes of this exchange, then a report for
    its first lane, which is part 0.

    Errors that affect only this group are in the report, not raised.
    """
    tally = Tally()
    seen: set[int] = set()
    proof = RowProof(work.task.schema, work.task.proof)
    error: str | None = None
    unreadable: Mapping[str, str] = {}
    storage = Storage(work.task.io_properties)
    try:
        with closing(read_rows(work.task, storage, tally)) as rows:
            for lane, part in _run_slices(work, rows if work.is_again else proof.watch(rows)):
                seen.add(lane)
                if lane in work.exchanged:
                    yield work.exchanged.index(lane), part()
    except FileUnreadable as problem:
        error, unreadable = str(problem), unreadable_files(work.task, storage)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    read, deleted = (0, 0) if work.is_again else (tally.read, tally.deleted)
    yield 0, SplitReport(read, deleted, proof.evidence, work.number, frozenset(seen), error, unreadable)


def _run_slices(work: SplitTask, rows: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Callable[[], RunSlice]]]:
    """Every slice with its lane; the slice is made when it is called."""
    task = work.task
    assert task.recipe is not None
    order = RowOrder(task.recipe, task.schema, work.curve)
    first_row, run = work.first_row, 0
    while held := _taken(rows, RUN_BYTES):
        batch = one_batch(held)
        keys = order.keys(batch)
        parts = cut(keys, order.indices(keys), first_row, work.bounds, order.columns)
        least_rows = _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes)
        for lane, of_lane in groupby(parts, key=lambda part: work.lanes[part[0]]):
            for together in _together(of_lane, least_rows):
                yield lane, partial(_slice, batch, together, (work.number, run))
        first_row += batch.num_rows
        run += 1


def _together(parts: Iterable[tuple[int, pa.Array]], least_rows: int) -> Iterator[list[tuple[int, pa.Array]]]:
    """Put adjacent ranges together that have few rows; the last may have fewer than ``least_rows``."""
    held: list[tuple[int, pa.Array]] = []
    for part in parts:
        held.append(part)
        if sum(len(indices) for _, indices in held) >= least_rows:
            yield held
            held = []
    if held:
        yield held


def _slice(batch: pa.RecordBatch, parts: Sequence[tuple[int, pa.Array]], run: Run) -> RunSlice:
    rows = batch.take(pa.concat_arrays([indices for _, indices in parts]))
    return RunSlice(
        tuple((number, len(indices)) for number, indices in parts), run, rows.nbytes, Payload(_ipc_bytes(rows))
    )


def merge_lane(lane: LaneTask, items: Iterable[RunSlice | SplitReport]) -> LaneResult:
    """Sort the rows that arrived, range by range, and write them.

    Errors that affect only this group are in the result, not raised.
    """
    task, recipe = lane.task, lane.task.recipe
    assert recipe is not None
    storage = Storage(task.io_properties)
    reports: list[SplitReport] = []
    written: list[DataFile] = []
    found = Evidence()
    error: str | None = None
    try:
        with scratch_folder("icekeeper-lane-") as folder:
            waiting = _WaitingRows(folder)
            for item in items:
                if isinstance(item, SplitReport):
                    reports.append(item)
                else:
                    waiting.add(item)
            if size := waiting.arrow_bytes:
                pieces = waiting.sorted_pieces(RowOrder(recipe, task.schema, lane.curve))
                sizes = FileSizes(recipe, task.most_files, size, size * lane.disk_ratio, lane.lanes)
                written = write_sorted_files(pieces, task, storage, sizes, lane.number * _FILES_PER_LANE)
            found = sum(
                (proof_of_file(file.file_path, task.schema, storage, task.proof) for file in written), Evidence()
            )
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    return LaneResult(task.group_id, tuple(written), found, tuple(reports), error)


def lane_files(lane: LaneTask, expected: int) -> Iterator[PlannedFile]:
    """The files that a lane may write if about ``expected`` are needed, to be recorded beforehand."""
    return planned_sorted_files(lane.task, lane.number * _FILES_PER_LANE, expected)


_Part: TypeAlias = tuple[Run, pa.RecordBatch]
"""Rows of a run in one range."""
_Stored: TypeAlias = tuple[int, list[tuple[Run, int]], Payload]
"""Rows of a range in a file: their Arrow bytes, the runs with the number of rows of each, and the rows."""


class _WaitingRows:
    """The rows of a lane, which wait until all have arrived, in any order.

    They wait in files: where the engine keeps them, or in one file per range.  Small parts of ranges wait in memory
    until they have twice the bytes of a run, so that few parts of a range are stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[int, list[_Part]] = defaultdict(list)
        self._held_bytes = 0
        self._stored: dict[int, list[_Stored]] = defaultdict(list)
        self.arrow_bytes = 0

    def add(self, item: RunSlice) -> None:
        """Add the rows of a slice; rows of a single range are stored as they came."""
        self.arrow_bytes += item.arrow_bytes
        if len(item.ranges) == 1:
            ((number, rows),) = item.ranges
            self._append(number, item.arrow_bytes, [(item.run, rows)], item.data)
            return
        batch, start = pa.ipc.open_stream(item.data.read()).read_next_batch(), 0
        for number, rows in item.ranges:
            self._held[number].append((item.run, batch.slice(start, rows)))
            start += rows
        self._held_bytes += item.arrow_bytes
        if self._held_bytes >= 2 * RUN_BYTES:
            self._store()

    def sorted_pieces(self, order: RowOrder) -> Iterator[SortedPiece]:
        """All rows, range by range; a range that is too large for the memory becomes several pieces that overlap."""
        if self._stored:
            self._store()
        for number in sorted(self._stored or self._held):
            held: list[_Part] = []
            held_bytes = 0
            overlaps = False
            for size, parts in self._portions(number):
                if held and held_bytes + size > PIECE_BYTES:
                    yield _piece(held, order, overlaps)
                    held_bytes, overlaps = 0, True
                held += parts
                held_bytes += size
            if held:
                yield _piece(held, order, overlaps)

    def _store(self) -> None:
        for number, parts in self._held.items():
            rows = one_batch([batch for _, batch in parts])
            runs = [(run, batch.num_rows) for run, batch in parts]
            self._append(number, rows.nbytes, runs, Payload(_ipc_bytes(rows)))
        self._held.clear()
        self._held_bytes = 0

    def _append(self, number: int, arrow_bytes: int, runs: list[tuple[Run, int]], data: Payload) -> None:
        self._stored[number].append((arrow_bytes, runs, data.stored(self._path(number))))

    def _portions(self, number: int) -> Iterator[tuple[int, list[_Part]]]:
        """The Arrow bytes and parts of a range as they were stored; they are gone afterwards."""
        if not self._stored:
            parts = self._held.pop(number)
            yield sum(batch.nbytes for _, batch in parts), parts
            return
        for size, runs, data in self._stored.pop(number):
            batch, start, parts = pa.ipc.open_stream(data.read()).read_next_batch(), 0, []
            for run, rows in runs:
                parts.append((run, batch.slice(start, rows)))
                start += rows
            yield size, parts
        self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"range-{number}"


def _piece(held: list[_Part], order: RowOrder, overlaps: bool) -> SortedPiece:
    batches = [batch for _, batch in sorted(held, key=lambda pair: pair[0])]
    held.clear()
    return sort_piece(one_batch(batches), order, overlaps=overlaps)


def _taken(rows: Iterator[pa.RecordBatch], limit: int) -> list[pa.RecordBatch]:
    """The next batches with rows, until they have ``limit`` Arrow bytes; empty if there are no more rows."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
            if size >= limit:
                break
    return held


def _ipc_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_IPC) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def sample_keys(work: SampleTask) -> Sample:
    """Read the key columns of some files and take every n-th row, including deleted rows.

    Errors that affect only this group are in the sample, not raised.
    """
    task, recipe = work.task, work.task.recipe
    assert recipe is not None
    storage = Storage(task.io_properties)
    wanted = {column.field_id for column in recipe.columns}
    key_schema = {**task.schema, "fields": [f for f in task.schema["fields"] if holds_column(f, wanted)]}
    order = RowOrder(recipe, key_schema)
    values: list[list[pa.Array]] = []
    rows: list[int] = []
    try:
        for source, first_row in zip(task.inputs, work.first_rows, strict=True):
            offset = 0
            for batch in projected_rows(task.readable(source), key_schema, storage):
                # Steps count through the whole file, not from the start of each batch.
                some = pa.arange(-offset % work.step, max(-offset % work.step, batch.num_rows), work.step)
                values.append([array.take(some) for array in order.keys(batch)])
                rows.extend(first_row + offset + i for i in some.to_pylist())
                offset += batch.num_rows
        sizes = _row_sizes(task, work.lanes, storage)
        free_bytes = free_disk_bytes(os.environ)
    except FileUnreadable as problem:
        return Sample((), (), 0.0, 0.0, 0, str(problem), unreadable_files(task, storage))
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        return Sample((), (), 0.0, 0.0, 0, f"{type(error).__name__}: {error}")
    columns = [pa.concat_arrays(parts) for parts in zip(*values, strict=True)]
    return Sample(tuple(columns), tuple(rows), *sizes, free_bytes)


def _row_sizes(task: RewriteTask, lanes: int, storage: Storage) -> tuple[float, float]:
    """Bytes per row with all columns, in Arrow and as sent in slices of runs to a number of lanes, measured on the
    first batch that has rows."""
    for source in task.inputs:
        for batch in projected_rows(task.readable(source), task.schema, storage):
            if batch.num_rows:
                row_bytes = float(batch.nbytes / batch.num_rows)
                size = min(RUN_BYTES / lanes, _SLICE_BYTES)
                rows = min(batch.num_rows, max(1, int(size / max(1.0, row_bytes))))
                return row_bytes, len(_ipc_bytes(batch.slice(0, rows))) / rows
    return 0.0, 0.0


def free_disk_bytes(environment: Mapping[str, str]) -> int:
    """Free bytes where this worker keeps rows: in the temporary folder, and in Spark's folders for a shuffle.

    Spark passes these folders to its Python workers (``org.apache.spark.api.python.BasePythonRunner``).
    """
    folders = [tempfile.gettempdir(), *filter(None, environment.get("SPARK_LOCAL_DIRS", "").split(","))]
    return min(shutil.disk_usage(folder).free for folder in folders)
