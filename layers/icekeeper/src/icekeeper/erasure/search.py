"""What a worker does: read files without applying deletes, and count the rows that match.

Rows under deletion vectors, position or equality deletes are still in the bytes of a data file.  Delete files hold keys
and may hold whole rows.  A row group is skipped only if the statistics in the file's own footer exclude it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.erasure.row_filter import RowFilter
from icekeeper.errors import MaintenanceError
from icekeeper.operations.compaction.plan.value_ranges import Column, Values, anything
from icekeeper.operations.compaction.work.copy_row_groups import column_range
from icekeeper.rows.arrow_schema import LeafColumn, arrow_type, field_id_of
from icekeeper.rows.file_rows import open_rows, reading
from icekeeper.rows.project import Projection
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

_TASK_BYTES = 128 * 1024 * 1024
_HASHED_BYTES = 1024 * 1024
# Specification, "Reserved Field IDs": the deleted row in a position delete file.
_ROW_ID = 2147483544


@dataclass(frozen=True, slots=True)
class FileToRead:
    """A file, and how to read it."""

    readable: ReadableFile
    size: int
    is_data: bool
    """Whether columns that it lacks have the values of its partition or defaults; else they may have any value."""
    version: str = ""
    """The id of an older version; empty: the current version."""


@dataclass(frozen=True, slots=True)
class SearchTask:
    """Files that a worker reads, one after the other."""

    files: tuple[FileToRead, ...]
    filter: RowFilter
    read_all: bool
    io_properties: Mapping[str, str]

    @property
    def input_bytes(self) -> int:
        """Bytes of the files, from which an engine decides whether other processes pay off."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Searched:
    """What a file holds."""

    path: str
    version: str = ""
    rows: int = 0
    """The rows, or keys, that match."""
    read: int = 0
    """The rows that were read."""
    excluded: int = 0
    """The rows in row groups that the file's footer excludes."""
    unknown: str = ""
    """Why it cannot be searched, as a sentence; empty: it was."""


def search_tasks(
    files: Sequence[FileToRead], filter_: RowFilter, io_properties: Mapping[str, str], *, read_all: bool
) -> list[SearchTask]:
    """Divide the files into tasks that are worth a worker."""
    portions: list[list[FileToRead]] = [[]]
    held = 0
    for file in files:
        if portions[-1] and held + file.size > _TASK_BYTES:
            portions.append([])
            held = 0
        portions[-1].append(file)
        held += file.size
    properties = properties_for_workers(io_properties)
    return [SearchTask(tuple(p), filter_, read_all, properties) for p in portions if p]


def search_files(task: SearchTask) -> list[Searched]:
    """Search each file of a task; a file that cannot be read is a result, not an error."""
    storage = Storage(task.io_properties)
    return [_search(file, task, storage) for file in task.files]


def _search(file: FileToRead, task: SearchTask, storage: Storage) -> Searched:
    found = Searched(file.readable.path, file.version)
    try:
        with reading(file.readable.path, storage), _opened(file, storage) as stream:
            groups: Sequence[int | None] = [None]
            if file.readable.file_format.upper() == "PARQUET" and not task.read_all:
                groups, excluded = _possible_groups(pq.ParquetFile(stream), task.filter)
                found = replace(found, excluded=excluded)
            for group in groups:
                for batch, held in _rows(stream, file, task, group):
                    count = task.filter.count(batch, held)
                    found = replace(found, rows=found.rows + count, read=found.read + batch.num_rows)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        return replace(found, unknown=" ".join(str(error).split()))
    return found


def _opened(file: FileToRead, storage: Storage) -> pa.NativeFile:
    if file.version:
        return storage.open_version(ListedObject(file.readable.path, file.size, None, version=file.version))
    return storage.open_input(file.readable.path, file.size)


def _rows(
    stream: pa.NativeFile, file: FileToRead, task: SearchTask, row_group: int | None
) -> Iterator[tuple[pa.RecordBatch, frozenset[int]]]:
    """Batches of the filter's fields, and the ids of the columns that have values in them."""
    readable, ids = file.readable, frozenset(column.field_id for column in task.filter.columns)
    stored, batches = open_rows(stream, readable.file_format, row_group, few_reads=not is_local(readable.path))
    fields = task.filter.fields
    row = {"id": _ROW_ID, "name": "row", "required": False, "type": {"type": "struct", "fields": fields}}
    has_row = any(field_id_of(field) == _ROW_ID for field in stored)
    for wanted in (fields, [row]) if has_row else (fields,):
        schema = {"type": "struct", "fields": wanted}
        projection = Projection(
            stored, schema, readable.identity_values, readable.name_mapping, (), readable.by_position
        )
        held = ids if file.is_data else ids & projection.held_ids
        for batch in batches(projection.file_columns) if held else ():
            rows = projection.apply(batch)
            if wanted is not fields:
                deleted = rows.column(0)
                rows = pa.RecordBatch.from_struct_array(deleted.filter(deleted.is_valid()))
            yield rows, held


def _possible_groups(file: pq.ParquetFile, filter_: RowFilter) -> tuple[Sequence[int | None], int]:
    """The row groups that the footer does not exclude, ``None`` for all of them together; and the excluded rows."""
    footer, leaves = file.metadata, list(_leaves(file.schema_arrow))
    place = {field_id_of(leaf): number for number, leaf in enumerate(leaves)}
    kept, excluded = [], 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)

        def values_of(column: Column, group: pq.RowGroupMetaData = group) -> Values:
            at = place.get(column.field_id)
            return anything(column) if at is None else _values(column, leaves[at], group.column(at).statistics)

        if filter_.may_match(values_of):
            kept.append(number)
        else:
            excluded += group.num_rows
    return ([None] if len(kept) == footer.num_row_groups else kept), excluded


def _leaves(fields: Any) -> Iterator[pa.Field]:
    """The primitive columns of a file in Parquet's order, which is depth first."""
    for field in fields:
        if pa.types.is_nested(field.type):
            yield from _leaves([field.type.field(n) for n in range(field.type.num_fields)])
        else:
            yield field


def _values(column: Column, stored: pa.Field, statistics: Any) -> Values:
    """The values of a row group; any value, if the column was promoted from another type."""
    is_widened = (column.kind, str(stored.type)) in (("long", "int32"), ("double", "float"))
    if not is_widened and stored.type != arrow_type(column.kind):
        return anything(column)
    found = column_range(LeafColumn(column.field_id, column.name, column.kind, False, ""), statistics)
    is_text, is_float = column.kind == "string", column.kind in ("float", "double")
    low, high = (end.decode() if is_text and end is not None else end for end in (found.least, found.most))
    return Values(
        -0.0 if is_float and low == 0.0 else low,
        0.0 if is_float and high == 0.0 else high,
        has_values=found.may_have_values,
        has_nulls=found.may_be_null,
        has_nans=is_float,
    )


def checksum(path: str, storage: Storage) -> str:
    """The SHA-256 of a local file, read in pieces."""
    digest = hashlib.sha256()
    with storage.translated(path), storage.open_input(path) as stream:
        while piece := stream.read(_HASHED_BYTES):
            digest.update(piece)
    return f"sha256:{digest.hexdigest()}"
