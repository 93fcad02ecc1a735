"""Work units that sort the rows of a file group: whole in one worker, or split by key and sorted range by range.

The fastest of the ways that were measured (platform 2): sample the key, cut the rows into ranges where they are read,
send them as Arrow IPC bytes, sort them where they arrive.  Every Arrow type can be sorted so, because rows never become
columns of Spark.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from icekeeper.errors import FileUnreadable, MaintenanceError
from icekeeper.model import DataFile
from icekeeper.operations.compaction.clustering.ranges import cut
from icekeeper.operations.compaction.clustering.row_order import RowOrder, fitted_curve
from icekeeper.operations.compaction.clustering.sorted_files import (
    ExpectedSize,
    SortedPiece,
    one_batch,
    sort_piece,
    write_sorted_files,
)
from icekeeper.operations.compaction.clustering.task import (
    PIECE_BYTES,
    RUN_BYTES,
    LaneResult,
    LaneTask,
    RunSlice,
    SplitReport,
    SplitTask,
)
from icekeeper.operations.compaction.proof import Evidence, RowProof, proof_of_file
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.operations.compaction.writing.planned_names import planned_sorted_files
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.storage.attempt_names import PlannedFile
from icekeeper.storage.scratch_folder import scratch_folder
from icekeeper.storage.storage import Storage

__all__ = ["lane_files", "merge_lane", "split_rows", "write_clustered"]

_IPC = pa.ipc.IpcWriteOptions(compression="lz4")
# Files that one lane may write; their numbers start a lane's share of a group's names.
_FILES_PER_LANE = 1000


def write_clustered(
    rows: Iterator[pa.RecordBatch], task: RewriteTask, recipe: ClusterRecipe, storage: Storage
) -> tuple[DataFile, ...] | None:
    """Sort all rows of a group and write them; ``None``, and no file, when one worker cannot hold them after all.

    Raises:
        StorageError: an input cannot be read or an output not written; no output of this attempt is left.
    """
    held = _taken(rows, PIECE_BYTES)
    if not held:
        return ()
    if _taken(rows, 1):
        return None
    batch = one_batch(held)
    order = RowOrder(recipe, task.schema, fitted_curve(recipe, task.schema, batch))
    promised = sum(source.record_count for source in task.inputs)
    input_bytes = sum(source.file_size_in_bytes for source in task.inputs)
    size = ExpectedSize(batch.nbytes, input_bytes * batch.num_rows / max(1, promised))
    return tuple(write_sorted_files([sort_piece(batch, order)], task, recipe, storage, size))


def split_rows(work: SplitTask) -> Iterator[tuple[int, RunSlice | SplitReport]]:
    """Read the live rows of the inputs and yield them as ``(lane, slice)``, at the end a report for the first lane.

    Never raises for what concerns only this group: the report says it.
    """
    started = time.perf_counter()
    tally = Tally()
    proof = RowProof(work.task.schema, work.task.proof)
    error: str | None = None
    unreadable: Mapping[str, str] = {}
    storage = Storage(work.task.io_properties)
    try:
        with closing(read_rows(work.task, storage, tally)) as rows:
            yield from _run_slices(work, proof.watch(rows))
    except FileUnreadable as problem:
        error, unreadable = str(problem), unreadable_files(work.task, storage)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    seconds = time.perf_counter() - started
    yield work.lanes[0], SplitReport(tally.read, tally.deleted, proof.evidence, seconds, error, unreadable)


def _run_slices(work: SplitTask, rows: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, RunSlice]]:
    task = work.task
    assert task.recipe is not None
    order = RowOrder(task.recipe, task.schema, work.curve)
    first_row, run = work.first_row, 0
    while held := _taken(rows, RUN_BYTES):
        batch = one_batch(held)
        keys = order.keys(batch)
        for number, indices in cut(keys, order.indices(keys), first_row, work.bounds, order.columns):
            part = batch.take(indices)
            yield work.lanes[number], RunSlice(number, (work.number, run), part.nbytes, _ipc_bytes(part))
        first_row += batch.num_rows
        run += 1


def merge_lane(lane: LaneTask, items: Iterable[RunSlice | SplitReport]) -> LaneResult:
    """Sort the rows that arrived, range by range, and write them; never raises for what concerns only this group.

    Slices arrive in any order, so they wait in files of a temporary directory, one per range.
    """
    started = time.perf_counter()
    task, recipe = lane.task, lane.task.recipe
    assert recipe is not None
    storage = Storage(task.io_properties)
    reports: list[SplitReport] = []
    written: list[DataFile] = []
    found = Evidence()
    error: str | None = None
    try:
        with scratch_folder("icekeeper-lane-") as folder:
            waiting = _WaitingSlices(folder)
            for item in items:
                if isinstance(item, SplitReport):
                    reports.append(item)
                else:
                    waiting.add(item)
            if waiting.arrow_bytes:
                pieces = _sorted_pieces(waiting, RowOrder(recipe, task.schema, lane.curve))
                size = ExpectedSize(waiting.arrow_bytes, waiting.arrow_bytes * lane.disk_ratio, lane.lanes)
                written = write_sorted_files(pieces, task, recipe, storage, size, lane.number * _FILES_PER_LANE)
            found = sum(
                (proof_of_file(file.file_path, task.schema, storage, task.proof) for file in written), Evidence()
            )
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    seconds = time.perf_counter() - started
    return LaneResult(task.group_id, tuple(written), found, tuple(reports), seconds, error)


def lane_files(lane: LaneTask, expected: int) -> Iterator[PlannedFile]:
    """The files that a lane may write if it becomes about ``expected`` of them, to be recorded beforehand."""
    return planned_sorted_files(lane.task, lane.number * _FILES_PER_LANE, expected)


class _WaitingSlices:
    """The run slices of one lane, kept in a folder, one file per range."""

    def __init__(self, folder: Path) -> None:
        self.arrow_bytes = 0
        self._folder = folder
        self._ranges: set[int] = set()

    def add(self, item: RunSlice) -> None:
        self.arrow_bytes += item.arrow_bytes
        self._ranges.add(item.range)
        with self._path(item.range).open("ab") as file:
            pickle.dump(item, file, pickle.HIGHEST_PROTOCOL)

    def ranges(self) -> Iterator[Iterator[RunSlice]]:
        """The slices of each range, lowest range first; each range can be read once."""
        for number in sorted(self._ranges):
            yield self._read(number)
            self._path(number).unlink()

    def _read(self, number: int) -> Iterator[RunSlice]:
        with self._path(number).open("rb") as file:
            while file.peek(1):
                yield pickle.load(file)

    def _path(self, number: int) -> Path:
        return self._folder / f"range-{number}"


def _sorted_pieces(waiting: _WaitingSlices, order: RowOrder) -> Iterator[SortedPiece]:
    for slices in waiting.ranges():
        held: list[tuple[tuple[int, int], pa.RecordBatch]] = []
        held_bytes = 0
        overlaps = False
        for part in slices:
            if held and held_bytes + part.arrow_bytes > PIECE_BYTES:
                yield _piece(held, order, overlaps)
                held_bytes, overlaps = 0, True
            held.append((part.run, pa.ipc.open_stream(part.data).read_next_batch()))
            held_bytes += part.arrow_bytes
        if held:
            yield _piece(held, order, overlaps)


def _piece(held: list[tuple[tuple[int, int], pa.RecordBatch]], order: RowOrder, overlaps: bool) -> SortedPiece:
    batches = [batch for _, batch in sorted(held, key=lambda pair: pair[0])]
    held.clear()
    return sort_piece(one_batch(batches), order, overlaps=overlaps)


def _taken(rows: Iterator[pa.RecordBatch], limit: int) -> list[pa.RecordBatch]:
    """The next batches with rows, until they have ``limit`` Arrow bytes; none when there are no more rows."""
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
