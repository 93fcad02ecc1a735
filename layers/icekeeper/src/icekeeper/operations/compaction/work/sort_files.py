"""Work units that sort the rows of a file group: in one worker, or divided by key and sorted range by range.

The second way is the fastest that was measured (platform: arrow-sorts-faster-than-spark): sample the key, cut the rows
into ranges where they are read, send them as Arrow IPC bytes, and sort them where they arrive.  Every Arrow type can be
sorted, because rows never become columns of Spark.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import FileUnreadable, MaintenanceError
from icekeeper.model import DataFile
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask, planned_sorted_files
from icekeeper.operations.compaction.terms.write_properties import for_sample
from icekeeper.operations.compaction.work.proof import Evidence, RowProof, proof_of_file
from icekeeper.operations.compaction.work.sort_keys import (
    CURVE_BITS,
    Bound,
    RowOrder,
    ZOrderCurve,
    cut,
    fitted_curve,
    holds_column,
    row_taker,
)
from icekeeper.operations.compaction.work.write_file import write_data_file
from icekeeper.policy import Strategy
from icekeeper.rows.file_rows import BATCH_ROWS, projected_rows
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.storage.local_files import scratch_folder
from icekeeper.storage.paths import PlannedFile
from icekeeper.storage.storage import Storage

_IPC = pa.ipc.IpcWriteOptions(compression="lz4")
# The most files of one lane; file numbers of a lane start at a multiple of it.
_FILES_PER_LANE = 1000


# Tasks and results of workers that sort a file group together are picklable.  Adjacent ranges of the key form a
# *lane*: one worker sorts its ranges one after another and writes them into files.

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
    error: str | None = None


def write_clustered(
    rows: Iterator[pa.RecordBatch], task: RewriteTask, recipe: ClusterRecipe, storage: Storage
) -> tuple[DataFile, ...] | None:
    """Sort all rows of a group and write them; ``None`` and no file if they do not fit into one worker after all.

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
    """Read the live rows of the inputs and yield them as ``(lane, slice)``, then a report for the first lane.

    Errors of this group alone are in the report, not raised.
    """
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
    yield work.lanes[0], SplitReport(tally.read, tally.deleted, proof.evidence, error, unreadable)


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
    """Sort the rows that arrived, range by range, and write them.

    Slices arrive in any order, so they wait in files of a temporary directory, one per range.  Errors of this group
    alone are in the result, not raised.
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
            bytes_by_range: Counter[int] = Counter()
            for item in items:
                if isinstance(item, SplitReport):
                    reports.append(item)
                    continue
                bytes_by_range[item.range] += item.arrow_bytes
                with _waiting(folder, item.range).open("ab") as file:
                    pickle.dump(item, file, pickle.HIGHEST_PROTOCOL)
            if size := bytes_by_range.total():
                pieces = _sorted_pieces(folder, sorted(bytes_by_range), RowOrder(recipe, task.schema, lane.curve))
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


def _waiting(folder: Path, number: int) -> Path:
    return folder / f"range-{number}"


def _sorted_pieces(folder: Path, ranges: Iterable[int], order: RowOrder) -> Iterator[SortedPiece]:
    for path in (_waiting(folder, number) for number in ranges):
        held: list[tuple[tuple[int, int], pa.RecordBatch]] = []
        held_bytes = 0
        overlaps = False
        with path.open("rb") as file:
            while file.peek(1):
                part: RunSlice = pickle.load(file)
                if held and held_bytes + part.arrow_bytes > PIECE_BYTES:
                    yield _piece(held, order, overlaps)
                    held_bytes, overlaps = 0, True
                held.append((part.run, pa.ipc.open_stream(part.data).read_next_batch()))
                held_bytes += part.arrow_bytes
        if held:
            yield _piece(held, order, overlaps)
        path.unlink()


def _piece(held: list[tuple[tuple[int, int], pa.RecordBatch]], order: RowOrder, overlaps: bool) -> SortedPiece:
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
    """Read the key columns of some files and take every n-th row, deleted ones included.

    Errors of this group alone are in the sample, not raised.
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
        row_bytes = _row_bytes(task, storage)
    except FileUnreadable as problem:
        return Sample((), (), 0.0, str(problem), unreadable_files(task, storage))
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        return Sample((), (), 0.0, f"{type(error).__name__}: {error}")
    columns = [pa.concat_arrays(parts) for parts in zip(*values, strict=True)]
    return Sample(tuple(columns), tuple(rows), row_bytes)


def _row_bytes(task: RewriteTask, storage: Storage) -> float:
    """Arrow bytes per row with all columns, measured on the first batch that has rows."""
    for source in task.inputs:
        for batch in projected_rows(task.readable(source), task.schema, storage):
            if batch.num_rows:
                return float(batch.nbytes / batch.num_rows)
    return 0.0


# The size of rows on disk is estimated first from the size of the inputs, then from a sample of the sorted rows that is
# encoded on trial, then from every row group that is written.

_TRIAL_ROWS = 128 * 1024
_TRIAL_SLICES = 8
# Rows are written to a file in this many steps, so that its size is wrong by half a step at most.
_STEPS_PER_FILE = 16
# A file has one stretch of a z-order curve, unless its share of the rows is this much less or more than an even one:
# the sample is not exact, and there may be many equal values.
_SMALLEST_SHARE, _LARGEST_SHARE = 0.75, 1.25


@dataclass(frozen=True, slots=True)
class SortedPiece:
    """Rows that were sorted together in memory."""

    batch: pa.RecordBatch
    order: pa.Array
    """The row numbers of the batch, sorted."""
    overlaps: bool = False
    """Whether its keys overlap those of the piece before, so that both cannot share a sorted file."""
    cells: pa.Array | None = None
    """The cell of each row on a z-order curve, in sorted order; ``None``: rows are sorted by columns."""

    def slices(self, arrow_bytes: float, stretch_bits: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows in order, in batches of about ``arrow_bytes``, each with the number of its stretch of the curve.

        A stretch has ``2 ** stretch_bits`` cells.
        """
        rows = self.batch.num_rows
        step = max(1, min(BATCH_ROWS, int(rows * arrow_bytes / max(1, self.batch.nbytes))))
        first = 0
        with row_taker() as taken:
            for stretch, end in self._stretches(stretch_bits):
                for start in range(first, end, step):
                    yield stretch, taken(self.batch, self.order.slice(start, min(step, end - start)))
                first = end

    def _stretches(self, bits: int) -> Iterator[tuple[int, int]]:
        """The number and the end row of each stretch that has rows; without a curve there is one stretch."""
        if self.cells is None:
            yield 0, self.batch.num_rows
            return
        runs = pc.run_end_encode(pc.shift_right(self.cells, pa.scalar(bits, self.cells.type)))
        yield from zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True)


def one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One or more batches as one; the list is emptied, and at most one column is in memory twice."""
    schema = batches[0].schema
    chunks = [[batch.column(i) for batch in batches] for i in reversed(range(len(schema)))]
    batches.clear()
    columns = []
    while chunks:
        columns.append(pa.concat_arrays(chunks.pop()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def sort_piece(batch: pa.RecordBatch, order: RowOrder, *, overlaps: bool = False) -> SortedPiece:
    """Find the order of rows that fit into memory, without moving them."""
    keys = order.keys(batch)
    indices = order.indices(keys)
    return SortedPiece(batch, indices, overlaps, keys[0].take(indices) if order.is_curve else None)


def write_sorted_files(
    pieces: Iterable[SortedPiece], task: RewriteTask, storage: Storage, sizes: FileSizes, first_number: int = 0
) -> list[DataFile]:
    """Write pieces one after another into files named by ``task.outputs``, numbered from ``first_number``.

    ``sizes`` divides the rows of all pieces together.

    Raises:
        StorageError, PolicyError: as :func:`write_data_file`; none of the files remains.
    """
    rows = _Rows(pieces, sizes, task)
    files: list[DataFile] = []
    paths: list[str] = []
    try:
        while rows.has_more():
            paths.append(task.outputs.path(first_number + len(paths)))
            file = write_data_file(paths[-1], rows.of_one_file(), task, storage, on_row_group=sizes.observe)
            if file is not None:
                sizes.close(file.file_size_in_bytes)
                files.append(replace(file, sort_order_id=sizes.recipe.order_id))
    except BaseException:
        storage.delete(paths)
        raise
    return files


def _trial(piece: SortedPiece, task: RewriteTask) -> float:
    """Bytes on disk per Arrow byte, measured by writing a sample of the piece to a temporary file."""
    rows = piece.batch.num_rows
    # Stretches of adjacent rows, spread over the piece.
    length = min(_TRIAL_ROWS, max(1, rows // 4)) // _TRIAL_SLICES + 1
    starts = (rows * i // _TRIAL_SLICES for i in range(_TRIAL_SLICES))
    rows_only = piece.batch.select(range(len(task.schema["fields"])))
    sample = [rows_only.take(piece.order.slice(start, length)) for start in starts]
    share = sum(batch.num_rows for batch in sample) / max(1, rows)
    task = replace(task, table_properties=for_sample(task.table_properties, share), keeps_row_maps=False)
    with tempfile.TemporaryDirectory(prefix="icekeeper-trial-") as folder:
        file = write_data_file(str(Path(folder) / "trial.parquet"), sample, task, Storage({}))
    return 0.0 if file is None else file.file_size_in_bytes / max(1, sum(batch.nbytes for batch in sample))


class FileSizes:
    """Decides when a file is full; the remaining rows are divided anew after every observation."""

    def __init__(
        self, recipe: ClusterRecipe, most_files: int | None, arrow_bytes: int, disk_bytes: float, parts: int = 1
    ) -> None:
        """The size of all rows in memory, and a first estimate of their size on disk.

        The rows are one of so many equal ``parts`` of the z-order curve.
        """
        self.recipe = recipe
        self.ratio = disk_bytes / max(1, arrow_bytes)
        self._files_left = most_files
        self._arrow_bytes = self._left = arrow_bytes
        self._parts = parts
        self._in_file = 0
        self._seen_arrow = self._seen_bytes = 0
        self._stretches = 0

    @property
    def may_need_several(self) -> bool:
        """Whether the remaining rows may be more than one file, so that their compression matters."""
        return self.ratio * self._left >= self.recipe.target_bytes

    @property
    def step_bytes(self) -> float:
        """Arrow bytes after which to check again whether the file is full."""
        return self.recipe.target_bytes / max(self.ratio, 1e-9) / _STEPS_PER_FILE

    @property
    def stretch_bits(self) -> int:
        """The stretch of a z-order curve for one file, as the number of bits of its cells; decided once."""
        if not self._stretches:
            self._stretches = self.recipe.output_count(self._arrow_bytes * self.ratio)
        return max(0, CURVE_BITS - (self._stretches * self._parts).bit_length() + 1)

    def is_full(self, *, begins_stretch: bool) -> bool:
        """Whether the next rows, which may begin a stretch of the curve, belong into another file."""
        if self.recipe.strategy is Strategy.SORT:
            whole = self._in_file + max(0, self._left)
            count = self.recipe.output_count(whole * self.ratio)
            if self._files_left is not None:
                count = min(count, self._files_left)
            return count > 1 and self._in_file >= whole / count - self.step_bytes / 2
        even = self._arrow_bytes / self._stretches
        if self._files_left == 1 or self._left < _SMALLEST_SHARE * even:
            return False
        # A stretch may be large: all equal values are in one cell.
        return self._in_file >= even * (_SMALLEST_SHARE if begins_stretch else _LARGEST_SHARE)

    def feed(self, arrow_bytes: int) -> None:
        """Record that rows of ``arrow_bytes`` are added to the current file."""
        self._in_file += arrow_bytes
        self._left -= arrow_bytes

    def observe(self, file_bytes: int) -> None:
        """Record that the current file has ``file_bytes`` with all rows fed to it."""
        self.ratio = (self._seen_bytes + file_bytes) / max(1, self._seen_arrow + self._in_file)

    def close(self, file_bytes: int) -> None:
        """Record that the current file is complete with ``file_bytes``; the next rows belong to the next file."""
        self.observe(file_bytes)
        self._seen_arrow += self._in_file
        self._seen_bytes += file_bytes
        self._in_file = 0
        if self._files_left is not None:
            self._files_left -= 1


class _Rows:
    """The slices of all pieces, cut into files."""

    def __init__(self, pieces: Iterable[SortedPiece], sizes: FileSizes, task: RewriteTask) -> None:
        self._sizes = sizes
        self._slices = self._flat(pieces, task)
        self._next = next(self._slices, None)
        self._stretch: int | None = None

    def has_more(self) -> bool:
        return self._next is not None

    def of_one_file(self) -> Iterator[pa.RecordBatch]:
        """The slices of the next file: one or more, until it is full or the next slice must start a file."""
        is_first = True
        while self._next is not None:
            stretch, batch, must_start_file = self._next
            if not is_first and (must_start_file or self._sizes.is_full(begins_stretch=stretch != self._stretch)):
                return
            is_first = False
            self._stretch = stretch
            self._sizes.feed(batch.nbytes)
            yield batch
            self._next = next(self._slices, None)

    def _flat(self, pieces: Iterable[SortedPiece], task: RewriteTask) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
        is_first_piece = True
        for piece in pieces:
            if is_first_piece and self._sizes.may_need_several:
                self._sizes.ratio = _trial(piece, task)
            is_first_piece = False
            must_start_file = piece.overlaps
            for stretch, batch in piece.slices(self._sizes.step_bytes, self._sizes.stretch_bits):
                yield stretch, batch, must_start_file
                must_start_file = False
            del piece  # free it before the next one is sorted
