"""What a worker does for ``verify --deep``: read some data and delete files whole, and compare them with their entries.

A file that cannot be read is a problem of its own; a failure of the store is no problem of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeeper.errors import FileUnreadable, MaintenanceError, MetadataUnreadable, StorageError, TableUnsupported
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.delete_scope import named_file, partition_key
from icekeeper.metadata.puffin import PuffinBlob, decode_footer
from icekeeper.model import DataFile, FileContent, PartitionValue
from icekeeper.operations.compaction.terms.rewrite_task import Routing
from icekeeper.operations.compaction.work.rewrite import PartitionRouter
from icekeeper.rows.apply_deletes import DeletedRows, Part, deleted_rows_of, position_rows, vector_positions
from icekeeper.rows.arrow_schema import (
    column_at,
    column_path,
    field_id_of,
    fields_with,
    leaf_columns,
    variant_ids,
    variants_of_file,
    with_variants,
)
from icekeeper.rows.file_rows import open_rows, reading
from icekeeper.rows.project import Projection
from icekeeper.rows.read_task import LAST_UPDATED_ID, ROW_ID_ID, InputFile, ReadTask, resolved_lineage
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage
from icekeeper.verification.checks import Problem, ProblemKind
from icekeeper.verification.row_checks import (
    ColumnFacts,
    PositionFacts,
    entry_notes,
    footer_notes,
    metric_notes,
    noted,
    position_notes,
    vector_notes,
)

_AT_ONCE = 4
"""Files of an object store that are read at once: small files mostly wait for answers."""
_FOOTER_READ = 64 * 1024
_MOST_DIGITS = 19
"""Of a number of positions."""
_FOOTER_FRAME = 16
"""The bytes of a Puffin footer beside its payload (Puffin specification, "Footer structure")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesToRead:
    """Some files, each an input of ``read`` with its manifest entry; picklable.

    The schema of ``read`` has all columns of the table, in v3 tables with lineage.  Its deletes are the vectors and
    position deletes of data files; they only matter for row ids.
    """

    read: ReadTask
    files: tuple[DataFile, ...]
    specs: tuple[Mapping[str, Any], ...]
    """The partition spec of each file."""
    rows_of: Mapping[str, int]
    """The rows of the data files to which deletion vectors among the files belong."""
    next_row_id: int | None = None
    """Row ids and sequence numbers are below these; ``None``: the table has no row lineage."""
    last_sequence_number: int = 0

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadsBytes`."""
        return self.read.input_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """The result for a file."""

    path: str
    rows: int = 0
    problems: tuple[Problem, ...] = ()
    row_ids: bytes = b""
    """The row ids of its live rows as a serialized ``BitMap64``; empty: not known."""
    without_variants: bool = False
    """Whether the columns with variants were not read."""
    failure: str = ""
    """Why the store did not let it be read."""


def read_files(task: FilesToRead) -> list[ReadFile]:
    """Read each file of the task; nothing is raised about a single file."""
    reader = _Reader(task, Storage(task.read.io_properties))
    at_once = 1 if all(is_local(file.file_path) for file in task.files) else _AT_ONCE
    with WorkThreads(at_once, thread_name_prefix="verify-rows") as pool:
        return list(pool.map(reader.read, range(len(task.files))))


class _Reader:
    def __init__(self, task: FilesToRead, storage: Storage) -> None:
        self._task, self._storage = task, storage
        self._blobs: dict[str, tuple[PuffinBlob, ...] | None] = {}
        self._deletes: DeletedRows | None = None
        self._knows_deletes = True
        try:
            self._deletes = deleted_rows_of(task.read, storage)
        except MaintenanceError:  # reported when the delete file itself is read
            self._knows_deletes = False

    def read(self, number: int) -> ReadFile:
        file = self._task.files[number]
        path = file.file_path
        try:
            if file.content_offset is not None:
                return ReadFile(path=path, problems=tuple(self._vector(file)))
            if file.content is FileContent.POSITION_DELETES:
                return self._positions(file)
            return self._rows(file, self._task.read.inputs[number], self._task.specs[number])
        except FileUnreadable as error:
            note = str(error).removeprefix(f"file {path} ")
            return ReadFile(path=path, problems=tuple(noted(ProblemKind.UNREADABLE_DATA, path, [note])))
        except StorageError as error:
            return ReadFile(path=path, failure=str(error))

    def _rows(self, file: DataFile, source: InputFile, spec: Mapping[str, Any]) -> ReadFile:
        is_data = file.content is FileContent.DATA
        task, schema, must_hold = self._task.read, self._task.read.schema, file.equality_ids or ()
        if not is_data:
            schema = {"type": "struct", "fields": fields_with(schema["fields"], must_hold)}
        notes: list[str] = []
        rows = 0
        with (
            reading(file.file_path, self._storage),
            self._storage.open_input(file.file_path, file.file_size_in_bytes) as stream,
        ):
            if file.file_format.upper() == "PARQUET":
                notes += footer_notes(file, pq.read_metadata(stream))
            stored, batches = open_rows(stream, file.file_format, few_reads=not is_local(file.file_path))
            wanted = schema
            schema = _with_own_variants(stored, schema)
            projection = Projection(
                stored, schema, source.identity_values, task.name_mapping, must_hold, task.by_position
            )
            held = projection.held_ids
            columns = _Columns(schema, held)
            home = _Home(file, spec, schema, held) if is_data else None
            ids = _RowIds(self._task, source, schema) if is_data and self._task.next_row_id is not None else None
            for batch in batches(projection.file_columns):
                found = projection.apply(batch)
                columns.add(found)
                if home is not None:
                    home.add(found)
                if ids is not None:
                    ids.add(found, rows, self._live(source, rows, found))
                rows += found.num_rows
        notes += metric_notes(file, rows, columns.facts)
        if any(field_id_of(field) is not None for field in stored):  # else a name mapping may omit columns
            notes += entry_notes(file, held)
        problems = noted(ProblemKind.WRONG_METRICS, file.file_path, notes)
        problems += noted(ProblemKind.WRONG_PARTITION, file.file_path, [] if home is None else home.notes)
        problems += noted(ProblemKind.ROW_LINEAGE, file.file_path, [] if ids is None else ids.notes)
        is_known = ids is not None and (self._knows_deletes or not source.deletes)
        row_ids = ids.found.serialize() if ids is not None and is_known and ids.found else b""
        return ReadFile(
            path=file.file_path,
            rows=rows,
            problems=tuple(problems),
            row_ids=row_ids,
            without_variants=len(schema["fields"]) < len(wanted["fields"]),
        )

    def _live(self, source: InputFile, first_row: int, batch: pa.RecordBatch) -> pa.Array | None:
        return None if self._deletes is None else self._deletes.live_masks([Part(source, first_row, batch)])[0]

    def _positions(self, file: DataFile) -> ReadFile:
        found, named = PositionFacts.empty(), named_file(file)
        for rows, by_path in position_rows(file.file_path, file.file_format, self._storage):
            found.add(rows, by_path, named)
        problems = noted(ProblemKind.WRONG_METRICS, file.file_path, list(position_notes(file, found)))
        return ReadFile(path=file.file_path, rows=found.rows, problems=tuple(problems))

    def _vector(self, file: DataFile) -> list[Problem]:
        path = file.file_path
        if file.content_size_in_bytes is None:
            return []  # ``verify`` reports the entry
        if path not in self._blobs:
            self._blobs[path] = puffin_blobs(path, self._storage)
        blobs = self._blobs[path]
        blob = blob_of(file, blobs or ())
        positions = decoded_vector(file, blob or {}, self._storage)
        rows = self._task.rows_of.get(file.referenced_data_file or "")
        highest = positions.max() if positions else None
        notes = list(vector_notes(file, len(positions), highest, rows, {} if blobs is None else blob))
        return noted(ProblemKind.DELETION_VECTOR, path, notes)


def _with_own_variants(stored: pa.Schema, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with variants as this file stores them, or else without the columns that have variants."""
    try:
        return with_variants(schema, variants_of_file(stored, variant_ids(schema)))
    except TableUnsupported:
        return {**schema, "fields": [field for field in schema["fields"] if not variant_ids({"fields": [field]})]}


def puffin_blobs(path: str, storage: Storage) -> tuple[PuffinBlob, ...] | None:
    """The blobs of a Puffin file by its footer; ``None``: it has no readable footer, which readers of vectors do not
    need.

    Raises:
        FileUnreadable: the file is missing.
        StorageError: the store failed.
    """
    with reading(path, storage):
        end = storage.read_end(path, _FOOTER_READ)
        wanted = int.from_bytes(end.data[-12:-8], "little") + _FOOTER_FRAME
        data = storage.read_end(path, wanted).data if len(end.data) < wanted <= end.size else end.data
    try:
        return decode_footer(data, path)
    except MetadataUnreadable:
        return None


def blob_of(file: DataFile, blobs: Iterable[PuffinBlob]) -> Mapping[str, str] | None:
    """The properties of the blob at the place that a vector's entry states; ``None``: there is none (pure)."""
    place = file.content_offset, file.content_size_in_bytes
    return next((blob.properties for blob in blobs if (blob.offset, blob.length) == place), None)


def decoded_vector(file: DataFile, blob: Mapping[str, str], storage: Storage) -> BitMap64:
    """The positions of a vector, whose entry or else whose blob states how many there are.

    Raises:
        FileUnreadable: it is missing or damaged, or both numbers are wrong.
        StorageError: the store failed.
    """
    place = file.file_path, file.content_offset or 0, file.content_size_in_bytes or 0
    try:
        return vector_positions(*place, file.record_count, storage)
    except FileUnreadable:
        stated = blob.get("cardinality", "")
        if not stated.isdecimal() or len(stated) > _MOST_DIGITS or int(stated) == file.record_count:
            raise
        return vector_positions(*place, int(stated), storage)


class _Columns:
    """Facts of a file's own columns outside of lists and maps."""

    def __init__(self, schema: Mapping[str, Any], held: frozenset[int]) -> None:
        self.facts: dict[int, ColumnFacts] = {}
        self._paths: dict[int, tuple[int, ...]] = {}
        for leaf in leaf_columns(schema):
            path = None if leaf.repeated else column_path(schema["fields"], leaf.field_id)
            if path is not None and leaf.field_id in held:
                self._paths[leaf.field_id] = path
                self.facts[leaf.field_id] = ColumnFacts(leaf.name, leaf.iceberg_type, len(path) > 1)

    def add(self, batch: pa.RecordBatch) -> None:
        for field_id, path in self._paths.items():
            self.facts[field_id].add(column_at(batch, path))


class _Home:
    """Counts rows outside of the partition of their file, by the partition fields whose column the file has."""

    def __init__(
        self, file: DataFile, spec: Mapping[str, Any], schema: Mapping[str, Any], held: frozenset[int]
    ) -> None:
        tops: list[int] = []
        kept: list[Mapping[str, Any]] = []
        values: list[PartitionValue] = []
        for field, value in zip(spec["fields"], file.partition, strict=True):
            path = column_path(schema["fields"], int(field["source-id"]))
            if field["transform"] != "void" and path is not None and int(field["source-id"]) in held:
                tops.append(path[0])
                kept.append(field)
                values.append(value)
        self._key, self._rows = partition_key(0, tuple(values)), 0
        self._tops = list(dict.fromkeys(tops))
        narrow = {"type": "struct", "fields": [schema["fields"][top] for top in self._tops]}
        self._router: PartitionRouter | None = None
        try:
            if kept:
                self._router = PartitionRouter(Routing(0, {"fields": kept}, ()), narrow)
        except TableUnsupported:  # an unknown transform cannot be computed
            pass

    def add(self, batch: pa.RecordBatch) -> None:
        if self._router is not None:
            for partition, rows in self._router.split(batch.select(self._tops)):
                self._rows += rows.num_rows if partition_key(0, partition) != self._key else 0

    @property
    def notes(self) -> Sequence[str]:
        return [f"{self._rows} of its rows belong to another partition"] if self._rows else []


class _RowIds:
    """The row ids of a data file's live rows."""

    def __init__(self, task: FilesToRead, source: InputFile, schema: Mapping[str, Any]) -> None:
        self.found = BitMap64()
        self._task, self._source = task, source
        self._ids = [int(field["id"]) for field in schema["fields"]]
        self._rows = self._out = self._late = 0

    def add(self, batch: pa.RecordBatch, first_row: int, live: pa.Array | None) -> None:
        batch = resolved_lineage(batch, self._ids, self._source, first_row)
        ids, changed = (batch.column(self._ids.index(i)) for i in (ROW_ID_ID, LAST_UPDATED_ID))
        self._late += _count(pc.greater(changed, self._task.last_sequence_number))
        if live is not None:
            ids = ids.filter(live)
        is_in = pc.and_(pc.greater_equal(ids, 0), pc.less(ids, self._task.next_row_id))
        good = ids.filter(is_in).cast(pa.uint64())
        self._out += len(ids) - ids.null_count - len(good)
        self._rows += len(good)
        if len(good):
            whole = pa.concat_arrays([good])
            self.found.update(memoryview(whole.buffers()[1]).cast("Q")[whole.offset : whole.offset + len(whole)])

    @property
    def notes(self) -> list[str]:
        return list(self._notes())

    def _notes(self) -> Iterator[str]:
        if self._out:
            yield f"{self._out} of its rows have a row id that the table has not assigned yet"
        if twice := self._rows - len(self.found):
            yield f"{twice} of its live rows have the row id of another row in it"
        if self._late:
            yield f"{self._late} of its rows were changed by a commit that the table does not have yet"


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)
