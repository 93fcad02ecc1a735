"""What a worker needs to read live rows: data files, the delete files that apply to them, the schema; picklable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icekeeper.model import FileContent, PartitionValue

__all__ = ["OPEN_FILE_BYTES", "DeleteFile", "InputFile", "ReadTask", "ReadableFile"]

OPEN_FILE_BYTES = 256 * 1024
"""Opening a file takes as long as decoding so many bytes of it: 2.5 ms, where 100 MB are decoded in a second."""


@dataclass(frozen=True, slots=True)
class ReadableFile:
    """A data or delete file in a store, and what a reader has to know of it besides its bytes."""

    path: str
    file_format: str = "PARQUET"
    identity_values: Mapping[int, PartitionValue] = field(default_factory=dict)
    """Column id → raw partition value of identity fields, for columns that the file does not hold."""
    name_mapping: Sequence[Mapping[str, Any]] | None = None
    """The table's ``schema.name-mapping.default``, for a file without field ids; ``None``: the table has none."""
    by_position: Sequence[Mapping[str, Any]] = ()
    """The top-level fields of the table's current schema, for a file without field ids where there is no mapping."""
    row_group: int | None = None
    """The only row group of a Parquet file that is read; ``None``: the whole file is."""
    file_size_in_bytes: int | None = None
    """What its manifest entry says; ``None``: not known here."""
    verify_checksums: bool = True
    """Whether a Parquet file with a page whose checksum is not that of its bytes is unreadable (rule 247)."""


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
    """The path of the data file whose positions a deletion vector holds."""
    content_offset: int | None = None
    """Where a deletion vector lies in its Puffin file, in bytes."""
    content_size_in_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class InputFile:
    """A data file to read; ``record_count`` and ``file_size_in_bytes`` are those of its manifest entry."""

    path: str
    record_count: int
    file_size_in_bytes: int
    file_format: str = "PARQUET"
    sequence_number: int = 0
    """Data sequence number: equality deletes with a higher one apply to its rows."""
    deletes: tuple[int, ...] = ()
    """The delete files that apply to it, as indexes into the task's ``deletes``."""
    identity_values: Mapping[int, PartitionValue] = field(default_factory=dict)
    """Column id → raw partition value of identity fields, for columns that the file does not hold."""
    first_row_id: int | None = None
    """From v3 on, the row id of its first row; rows without a stored id count on from it."""
    partition_number: int = 0
    """Inputs of one spec and partition have the same number: equality deletes of a partition apply to all of them."""
    row_group: int | None = None
    """The only row group of a Parquet file that is read, and whose rows ``record_count`` counts; ``None``: all are."""
    first_row: int = 0
    """The position in the file of the first row that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Read the live rows of ``inputs`` as rows of one schema."""

    inputs: tuple[InputFile, ...]
    schema: Mapping[str, Any]
    """The Iceberg schema of the rows: the columns that are wanted, and no others."""
    name_mapping: Sequence[Mapping[str, Any]] | None = None
    """``schema.name-mapping.default``, for inputs without field ids; ``None``: the table has none."""
    by_position: Sequence[Mapping[str, Any]] = ()
    """The top-level fields of the table's current schema, for such inputs where there is no mapping."""
    deletes: tuple[DeleteFile, ...] = ()
    key_fields: Sequence[Mapping[str, Any]] = ()
    """Fields that equality deletes compare and the schema lacks: they are read, and dropped after the deletes."""
    verify_checksums: bool = True
    """Of data and delete files, as in :class:`ReadableFile`."""
    io_properties: Mapping[str, str]

    @property
    def key_memory_bytes(self) -> int:
        """Most bytes of memory that looking up keys of equality deletes takes (rule 171)."""
        return 128 * 1024 * 1024

    @property
    def input_bytes(self) -> int:
        """Bytes of the data files, with an allowance for each file that is opened, delete files included."""
        files = len(self.inputs) + len(self.deletes)
        return sum(source.file_size_in_bytes for source in self.inputs) + files * OPEN_FILE_BYTES

    def readable(self, source: InputFile) -> ReadableFile:
        """One of the inputs, as :func:`.file_rows.projected_rows` takes it."""
        return ReadableFile(
            path=source.path,
            file_format=source.file_format,
            identity_values=source.identity_values,
            name_mapping=self.name_mapping,
            by_position=self.by_position,
            row_group=source.row_group,
            file_size_in_bytes=source.file_size_in_bytes,
            verify_checksums=self.verify_checksums,
        )
