"""What a worker needs to read live rows: data files, the deletes that reach them, the schema.  Picklable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from icekeeper.model import FileContent, PartitionValue

__all__ = ["DeleteFile", "InputFile", "ReadTask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A delete file that reaches some of a task's inputs."""

    path: str
    file_format: str
    content: FileContent
    sequence_number: int
    record_count: int
    equality_ids: tuple[int, ...] = ()
    referenced_data_file: str | None = None
    """Of a deletion vector: the one file whose positions it holds."""
    content_offset: int | None = None
    content_size_in_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class InputFile:
    """A data file to read; ``record_count`` is what its manifest entry promises."""

    path: str
    record_count: int
    file_size_in_bytes: int
    file_format: str = "PARQUET"
    sequence_number: int = 0
    """Data sequence number: equality deletes with a higher one reach its rows."""
    deletes: tuple[int, ...] = ()
    """Which of the task's delete files reach it."""
    identity_values: Mapping[int, PartitionValue] = field(default_factory=dict)
    """Column id → raw partition value of identity fields, for columns that the file does not hold."""
    first_row_id: int | None = None
    """v3: the id of its first row, for rows that do not carry theirs."""
    partition_number: int = 0
    """The same for inputs of one spec and partition, which equality deletes of a partition reach together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Read the live rows of ``inputs`` as rows of one schema."""

    inputs: tuple[InputFile, ...]
    schema_json: str
    """The columns that are wanted, as a schema."""
    name_mapping_json: str | None
    """``schema.name-mapping.default``, for inputs without field ids."""
    deletes: tuple[DeleteFile, ...] = ()
    key_fields_json: str = "[]"
    """Columns of equality deletes that the schema does not have: read, applied, not handed on."""
    io_properties: Mapping[str, str]
