"""Task and result of merging position deletes: plain picklable values, no catalog, no policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from icekeeper.model import DataFile, PartitionValue
from icekeeper.rows.read_task import OPEN_FILE_BYTES
from icekeeper.storage.attempt_names import PlannedFile

__all__ = ["MergeResult", "MergeTask", "PositionDeletes"]

# A position, and its share of a path that is stored once for many.
_ROW_BYTES = 8


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """A position delete file or a deletion vector; ``record_count`` is what its manifest entry promises."""

    path: str
    file_format: str
    sequence_number: int
    record_count: int
    named_file: str | None = None
    """The one data file that it names; its rows for other files delete nothing, because no reader applies them."""
    blob: tuple[int, int] | None = None
    """Offset and size of a deletion vector in its Puffin file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """Merge ``deletes`` that reach one partition into one file; rows that reach none of ``targets`` are dangling."""

    group_id: int
    deletes: tuple[PositionDeletes, ...]
    targets: Mapping[str, int]
    """Data file → its data sequence number: deletes of a lower one do not reach it."""
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
        """About what is read; manifest entries of deletes are known here by their rows alone."""
        return sum(file.record_count * _ROW_BYTES + OPEN_FILE_BYTES for file in self.deletes)

    def in_attempt(self, attempt: int) -> MergeTask:
        """The task as this attempt does it."""
        return replace(self, attempt=attempt)

    @property
    def path(self) -> str:
        """Where this attempt writes.

        Raises:
            StorageError: it is one too many.
        """
        return self.output.path(self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What became of one task: entries of the file written, none when every row was dangling, or an error."""

    group_id: int
    written: tuple[DataFile, ...]
    rows_read: int
    rows_written: int
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The delete files that cannot be read, if that is the error: path → a sentence with it."""
