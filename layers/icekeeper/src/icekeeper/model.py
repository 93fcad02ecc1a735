"""Iceberg's terms as plain immutable values.

Partition values and bounds stay in the raw form in which Avro stores them, so that an entry is unchanged when it is
read and written again: dates as days, uuids as big-endian bytes, decimals as big-endian bytes of the least length.
Source: specification, "Manifests" and "Manifest Lists".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

PartitionValue: TypeAlias = bool | int | float | str | bytes | None
FileKey: TypeAlias = tuple[str, int | None]
"""Identifies a live file within a snapshot: its path, and the offset of a deletion vector in its Puffin file."""


class CatalogId(NamedTuple):
    """A catalog as the records about it and about its tables name it."""

    name: str
    warehouse: str

    def __str__(self) -> str:
        """For people: the name alone."""
        return self.name


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as users write it: everything before the last dot is the namespace."""

    namespace: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse ``ns.sub.table``.

        Raises:
            ValueError: there is no dot, or a part is empty.
        """
        parts = tuple(text.split("."))
        if len(parts) < 2 or not all(parts):
            raise ValueError(f"'{text}' is not a table name; write NAMESPACE.TABLE, for example analytics.events")
        return cls(parts[:-1], parts[-1])

    @classmethod
    def recorded(cls, text: str) -> TableName:
        """The name with this :attr:`key`.

        Any text is a key: catalogs contain names that :meth:`parse` refuses, and one such record must not stop a
        reader of all records.
        """
        if text.startswith("["):
            with suppress(ValueError, RecursionError):
                parts = json.loads(text)
                if parts and all(isinstance(part, str) for part in parts):
                    return cls(tuple(parts[:-1]), parts[-1])
        namespace, dot, name = text.rpartition(".")
        return cls(tuple(namespace.split(".")) if dot else (), name)

    @property
    def key(self) -> str:
        """The text under which a table is recorded; no two names share a text.

        For plain names it is the same as :func:`str`, which is ambiguous for others: ``a.b.c`` may be ``c`` in
        ``("a", "b")`` or in ``("a.b",)``.
        """
        text = str(self)
        return text if self.is_plain and not text.startswith("[") else json.dumps([*self.namespace, self.name])

    @property
    def is_plain(self) -> bool:
        """Whether no other name has the same text: no part is empty or contains a dot."""
        return all(part and "." not in part for part in (*self.namespace, self.name)) and bool(self.namespace)

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True)
class Nothing:
    """The result of a planner that found no work, with the reason in words."""

    reason: str


class FileContent(IntEnum):
    """``data_file.content`` (field 134)."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


class ManifestContent(IntEnum):
    """``manifest_file.content`` (field 517)."""

    DATA = 0
    DELETES = 1


class EntryStatus(IntEnum):
    """``manifest_entry.status`` (field 0)."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data or delete file as a manifest describes it; sizes in bytes, maps keyed by column field id."""

    content: FileContent
    file_path: str
    file_format: str
    partition: tuple[PartitionValue, ...]
    record_count: int
    file_size_in_bytes: int
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None
    key_metadata: bytes | None = None
    split_offsets: tuple[int, ...] | None = None
    equality_ids: tuple[int, ...] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None

    @property
    def key(self) -> FileKey:
        """Unique within a snapshot."""
        return self.file_path, self.content_offset

    @property
    def content_bytes(self) -> int:
        """The bytes of the file; of a deletion vector its own, not those of its Puffin file
        (rule: what-a-table-needs)."""
        return self.file_size_in_bytes if self.content_size_in_bytes is None else self.content_size_in_bytes


class LiveFile(NamedTuple):
    """A live file by path, offset and size in bytes, without statistics.

    For a deletion vector, the size is that of its Puffin file (rule: what-a-table-needs).
    """

    path: str
    content_offset: int | None
    size: int
    snapshot_id: int | None = None
    """The snapshot that added the file; ``None``: the snapshot that added the manifest."""


class FileIdentity(NamedTuple):
    """Shows whether a path is still the same live file, or was removed and added again."""

    sequence_number: int
    """The data sequence number, which decides which deletes apply to the file."""
    size: int
    snapshot_id: int | None
    """The snapshot that added the file."""
    file_sequence_number: int | None
    """``None``: a writer dropped it."""

    @property
    def is_rewritten(self) -> bool:
        """Whether a rewrite wrote the file: its rows are older than the file (rule: keep-planning-sequence-number).
        False in v1 tables, which have no sequence numbers."""
        return self.file_sequence_number is not None and self.file_sequence_number > self.sequence_number

    def is_same(self, other: FileIdentity) -> bool:
        """Whether both describe the same file, given the same path.

        Adding a file again changes its snapshot id and its file sequence number.  Early v2 writers dropped or
        overwrote the latter when they copied entries, so it alone proves nothing.
        """
        if (self.sequence_number, self.size) != (other.sequence_number, other.size):
            return False
        numbers = self.file_sequence_number, other.file_sequence_number
        return None in numbers or numbers[0] == numbers[1] or self.snapshot_id == other.snapshot_id


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One tracked file; entries that were read have their inherited ids and sequence numbers."""

    status: EntryStatus
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    """May be ``None`` in an entry that was read: early v2 writers dropped it, and no reader needs it."""
    file: DataFile

    @property
    def is_live(self) -> bool:
        return self.status is not EntryStatus.DELETED

    @property
    def identity(self) -> FileIdentity:
        return FileIdentity(
            self.sequence_number or 0, self.file.file_size_in_bytes, self.snapshot_id, self.file_sequence_number
        )


@dataclass(frozen=True, slots=True)
class PartitionFieldSummary:
    """``field_summary`` (508): bounds in the single-value encoding of the partition type."""

    contains_null: bool
    contains_nan: bool | None
    lower_bound: bytes | None
    upper_bound: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One manifest as its manifest list describes it; counts are ``None`` where a v1 writer left them out."""

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: ManifestContent = ManifestContent.DATA
    sequence_number: int = 0
    min_sequence_number: int = 0
    added_snapshot_id: int | None
    added_files_count: int | None = None
    existing_files_count: int | None = None
    deleted_files_count: int | None = None
    added_rows_count: int | None = None
    existing_rows_count: int | None = None
    deleted_rows_count: int | None = None
    partitions: tuple[PartitionFieldSummary, ...] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None

    @property
    def may_have_live_files(self) -> bool:
        """False only if the counts say that every entry is DELETED."""
        return self.added_files_count != 0 or self.existing_files_count != 0


class LiveEntry(NamedTuple):
    """A live entry with its manifest, which has the partition spec."""

    manifest: ManifestFile
    entry: ManifestEntry
