"""Copies entries from one manifest into another without decoding them in full.

Rewriting manifests changes only an entry's status and the values that it inherited.  If the old manifest encodes
entries as we do, as Iceberg-Java's manifests and ours of the same format version and spec do, everything else is copied
byte for byte.  Any other manifest is decoded and encoded anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.avro_block_writer import avro_long
from icekeeper.metadata.avro_fields import record_of
from icekeeper.metadata.avro_files import OpenedFile, decimal_fields, open_avro, structure, writer_schema
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.entry_columns import SPAN, EntryColumns, entry_columns
from icekeeper.metadata.inherited_numbers import inherited_file_number, inherited_number
from icekeeper.metadata.manifest_entries import entry_encoder
from icekeeper.metadata.manifest_read import decode_manifest, entry_status
from icekeeper.metadata.single_value import least_decimal
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile, PartitionValue

__all__ = ["EntryCopier", "StoredEntry"]

# The fields that are decoded of an entry that is copied: those that may change, and those that a manifest list sums up.
# By id: status, snapshot id and both sequence numbers; path, partition and record count.
_HEAD = (0, 1, 3, 4)
_FILE = (100, 102, 103)
# The last fields of a v3 data file: first row id, referenced data file, content offset and size.
_TAIL = (142, 143, 144, 145)


class _UnusualEncodingError(Exception):
    """A number is stored in more bytes than it needs: legal Avro, but such an entry cannot be copied byte for byte."""


class StoredEntry(NamedTuple):
    """A live entry, encoded as the EXISTING entry that it becomes."""

    partition: tuple[PartitionValue, ...]
    sequence_number: int
    file_path: str
    record_count: int
    data: bytes
    """The whole entry, encoded for the table's format version and the entry's spec."""


class EntryCopier:
    """Copies the live entries of manifests of one spec, data and delete manifests alike."""

    def __init__(self, metadata: TableMetadata, spec_id: int) -> None:
        """Raises TableUnsupported: the format version or a partition type cannot be written."""
        self._encoder = entry_encoder(metadata, spec_id)
        self._structure = structure(self._encoder.schema)
        self._version = metadata.format_version
        self._spec, self._schemas = metadata.specs[spec_id], metadata.schemas_current_first
        partition = record_of(record_of(self._encoder.schema, 2, "data_file"), 102, "partition")
        named = decimal_fields(partition)
        self._decimals = tuple(i for i, field in enumerate(partition["fields"]) if field["name"] in named)

    def copy(self, data: bytes, manifest: ManifestFile) -> Iterator[StoredEntry]:
        """The live entries, with every inherited value written out (rule 3).

        Raises:
            MetadataUnreadable: the manifest is damaged, or an entry lacks what it cannot inherit.
        """
        opened = open_avro(data, manifest.manifest_path)
        written = writer_schema(opened.schema_text)
        if structure(written.schema) == self._structure and self._is_of_version(opened.header):
            with suppress(_UnusualEncodingError):
                yield from list(self._copied(opened, manifest))
                return
        for entry in decode_manifest(data, manifest, self._spec, self._schemas):
            if entry.is_live:
                yield self._encoded(entry, manifest)

    def _is_of_version(self, header: Mapping[str, str]) -> bool:
        return header.get("format-version", "1") == str(self._version)

    def _encoded(self, entry: ManifestEntry, manifest: ManifestFile) -> StoredEntry:
        if entry.snapshot_id is None:
            raise _without_snapshot(manifest)
        file, number = entry.file, entry.sequence_number or 0
        data = self._encoder.encoded(replace(entry, status=EntryStatus.EXISTING))
        return StoredEntry(file.partition, number, file.file_path, file.record_count, data)

    def _copied(self, opened: OpenedFile, manifest: ManifestFile) -> Iterator[StoredEntry]:
        columns = _layout(opened.schema_text, self._decimals)
        heads = _Heads(manifest, is_numbered=self._version >= 2)
        next_row_id = manifest.first_row_id if manifest.content is ManifestContent.DATA else None
        for block, (start, end, *values) in _rows(opened, columns):
            head = heads[tuple(values[: len(_HEAD)])]
            if head is None:
                continue
            if not block.startswith(head.old, start, end):
                raise _UnusualEncodingError
            body = block[start + len(head.old) : end]
            file_path, partition, record_count, *tail = values[len(_HEAD) :]
            if self._version >= 3 and tail[0] is None and next_row_id is not None:
                body = _with_row_id(body, tail, next_row_id)
                next_row_id += record_count
            yield StoredEntry(partition, head.sequence_number, file_path, record_count, head.new + body)


class _Head(NamedTuple):
    """How an entry begins, up to its data file: as it is encoded, and as the EXISTING entry that it becomes."""

    old: bytes
    new: bytes
    sequence_number: int


class _Heads(dict[tuple[Any, ...], "_Head | None"]):
    """The heads of one manifest's entries by their values, which entries of one commit share; ``None`` of deleted ones.

    ``is_numbered``: whether entries have sequence numbers, as from v2 on.
    """

    def __init__(self, manifest: ManifestFile, *, is_numbered: bool) -> None:
        super().__init__()
        self._manifest, self._is_numbered = manifest, is_numbered

    def __missing__(self, values: tuple[Any, ...]) -> _Head | None:
        head = self[values] = self._head(*values)
        return head

    def _head(
        self, status_code: int, written_id: int | None, written_number: int | None, written_file_number: int | None
    ) -> _Head | None:
        manifest = self._manifest
        status = entry_status(status_code, manifest.manifest_path)
        if status is EntryStatus.DELETED:
            return None
        snapshot_id = manifest.added_snapshot_id if written_id is None else written_id
        if snapshot_id is None:
            raise _without_snapshot(manifest)
        number = inherited_number(written_number, status, manifest)
        file_number = inherited_file_number(written_file_number, status, manifest)
        old_numbers: tuple[int | None, ...] = ()
        new_numbers: tuple[int | None, ...] = ()
        if self._is_numbered:
            old_numbers = (written_number, written_file_number)
            new_numbers = (number, file_number)
        old = _encoded_head(status_code, written_id, old_numbers)
        return _Head(old, _encoded_head(int(EntryStatus.EXISTING), snapshot_id, new_numbers), number)


def _rows(opened: OpenedFile, columns: EntryColumns) -> Iterator[tuple[bytes, Sequence[Any]]]:
    """The values of each entry after its block."""
    for rows, block in opened.blocks(columns.reader.read_block):
        for values in rows:
            yield block, values


@lru_cache(maxsize=64)
def _layout(schema_text: str, decimals: tuple[int, ...]) -> EntryColumns:
    """How to read what is needed of entries; ``decimals``: which partition fields are."""

    def partition(record: Mapping[str, Any]) -> tuple[PartitionValue, ...]:
        values = list(record.values())
        for index in decimals:
            values[index] = least_decimal(values[index])
        return tuple(values)

    return entry_columns(writer_schema(schema_text), (*SPAN, *_HEAD), (*_FILE, *_TAIL), partition)


def _with_row_id(body: bytes, tail: Sequence[Any], first_row_id: int) -> bytes:
    """The encoded data file with the row id that it inherits; ``tail`` are the values of its last fields."""
    _, referenced_data_file, *numbers = tail
    rest = _optional_string(referenced_data_file) + b"".join(map(_optional_long, numbers))
    old = _optional_long(None) + rest
    if body[len(body) - len(old) :] != old:
        raise _UnusualEncodingError
    return body[: len(body) - len(old)] + _optional_long(first_row_id) + rest


def _encoded_head(status: int, snapshot_id: int | None, numbers: tuple[int | None, ...]) -> bytes:
    return avro_long(status) + b"".join(map(_optional_long, (snapshot_id, *numbers)))


def _optional_long(value: int | None) -> bytes:
    return b"\x00" if value is None else b"\x02" + avro_long(value)


def _optional_string(value: str | None) -> bytes:
    if value is None:
        return b"\x00"
    encoded = value.encode()
    return b"\x02" + avro_long(len(encoded)) + encoded


def _without_snapshot(manifest: ManifestFile) -> MetadataUnreadable:
    return MetadataUnreadable(f"manifest {manifest.manifest_path} holds an entry without snapshot id")
