"""The work unit: what a worker gets and gives back.  Plain picklable values, no catalog, no policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icekeeper.model import DataFile, FileContent, PartitionValue
from icekeeper.operations.compaction.recipe import ClusterRecipe

__all__ = ["DeleteFile", "InputFile", "OutputNames", "RewriteResult", "RewriteTask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A delete file that reaches some of a task's inputs."""

    path: str
    file_format: str
    content: FileContent
    sequence_number: int
    record_count: int
    equality_ids: tuple[int, ...] = ()


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


@dataclass(frozen=True, slots=True)
class OutputNames:
    """Unique names for the files that one task writes."""

    folder: str
    stem: str

    def path(self, number: int = 0) -> str:
        """Where output ``number`` of the task goes."""
        return f"{self.folder}/{self.stem}-{number:05d}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """Merge ``inputs`` into files of one partition spec, named by ``outputs``."""

    group_id: int
    inputs: tuple[InputFile, ...]
    schema_json: str
    """The table's current schema: what the output holds."""
    name_mapping_json: str | None
    """``schema.name-mapping.default``, for inputs without field ids."""
    identity_values: Mapping[int, PartitionValue]
    """Column id → raw partition value of identity fields, for columns that the inputs do not hold."""
    partition: tuple[PartitionValue, ...]
    deletes: tuple[DeleteFile, ...] = ()
    key_fields_json: str = "[]"
    """Columns of equality deletes that the current schema no longer has: read, applied, not written."""
    outputs: OutputNames
    table_properties: Mapping[str, str]
    io_properties: Mapping[str, str]
    recipe: ClusterRecipe | None = None
    """How rows are to be ordered; ``None``: as they come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """What became of one task: written files, none when the inputs hold no rows, or an error."""

    group_id: int
    written: tuple[DataFile, ...]
    rows_read: int
    rows_deleted: int = 0
    seconds: float
    error: str | None = None
