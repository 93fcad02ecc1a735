"""The work unit: what a worker gets and gives back.  Plain picklable values, no catalog, no policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icekeeper.model import DataFile, PartitionValue

__all__ = ["InputFile", "RewriteResult", "RewriteTask"]


@dataclass(frozen=True, slots=True)
class InputFile:
    """A data file to read; ``record_count`` is what its manifest entry promises."""

    path: str
    record_count: int
    file_size_in_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """Merge ``inputs`` into one file at ``output_path``."""

    group_id: int
    inputs: tuple[InputFile, ...]
    schema_json: str
    """The table's current schema: what the output holds."""
    name_mapping_json: str | None
    """``schema.name-mapping.default``, for inputs without field ids."""
    identity_values: Mapping[int, PartitionValue]
    """Column id → raw partition value of identity fields, for columns that the inputs do not hold."""
    partition: tuple[PartitionValue, ...]
    output_path: str
    table_properties: Mapping[str, str]
    io_properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """What became of one task: a written file, no file (the inputs hold no rows), or an error."""

    group_id: int
    written: DataFile | None
    rows_read: int
    seconds: float
    error: str | None = None
