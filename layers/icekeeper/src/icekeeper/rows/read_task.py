"""Read tasks: what a worker needs to read live rows, made from manifest entries; and the lineage of rows.

Tasks are picklable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.errors import StorageError, TableUnsupported
from icekeeper.metadata.delete_scope import PartitionKey, partition_key
from icekeeper.metadata.document import NAME_MAPPING, TableMetadata
from icekeeper.model import FileContent, ManifestEntry, PartitionValue
from icekeeper.rows.arrow_schema import column_path

OPEN_FILE_BYTES = 256 * 1024
"""Opening a file takes as long as decoding this many bytes: 2.5 ms at 100 MB a second."""

NO_COLUMNS: Mapping[str, Any] = {"type": "struct", "fields": []}
"""The schema of a task that reads only the columns that its deletes need."""


@dataclass(frozen=True, slots=True)
class ReadableFile:
    """A data or delete file in a store, and the facts that its reader needs in addition to its bytes."""

    path: str
    file_format: str = "PARQUET"
    identity_values: Mapping[int, PartitionValue] = field(default_factory=dict)
    """Column id → raw partition value of identity fields, for columns that the file lacks."""
    must_agree: bool = False
    """Whether the columns of ``identity_values`` that the file has must have these values, because its rows move to
    another partition (rule: leave-identity-only-with-equal-values), or equality deletes compare them."""
    name_mapping: Sequence[Mapping[str, Any]] | None = None
    """The table's ``schema.name-mapping.default``, for a file without field ids; ``None``: the table has none."""
    by_position: Sequence[Mapping[str, Any]] = ()
    """The top-level fields of the table's current schema, for a file without field ids if there is no mapping."""
    row_group: int | None = None
    """The only row group of a Parquet file to read; ``None``: all."""
    file_size_in_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A delete file that applies to some of a task's inputs."""

    path: str
    file_format: str
    content: FileContent
    sequence_number: int
    record_count: int
    equality_ids: tuple[int, ...] = ()
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class InputFile:
    """A data file to read; its sizes are from its manifest entry."""

    path: str
    record_count: int
    file_size_in_bytes: int
    file_format: str = "PARQUET"
    sequence_number: int = 0
    """Data sequence number: equality deletes with a higher number apply to its rows."""
    deletes: tuple[int, ...] = ()
    """The delete files that apply to it, as indexes into the task's ``deletes``."""
    identity_values: Mapping[int, PartitionValue] = field(default_factory=dict)
    """As in :class:`ReadableFile`."""
    must_agree: bool = False
    """As in :class:`ReadableFile`."""
    first_row_id: int | None = None
    """From v3 on, the row id of its first row."""
    partition_number: int = 0
    """Equal for all inputs of the same spec and partition: equality deletes of a partition apply to all of them."""
    row_group: int | None = None
    """The only row group of a Parquet file to read; ``record_count`` then counts its rows.  ``None``: all."""
    first_row: int = 0
    """The position in the file of the first row to read."""
    number_from: int | None = None
    """The number of the file's first row among all rows of a group; ``None``: rows are not numbered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Read the live rows of ``inputs`` as rows of a schema.

    ``name_mapping`` and ``by_position`` are as in :class:`ReadableFile`.
    """

    inputs: tuple[InputFile, ...]
    schema: Mapping[str, Any]
    """The Iceberg schema of the rows: only the wanted columns."""
    name_mapping: Sequence[Mapping[str, Any]] | None = None
    by_position: Sequence[Mapping[str, Any]] = ()
    deletes: tuple[DeleteFile, ...] = ()
    key_fields: Sequence[Mapping[str, Any]] = ()
    """Fields that equality deletes compare and the schema lacks: they are dropped once the deletes are applied."""
    io_properties: Mapping[str, str]

    @property
    def key_memory_bytes(self) -> int:
        """The most bytes of memory for the lookup of equality delete keys (rule: bounded-worker-memory)."""
        return 224 * 1024 * 1024

    @property
    def record_count(self) -> int:
        """Rows of the data files according to their manifest entries, including deleted rows."""
        return sum(source.record_count for source in self.inputs)

    @property
    def file_bytes(self) -> int:
        """Bytes of the data files."""
        return sum(source.file_size_in_bytes for source in self.inputs)

    @property
    def input_bytes(self) -> int:
        """Bytes of the data files, with an allowance for each data or delete file that is opened."""
        return self.file_bytes + (len(self.inputs) + len(self.deletes)) * OPEN_FILE_BYTES

    def readable(self, source: InputFile) -> ReadableFile:
        """One of the inputs, for :func:`.projected_rows`."""
        return ReadableFile(
            path=source.path,
            file_format=source.file_format,
            identity_values=source.identity_values,
            must_agree=source.must_agree,
            name_mapping=self.name_mapping,
            by_position=self.by_position,
            row_group=source.row_group,
            file_size_in_bytes=source.file_size_in_bytes,
        )


# Row lineage (specification, "Row Lineage"): a rewrite keeps the id of each row and the sequence number of its last
# change (rule: rows-keep-their-lineage).  It writes both as columns, with the values that a reader of the input finds.
# A stored value is kept.  If there is none, the id is the file's first row id plus the position, and the last change is
# the file's data sequence number.  (Java uses the file sequence number; the two differ only in files that were
# rewritten without these columns.)

# Specification, "Reserved Field IDs".
ROW_ID_ID = 2147483540
LAST_UPDATED_ID = 2147483539
_FIELDS = (
    {"id": ROW_ID_ID, "name": "_row_id", "required": False, "type": "long"},
    {"id": LAST_UPDATED_ID, "name": "_last_updated_sequence_number", "required": False, "type": "long"},
)
LINEAGE_NAMES = tuple(str(field["name"]) for field in _FIELDS)
"""The names of the two columns, in the order of the columns in files."""


@dataclass(frozen=True, slots=True)
class InheritedLineage:
    """The lineage of rows without stored values: row ``n`` has the id ``first_row_id + n``."""

    first_row_id: int
    sequence_number: int

    def after(self, rows: int) -> InheritedLineage:
        """The lineage of the rows after the first ``rows``."""
        return InheritedLineage(self.first_row_id + rows, self.sequence_number)


def with_lineage(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A table's schema with the two lineage columns at its end.

    Raises:
        TableUnsupported: the table has a column with a reserved name.
    """
    taken = {field["name"] for field in schema["fields"]} & {field["name"] for field in _FIELDS}
    if taken:
        raise TableUnsupported(f"column {min(taken)} has a name that row lineage reserves; rename it")
    return {**schema, "fields": [*schema["fields"], *_FIELDS]}


def resolved_lineage(
    batch: pa.RecordBatch, ids: Sequence[int], source: InputFile | InheritedLineage, first_row: int
) -> pa.RecordBatch:
    """The batch with nulls of the lineage columns filled in, if it has these columns.

    ``ids``: the field ids of its columns; ``first_row``: the position of its first row in the source.
    """
    if source.first_row_id is None or ROW_ID_ID not in ids:
        return batch
    start = source.first_row_id + first_row
    inherited = {
        ROW_ID_ID: pa.arange(start, start + batch.num_rows),
        LAST_UPDATED_ID: pa.scalar(source.sequence_number, pa.int64()),
    }
    for field_id, value in inherited.items():
        index = ids.index(field_id)
        batch = batch.set_column(index, batch.schema.field(index), pc.coalesce(batch.column(index), value))
    return batch


class PlannedInput(Protocol):
    """A live data file and the manifest entries of the delete files that apply to it."""

    @property
    def file_path(self) -> str: ...
    @property
    def file_format(self) -> str: ...
    @property
    def partition(self) -> tuple[PartitionValue, ...]: ...
    @property
    def record_count(self) -> int: ...
    @property
    def file_size_in_bytes(self) -> int: ...
    @property
    def first_row_id(self) -> int | None: ...
    @property
    def spec_id(self) -> int: ...
    @property
    def sequence_number(self) -> int: ...
    @property
    def deletes(self) -> tuple[ManifestEntry, ...]: ...


def make_read_task(
    metadata: TableMetadata, files: Sequence[PlannedInput], schema: Mapping[str, Any], io_properties: Mapping[str, str]
) -> ReadTask:
    """The task that reads the live rows of one or more files as rows of ``schema``.

    Raises:
        TableUnsupported: this version cannot apply an equality delete.
        StorageError: the table's name mapping is not JSON, so none of the files can be read.
    """
    deletes = {entry.file.key: entry for planned in files for entry in planned.deletes}
    numbers = {key: number for number, key in enumerate(deletes)}
    partitions: dict[PartitionKey, int] = {}
    return ReadTask(
        inputs=tuple(
            InputFile(
                path=planned.file_path,
                record_count=planned.record_count,
                file_size_in_bytes=planned.file_size_in_bytes,
                file_format=planned.file_format,
                sequence_number=planned.sequence_number,
                deletes=tuple(numbers[entry.file.key] for entry in planned.deletes),
                identity_values=(values := identity_values(metadata, planned.spec_id, planned.partition)),
                # Iceberg-Java compares keys with the partition's value (platform: readers-disagree-on-identity).
                must_agree=any(not values.keys().isdisjoint(e.file.equality_ids or ()) for e in planned.deletes),
                first_row_id=planned.first_row_id,
                partition_number=partitions.setdefault(
                    partition_key(planned.spec_id, planned.partition), len(partitions)
                ),
            )
            for planned in files
        ),
        schema=schema,
        name_mapping=name_mapping(metadata),
        by_position=metadata.current_schema["fields"],
        deletes=tuple(
            DeleteFile(
                path=entry.file.file_path,
                file_format=entry.file.file_format,
                content=entry.file.content,
                sequence_number=entry.sequence_number or 0,
                record_count=entry.file.record_count,
                equality_ids=entry.file.equality_ids or (),
                referenced_data_file=entry.file.referenced_data_file,
                content_offset=entry.file.content_offset,
                content_size_in_bytes=entry.file.content_size_in_bytes,
            )
            for entry in deletes.values()
        ),
        key_fields=_other_key_fields(metadata, schema, deletes),
        io_properties=properties_for_workers(io_properties),
    )


def name_mapping(metadata: TableMetadata) -> Sequence[Mapping[str, Any]] | None:
    """The table's name mapping; ``None``: it has none.

    Raises:
        StorageError: it is malformed.  If it were read as a mapping without names, columns would become null.
    """
    text = metadata.properties.get(NAME_MAPPING)
    try:
        mapping = None if text is None else json.loads(text)
        if mapping is not None:
            _require_mapped_fields(mapping)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the table property {NAME_MAPPING} is malformed; correct or remove it: {error}") from error
    return cast(list[Mapping[str, Any]] | None, mapping)


def _require_mapped_fields(fields: Any) -> None:
    """Raise ValueError unless these are mapped fields.  Source: Iceberg table specification, "Name Mapping
    Serialization"."""
    if not isinstance(fields, list):
        raise ValueError("mapped fields are not a list")
    for mapped in fields:
        names = mapped.get("names") if isinstance(mapped, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("a mapped field has no list of names")
        if not isinstance(mapped.get("field-id"), int | None):
            raise ValueError(f"the field id of {names} is not a number")
        _require_mapped_fields(mapped.get("fields") or [])


def identity_values(
    metadata: TableMetadata, spec_id: int, partition: Sequence[PartitionValue]
) -> dict[int, PartitionValue]:
    """Column id → raw partition value, for the identity fields of a partition spec."""
    fields = metadata.specs[spec_id]["fields"]
    return {
        int(field["source-id"]): value
        for field, value in zip(fields, partition, strict=True)
        if field["transform"] == "identity"
    }


def _other_key_fields(
    metadata: TableMetadata, schema: Mapping[str, Any], deletes: Mapping[Any, ManifestEntry]
) -> list[dict[str, Any]]:
    """The fields that equality deletes compare and ``schema`` lacks, from any schema of the table
    (rule: equality-keys-by-value).

    They are optional, because old files may lack them.  A nested field is returned in its structs, without their other
    fields.

    Raises:
        TableUnsupported: a column is in no schema, or inside a list or map.
    """
    by_key = [entry.file for entry in deletes.values() if entry.file.content is FileContent.EQUALITY_DELETES]
    keys = {field_id for file in by_key for field_id in file.equality_ids or ()}
    fields = []
    for field_id in sorted(keys):
        if column_path(schema["fields"], field_id) is not None:
            continue
        known = (_alone(other["fields"], field_id) for other in metadata.schemas_current_first)
        field = next((found for found in known if found is not None), None)
        if field is None:
            raise TableUnsupported(
                f"equality deletes use column {field_id}, which is unknown, or inside a list or map; the table was "
                "left alone"
            )
        fields.append(field)
    return fields


def _alone(fields: Sequence[Mapping[str, Any]], field_id: int) -> dict[str, Any] | None:
    """The field with this id in its structs, all optional, without their other fields; ``None``: there is none."""
    path = column_path(fields, field_id)
    if path is None:
        return None
    field = {**fields[path[0]], "required": False}
    if len(path) > 1:
        field["type"] = {**field["type"], "fields": [_alone(field["type"]["fields"], field_id)]}
    return field
