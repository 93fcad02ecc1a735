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

from icekeeper.model import DataFile
from icekeeper.operations.compaction.clustering.row_order import RowOrder, row_taker
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.operations.compaction.writing.parquet_options import for_sample
from icekeeper.operations.compaction.writing.write import write_data_file
from icekeeper.rows.file_rows import BATCH_ROWS
from icekeeper.storage.storage import Storage

__all__ = ["ExpectedSize", "SortedPiece", "one_batch", "sort_piece", "write_sorted_files"]

_TRIAL_ROWS = 128 * 1024
_TRIAL_SLICES = 8
# Rows are handed to a file in so many steps, so that it misses its size by half a step at most.
_STEPS_PER_FILE = 16


@dataclass(frozen=True, slots=True)
class ExpectedSize:
    """How large rows are in memory, and a first guess at the bytes that they take on disk."""

    arrow_bytes: int
    disk_bytes: float


@dataclass(frozen=True, slots=True)
class SortedPiece:
    """Rows that were sorted together in memory."""

    batch: pa.RecordBatch
    order: pa.Array
    """The row numbers of the batch, sorted."""
    overlaps: bool = False
    """Whether keys of the piece before lie between its own, so that both cannot share a sorted file."""

    def slices(self, arrow_bytes: float) -> Iterator[pa.RecordBatch]:
        """The rows in order, in batches of about ``arrow_bytes``."""
        rows = self.batch.num_rows
        step = max(1, min(BATCH_ROWS, int(rows * arrow_bytes / max(1, self.batch.nbytes))))
        with row_taker() as taken:
            for start in range(0, rows, step):
                yield taken(self.batch, self.order.slice(start, step))

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
    return SortedPiece(batch, order.indices(order.keys(batch)), overlaps)


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
    def is_full(self) -> bool:
        whole = self._in_file + max(0, self._left)
        count = self._recipe.output_count(whole * self.ratio)
        if self._files_left is not None:
            count = min(count, self._files_left)
        return count > 1 and self._in_file >= whole / count - self.step_bytes / 2

    def feed(self, arrow_bytes: int) -> None:
        """So many Arrow bytes go into the current file."""
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

    def has_more(self) -> bool:
        return self._next is not None

    def of_one_file(self) -> Iterator[pa.RecordBatch]:
        """The slices of the next file: at least one, until it is full or the next slice cannot follow in order."""
        is_first = True
        while self._next is not None:
            batch, must_start_file = self._next
            if not is_first and (must_start_file or self._sizes.is_full):
                return
            is_first = False
            self._sizes.feed(batch.nbytes)
            yield batch
            self._next = next(self._slices, None)

    def _flat(
        self, pieces: Iterable[SortedPiece], trial: Callable[[SortedPiece], float]
    ) -> Iterator[tuple[pa.RecordBatch, bool]]:
        is_first_piece = True
        for piece in pieces:
            if is_first_piece and self._sizes.may_need_several:
                self._sizes.ratio = trial(piece)
            is_first_piece = False
            must_start_file = piece.overlaps
            for batch in piece.slices(self._sizes.step_bytes):
                yield batch, must_start_file
                must_start_file = False
            del piece  # not while the next one is being sorted
