"""The unit of work that merges position delete files into a single file, or into deletion vectors.

Positions are kept as one bitmap per data file, which bounds memory, sorts them and removes duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyroaring import BitMap64

from icekeeper.errors import FileUnreadable, MaintenanceError, StorageError
from icekeeper.model import DataFile, PartitionValue
from icekeeper.rows.apply_deletes import PositionRows, SpelledFiles, position_rows, vector_positions
from icekeeper.rows.read_task import OPEN_FILE_BYTES
from icekeeper.rows.write_deletes import write_position_deletes, write_vectors
from icekeeper.storage.paths import PlannedFile
from icekeeper.storage.storage import Storage

# About the size of a row: the position, and its share of a path that is stored once for many rows.
_ROW_BYTES = 8


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """A position delete file or a deletion vector; ``record_count`` comes from its manifest entry."""

    path: str
    file_format: str
    sequence_number: int
    record_count: int
    named_file: str | None = None
    """The only data file that its entry names; rows for other files are ignored, as readers do."""
    blob: tuple[int, int] | None = None
    """Offset and size of a deletion vector in its Puffin file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """Merge ``deletes`` that apply to the same partition into a single file; rows for files outside ``targets`` are
    dangling."""

    group_id: int
    deletes: tuple[PositionDeletes, ...]
    targets: Mapping[str, int]
    """Data file → its data sequence number; deletes with a lower number do not apply to it."""
    into_vectors: bool
    """v3: a deletion vector per data file, all in a single Puffin file."""
    partition: tuple[PartitionValue, ...]
    output: PlannedFile
    io_properties: Mapping[str, str]
    attempt: int = 0

    @property
    def input_bytes(self) -> int:
        """An estimate of the bytes to read."""
        return sum(file.record_count * _ROW_BYTES + OPEN_FILE_BYTES for file in self.deletes)

    def in_attempt(self, attempt: int) -> MergeTask:
        return replace(self, attempt=attempt)

    @property
    def path(self) -> str:
        """The path to which this attempt writes.  Raises StorageError if there were too many attempts."""
        return self.output.path(self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The entries of the written file (empty if every row was dangling), or an error."""

    group_id: int
    written: tuple[DataFile, ...]
    rows_read: int
    rows_written: int
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The delete files that cannot be read, if that is the error: path → a sentence that names it."""


def merge_deletes(task: MergeTask) -> MergeResult:
    """Merge the delete files of a task; errors that concern only this group are returned."""
    storage = Storage(task.io_properties)
    positions: dict[str, BitMap64] = {}
    spelled, rows_read = SpelledFiles(task.targets), 0
    written: tuple[DataFile, ...] = ()
    error, unreadable = "", dict[str, str]()
    try:
        for delete in task.deletes:
            rows_read += _collect(positions, delete, task, storage, spelled)
        if positions:
            written = _write(task, positions, storage)
        rows = sum(map(len, positions.values()))
        return MergeResult(group_id=task.group_id, written=written, rows_read=rows_read, rows_written=rows)
    except FileUnreadable as failure:
        error, unreadable = str(failure), _unreadable(task, storage)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return MergeResult(
        group_id=task.group_id, written=(), rows_read=0, rows_written=0, error=error, unreadable=unreadable
    )


def _unreadable(task: MergeTask, storage: Storage) -> dict[str, str]:
    """All delete files of a task that cannot be read; empty if the store fails meanwhile."""
    found: dict[str, str] = {}
    for delete in task.deletes:
        try:
            _collect({}, delete, replace(task, targets={}), storage, SpelledFiles(()))
        except FileUnreadable as error:
            found[delete.path] = str(error)
        except StorageError:
            return {}
    return found


def _collect(
    found: dict[str, BitMap64], delete: PositionDeletes, task: MergeTask, storage: Storage, spelled: SpelledFiles
) -> int:
    """Add the positions of a file that apply to a live data file; return the number of its rows.

    Raises:
        FileUnreadable: the file is missing, damaged or not a position delete file, or its number of rows differs from
            its manifest entry.
        MetadataUnreadable: the file names a target in another spelling.
        StorageError: the store failed.
    """
    rows_read, targets = 0, task.targets
    for rows, by_path in _rows(delete, storage):
        rows_read += rows
        for path, positions in by_path:
            is_about_it = delete.named_file in (None, path)
            # A delete applies to data files that are as old as itself or older
            # (rule: deletes-reach-by-sequence-number).
            if is_about_it and path in targets and targets[path] <= delete.sequence_number:
                found.setdefault(path, BitMap64()).update(positions.to_pylist())
            elif path not in targets:
                spelled.refuse(delete.path, path)
    if rows_read != delete.record_count:
        raise FileUnreadable(
            f"{delete.path} has {rows_read} rows, but its manifest says {delete.record_count}", path=delete.path
        )
    return rows_read


def _rows(delete: PositionDeletes, storage: Storage) -> Iterator[PositionRows]:
    if delete.blob is None or delete.named_file is None:
        yield from position_rows(delete.path, delete.file_format, storage)
        return
    positions = vector_positions(delete.path, *delete.blob, delete.record_count, storage)
    yield len(positions), [(delete.named_file, pa.array(positions.to_array(), pa.int64()))]


def _write(task: MergeTask, by_path: Mapping[str, BitMap64], storage: Storage) -> tuple[DataFile, ...]:
    """Write the output; delete it after an error."""
    try:
        if task.into_vectors:
            return write_vectors(task.path, by_path, dict.fromkeys(by_path, task.partition), storage)
        return (write_position_deletes(task.path, by_path, task.partition, storage),)
    except BaseException:
        storage.delete([task.path])
        raise
