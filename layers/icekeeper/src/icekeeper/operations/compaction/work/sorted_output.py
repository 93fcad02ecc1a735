"""Write sorted rows into files of about the target size.

The size of rows on disk is estimated first from the size of the inputs, then from a trial encoding of a sample of the
sorted rows, then from every row group that is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.model import DataFile
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask
from icekeeper.operations.compaction.terms.write_properties import for_sample
from icekeeper.operations.compaction.work.sort_keys import CURVE_BITS, RowOrder, row_taker
from icekeeper.operations.compaction.work.write_file import write_data_file
from icekeeper.policy import Strategy
from icekeeper.rows.file_rows import BATCH_ROWS
from icekeeper.storage.storage import Storage

_TRIAL_ROWS = 128 * 1024
_TRIAL_SLICES = 8
# Rows are written to a file in this many steps, so that its size is off by half a step at most.
_STEPS_PER_FILE = 16
# A file has a single stretch of a z-order curve, unless its share of the rows is below or above these factors of an
# even share: the sample is not exact, and there may be many equal values.
_SMALLEST_SHARE, _LARGEST_SHARE = 0.75, 1.25


@dataclass(frozen=True, slots=True)
class SortedPiece:
    """Rows that were sorted together in memory."""

    batch: pa.RecordBatch
    order: pa.Array
    """The row numbers of the batch, sorted."""
    overlaps: bool = False
    """Whether its keys overlap those of the previous piece, so that the two cannot share a sorted file."""
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
        """The number and the end row of each stretch that has rows; without a curve there is a single stretch."""
        if self.cells is None:
            yield 0, self.batch.num_rows
            return
        runs = pc.run_end_encode(pc.shift_right(self.cells, pa.scalar(bits, self.cells.type)))
        yield from zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True)


def one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Join one or more batches; the list is emptied, and at most one column is in memory twice."""
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
        StorageError, PolicyError: as :func:`write_data_file`; all files are deleted.
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
    """Decides when a file is full; the remaining rows are divided again after every observation."""

    def __init__(
        self, recipe: ClusterRecipe, most_files: int | None, arrow_bytes: int, disk_bytes: float, parts: int = 1
    ) -> None:
        """The size of all rows in memory, and a first estimate of their size on disk.

        ``parts``: the number of equal parts of the z-order curve, of which the rows are one.
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
        """Whether the remaining rows may need more than one file, so that their compression matters."""
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
        """Whether the next rows, which may begin a stretch of the curve, belong into the next file."""
        if self.recipe.strategy is Strategy.SORT:
            whole = self._in_file + max(0, self._left)
            count = self.recipe.output_count(whole * self.ratio)
            if self._files_left is not None:
                count = min(count, self._files_left)
            return count > 1 and self._in_file >= whole / count - self.step_bytes / 2
        even = self._arrow_bytes / self._stretches
        if self._files_left == 1 or self._left < _SMALLEST_SHARE * even:
            return False
        # A stretch may be large, because equal values are in the same cell.
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
            del piece  # free it before the next piece is sorted
