"""The work unit that merges position delete files into one file, or into deletion vectors.

Positions are kept as one bitmap per data file, which bounds memory, sorts them and removes duplicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeeper.errors import FileUnreadable, MaintenanceError, StorageError
from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, DELETE_POSITION_ID
from icekeeper.metadata.puffin import encode_puffin
from icekeeper.model import DataFile, FileContent, PartitionValue
from icekeeper.rows.apply_deletes import PositionRows, SpelledFiles, position_rows, vector_positions
from icekeeper.rows.arrow_schema import FIELD_ID_KEY
from icekeeper.rows.file_rows import BATCH_ROWS
from icekeeper.rows.read_task import OPEN_FILE_BYTES
from icekeeper.storage.multipart import bounded_output
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
    """The one data file that its entry names; rows for other files are ignored, as readers ignore them."""
    blob: tuple[int, int] | None = None
    """Offset and size of a deletion vector in its Puffin file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """Merge ``deletes`` that reach one partition into one file; rows for none of ``targets`` are dangling."""

    group_id: int
    deletes: tuple[PositionDeletes, ...]
    targets: Mapping[str, int]
    """Data file → its data sequence number; deletes with a lower number do not reach it."""
    into_vectors: bool
    """v3: one deletion vector per data file, all in one Puffin file."""
    partition: tuple[PartitionValue, ...]
    output: PlannedFile
    io_properties: Mapping[str, str]
    verify_checksums: bool = True
    """As in :class:`.ReadableFile`."""
    attempt: int = 0

    @property
    def input_bytes(self) -> int:
        """An estimate of the bytes to read."""
        return sum(file.record_count * _ROW_BYTES + OPEN_FILE_BYTES for file in self.deletes)

    def in_attempt(self, attempt: int) -> MergeTask:
        return replace(self, attempt=attempt)

    @property
    def path(self) -> str:
        """Where this attempt writes.  Raises StorageError if there were too many attempts."""
        return self.output.path(self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The entries of the written file (none if every row was dangling), or an error."""

    group_id: int
    written: tuple[DataFile, ...]
    rows_read: int
    rows_written: int
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The delete files that cannot be read, if that is the error: path → a sentence with the path."""


# The specification fixes names, ids and nullability ("Position Delete Files").
_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID_KEY: str(DELETE_FILE_PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID_KEY: str(DELETE_POSITION_ID)}),
    ]
)
_CREATED_BY = {"created-by": "icekeeper"}


def merge_deletes(task: MergeTask) -> MergeResult:
    """Merge the delete files of one task; errors that concern only this group are returned."""
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
    """Add the positions of one file that reach a live data file; return the number of its rows.

    Raises:
        FileUnreadable: it is missing, damaged, no position delete file, or its number of rows differs from its
            manifest entry.
        MetadataUnreadable: it names a target by another spelling.
        StorageError: the store failed.
    """
    rows_read, targets = 0, task.targets
    for rows, by_path in _rows(delete, storage, task.verify_checksums):
        rows_read += rows
        for path, positions in by_path:
            is_about_it = delete.named_file in (None, path)
            # A delete reaches data files that are as old as itself or older (rule: deletes-reach-by-sequence-number).
            if is_about_it and path in targets and targets[path] <= delete.sequence_number:
                found.setdefault(path, BitMap64()).update(positions.to_pylist())
            elif path not in targets:
                spelled.refuse(delete.path, path)
    if rows_read != delete.record_count:
        raise FileUnreadable(
            f"{delete.path} holds {rows_read} rows, its manifest says {delete.record_count}", path=delete.path
        )
    return rows_read


def _rows(delete: PositionDeletes, storage: Storage, verify_checksums: bool) -> Iterator[PositionRows]:
    if delete.blob is None or delete.named_file is None:
        yield from position_rows(delete.path, delete.file_format, storage, verify_checksums=verify_checksums)
        return
    positions = vector_positions(delete.path, *delete.blob, delete.record_count, storage)
    yield len(positions), [(delete.named_file, pa.array(positions.to_array(), pa.int64()))]


def _write(task: MergeTask, by_path: Mapping[str, BitMap64], storage: Storage) -> tuple[DataFile, ...]:
    """Write the output; remove it after an error."""
    path = task.path
    try:
        return (_write_vectors if task.into_vectors else _write_delete_file)(task, by_path, storage)
    except BaseException:
        storage.delete([path])
        raise


def _write_delete_file(task: MergeTask, by_path: Mapping[str, BitMap64], storage: Storage) -> tuple[DataFile, ...]:
    """One Parquet file, by path and then by position."""
    paths = sorted(by_path)
    footers: list[pq.FileMetaData] = []
    with storage.translated(task.path), bounded_output(storage, task.path) as sink:
        with pq.ParquetWriter(
            sink,
            _SCHEMA,
            compression="zstd",
            store_schema=False,
            write_page_checksum=True,
            metadata_collector=footers,
        ) as file:
            for batch in _batches(paths, by_path):
                file.write_batch(batch)
        size = sink.tell()
    counted = {DELETE_FILE_PATH_ID: footers[0].num_rows, DELETE_POSITION_ID: footers[0].num_rows}
    return (
        DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=task.path,
            file_format="PARQUET",
            partition=task.partition,
            record_count=footers[0].num_rows,
            file_size_in_bytes=size,
            value_counts=counted,
            null_value_counts=dict.fromkeys(counted, 0),
            # Not truncated: equal bounds show older readers that the file names one data file.
            lower_bounds={DELETE_FILE_PATH_ID: paths[0].encode()},
            upper_bounds={DELETE_FILE_PATH_ID: paths[-1].encode()},
            referenced_data_file=paths[0] if len(paths) == 1 else None,
        ),
    )


def _batches(paths: list[str], by_path: Mapping[str, BitMap64]) -> Iterator[pa.RecordBatch]:
    """Row groups of at least ``BATCH_ROWS`` rows, except the last one."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for path in paths:
        positions = pa.array(by_path[path].to_array(), pa.int64())
        for start in range(0, len(positions), BATCH_ROWS):
            part = positions.slice(start, BATCH_ROWS)
            held.append(pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(path), len(part)), part], schema=_SCHEMA))
            rows += len(part)
            if rows >= BATCH_ROWS:
                yield pa.concat_batches(held)
                held, rows = [], 0
    if held:
        yield pa.concat_batches(held)


def _write_vectors(task: MergeTask, by_path: Mapping[str, BitMap64], storage: Storage) -> tuple[DataFile, ...]:
    """One Puffin file; an entry per vector."""
    vectors = [(path, by_path[path]) for path in sorted(by_path)]
    data, blobs = encode_puffin(vectors, _CREATED_BY)
    storage.write(task.path, data)
    return tuple(
        DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=task.path,
            file_format="PUFFIN",
            partition=task.partition,
            record_count=len(positions),
            file_size_in_bytes=len(data),
            referenced_data_file=path,
            content_offset=blob.offset,
            content_size_in_bytes=blob.length,
        )
        for (path, positions), blob in zip(vectors, blobs, strict=True)
    )
