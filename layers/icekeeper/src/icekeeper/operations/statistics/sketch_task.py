"""What a worker does for statistics: read some files and make a sketch per column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from icekeeper.errors import FileUnreadable, MaintenanceError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.statistics import encode_theta
from icekeeper.operations.statistics.column_sketch import ColumnSketch
from icekeeper.operations.statistics.plan_statistics import Reading, RowFile
from icekeeper.rows.arrow_schema import column_at, column_path, fields_with, leaf_columns
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.rows.read_task import ReadTask, make_read_task
from icekeeper.storage.storage import Storage

# Bytes of files per task, enough to be worth a worker.
_TASK_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SketchResult:
    """Compact theta sketches by field id, or an error."""

    sketches: Mapping[int, bytes]
    rows: int
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The data and delete files that cannot be read, if that is the error: path → a sentence that names it."""


def sketch_tasks(
    metadata: TableMetadata, readings: Sequence[Reading], io_properties: Mapping[str, str]
) -> list[ReadTask]:
    """The tasks of a plan, which read only the columns to sketch.

    Raises:
        TableUnsupported: this version cannot apply an equality delete.
        StorageError: the table's name mapping is not JSON.
    """
    tasks = []
    for reading in readings:
        schema = {"type": "struct", "fields": fields_with(metadata.current_schema["fields"], reading.types)}
        for files in _portions(reading.files):
            tasks.append(make_read_task(metadata, files, schema, io_properties))
    return tasks


def _portions(files: Sequence[RowFile]) -> Iterator[list[RowFile]]:
    """Portions of the files, sorted by partition, because the files of a partition share their deletes."""
    portion: list[RowFile] = []
    held = 0
    for file in sorted(files, key=lambda f: (f.spec_id, repr(f.partition))):
        if portion and held + file.file_size_in_bytes > _TASK_BYTES:
            yield portion
            portion, held = [], 0
        portion.append(file)
        held += file.file_size_in_bytes
    if portion:
        yield portion


def sketch_rows(task: ReadTask) -> SketchResult:
    """Read the rows, apply deletes, and sketch each column; errors that concern only these files are returned."""
    sketches = {leaf.field_id: ColumnSketch(leaf.iceberg_type) for leaf in leaf_columns(task.schema)}
    paths = {field_id: column_path(task.schema["fields"], field_id) or () for field_id in sketches}
    tally, storage = Tally(), Storage(task.io_properties)
    try:
        for batch in read_rows(task, storage, tally):
            for field_id, sketch in sketches.items():
                sketch.add(column_at(batch, paths[field_id]))
    except FileUnreadable as error:
        return SketchResult({}, tally.live, str(error), unreadable_files(task, storage))
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        return SketchResult({}, tally.live, f"{type(error).__name__}: {error}")
    done = {field_id: encode_theta(sketch.sketch()) for field_id, sketch in sketches.items()}
    return SketchResult(done, tally.live)
