"""Writes sorted rows into files of about the target size.

How many bytes rows take on disk is not known from their size in memory.  It is estimated from the bytes that the inputs
take, then from a sample of the sorted rows, encoded on trial, then from every row group that was really written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.model import DataFile
from icekeeper.operations.compaction.clustering.row_order import RowOrder, row_taker
from icekeeper.operations.compaction.clustering.zorder import CURVE_BITS
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.operations.compaction.writing.parquet_options import for_sample
from icekeeper.operations.compaction.writing.write import write_data_file
from icekeeper.policy import Strategy
from icekeeper.rows.file_rows import BATCH_ROWS
from icekeeper.storage.storage import Storage

__all__ = ["ExpectedSize", "SortedPiece", "one_batch", "sort_piece", "write_sorted_files"]

_TRIAL_ROWS = 128 * 1024
_TRIAL_SLICES = 8
# Rows are handed to a file in so many steps, so that it misses its size by half a step at most.
_STEPS_PER_FILE = 16
# A file of a z-order curve is a stretch of it, unless that has so much less or more than its even share of the rows:
# the sample is not exact, and of equal values there may be many.
_SMALLEST_SHARE, _LARGEST_SHARE = 0.75, 1.25


@dataclass(frozen=True, slots=True)
class ExpectedSize:
    """How large rows are in memory, and a first guess at the bytes that they take on disk."""

    arrow_bytes: int
    disk_bytes: float
    parts: int = 1
    """Into how many parts of equal size the z-order curve was divided before; the rows lie in one of them."""


@dataclass(frozen=True, slots=True)
class SortedPiece:
    """Rows that were sorted together in memory."""

    batch: pa.RecordBatch
    order: pa.Array
    """The row numbers of the batch, sorted."""
    overlaps: bool = False
    """Whether keys of the piece before lie between its own, so that both cannot share a sorted file."""
    cells: pa.Array | None = None
    """The cell of each row on a z-order curve, in sorted order; ``None``: the rows are sorted by columns."""

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
        """The number of each stretch that has rows, and up to which row; all rows are one where there is no curve."""
        if self.cells is None:
            yield 0, self.batch.num_rows
            return
        runs = pc.run_end_encode(pc.shift_right(self.cells, pa.scalar(bits, self.cells.type)))
        yield from zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True)

    def sample(self) -> Iterator[pa.RecordBatch]:
        """Stretches of neighbouring rows, spread over the piece."""
        rows = self.batch.num_rows
        length = min(_TRIAL_ROWS, max(1, rows // 4)) // _TRIAL_SLICES + 1
        for i in range(_TRIAL_SLICES):
            yield self.batch.take(self.order.slice(rows * i // _TRIAL_SLICES, length))


def one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches, at least one, as one; the list is emptied, and no more than one column is in memory twice."""
    schema = batches[0].schema
    chunks = [[batch.column(i) for batch in batches] for i in reversed(range(len(schema)))]
    batches.clear()
    columns = []
    while chunks:
        columns.append(pa.concat_arrays(chunks.pop()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def sort_piece(batch: pa.RecordBatch, order: RowOrder, *, overlaps: bool = False) -> SortedPiece:
    """Sort rows that fit into memory: the rows stay where they are, only their order is found."""
    keys = order.keys(batch)
    indices = order.indices(keys)
    return SortedPiece(batch, indices, overlaps, keys[0].take(indices) if order.is_curve else None)


def write_sorted_files(
    pieces: Iterable[SortedPiece],
    task: RewriteTask,
    recipe: ClusterRecipe,
    storage: Storage,
    size: ExpectedSize,
    first_number: int = 0,
) -> list[DataFile]:
    """Write pieces one after another into files named by ``task.outputs``, numbered from ``first_number``.

    ``size`` is that of all pieces together.

    Raises:
        StorageError, PolicyError: as :func:`write_data_file`; none of the files remains.
    """
    sizes = _FileSizes(recipe, size, task.most_files)
    rows = _Rows(pieces, sizes, lambda piece: _trial(piece, task))
    files: list[DataFile] = []
    paths: list[str] = []
    try:
        while rows.has_more():
            paths.append(task.outputs.path(first_number + len(paths)))
            file = write_data_file(paths[-1], rows.of_one_file(), task, storage, on_row_group=sizes.observe)
            if file is not None:
                sizes.close(file.file_size_in_bytes)
                files.append(replace(file, sort_order_id=recipe.order_id))
    except BaseException:
        storage.delete(paths)
        raise
    return files


def _trial(piece: SortedPiece, task: RewriteTask) -> float:
    """Bytes on disk per Arrow byte, found by writing a sample of the piece to a temporary file."""
    sample = list(piece.sample())
    share = sum(batch.num_rows for batch in sample) / max(1, piece.batch.num_rows)
    task = replace(task, table_properties=for_sample(task.table_properties, share))
    with tempfile.TemporaryDirectory(prefix="icekeeper-trial-") as folder:
        file = write_data_file(str(Path(folder) / "trial.parquet"), sample, task, Storage({}))
    return 0.0 if file is None else file.file_size_in_bytes / max(1, sum(batch.nbytes for batch in sample))


class _FileSizes:
    """Decides when a file is full.  The rest of the rows is divided anew after every observation."""

    def __init__(self, recipe: ClusterRecipe, size: ExpectedSize, most_files: int | None) -> None:
        self._recipe = recipe
        self._files_left = most_files
        self._left = size.arrow_bytes
        self._in_file = 0
        self._seen_arrow = self._seen_bytes = 0
        self._size = size
        self._stretches = 0
        self.ratio = size.disk_bytes / max(1, size.arrow_bytes)

    @property
    def may_need_several(self) -> bool:
        """Whether the rest may be more than one file, so that it matters how well the rows compress."""
        return self.ratio * self._left >= self._recipe.target_bytes

    @property
    def step_bytes(self) -> float:
        """Arrow bytes after which to ask again whether the file is full."""
        return self._recipe.target_bytes / max(self.ratio, 1e-9) / _STEPS_PER_FILE

    @property
    def stretch_bits(self) -> int:
        """Cells of as many bits make the stretch of a z-order curve that belongs into one file; decided once."""
        if not self._stretches:
            self._stretches = self._recipe.output_count(self._size.arrow_bytes * self.ratio)
        return max(0, CURVE_BITS - (self._stretches * self._size.parts).bit_length() + 1)

    def is_full(self, *, begins_stretch: bool) -> bool:
        """Whether what comes next, perhaps the first of a stretch of the curve, belongs into another file."""
        if self._recipe.strategy is Strategy.SORT:
            return self._is_full_by_size
        even = self._size.arrow_bytes / self._stretches
        if self._files_left == 1 or self._left < _SMALLEST_SHARE * even:
            return False
        # Equal values lie in one cell, however many they are.
        return self._in_file >= even * (_SMALLEST_SHARE if begins_stretch else _LARGEST_SHARE)

    @property
    def _is_full_by_size(self) -> bool:
        whole = self._in_file + max(0, self._left)
        count = self._recipe.output_count(whole * self.ratio)
        if self._files_left is not None:
            count = min(count, self._files_left)
        return count > 1 and self._in_file >= whole / count - self.step_bytes / 2

    def feed(self, arrow_bytes: int) -> None:
        """Note that rows of ``arrow_bytes``, their size in memory as Arrow, go into the current file."""
        self._in_file += arrow_bytes
        self._left -= arrow_bytes

    def observe(self, file_bytes: int) -> None:
        """The current file has ``file_bytes`` now that everything fed to it is written."""
        self.ratio = (self._seen_bytes + file_bytes) / max(1, self._seen_arrow + self._in_file)

    def close(self, file_bytes: int) -> None:
        """The current file is complete with ``file_bytes``; what is fed from now on goes into the next one."""
        self.observe(file_bytes)
        self._seen_arrow += self._in_file
        self._seen_bytes += file_bytes
        self._in_file = 0
        if self._files_left is not None:
            self._files_left -= 1


class _Rows:
    """The slices of all pieces, cut into files."""

    def __init__(self, pieces: Iterable[SortedPiece], sizes: _FileSizes, trial: Callable[[SortedPiece], float]) -> None:
        self._sizes = sizes
        self._slices = self._flat(pieces, trial)
        self._next = next(self._slices, None)
        self._stretch: int | None = None

    def has_more(self) -> bool:
        return self._next is not None

    def of_one_file(self) -> Iterator[pa.RecordBatch]:
        """The slices of the next file: at least one, until it is full or the next slice cannot follow in order."""
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

    def _flat(
        self, pieces: Iterable[SortedPiece], trial: Callable[[SortedPiece], float]
    ) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
        is_first_piece = True
        for piece in pieces:
            if is_first_piece and self._sizes.may_need_several:
                self._sizes.ratio = trial(piece)
            is_first_piece = False
            must_start_file = piece.overlaps
            for stretch, batch in piece.slices(self._sizes.step_bytes, self._sizes.stretch_bits):
                yield stretch, batch, must_start_file
                must_start_file = False
            del piece  # not while the next one is being sorted
