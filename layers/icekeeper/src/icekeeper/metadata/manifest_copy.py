"""Copies entries from one manifest into another without decoding them in full.

Rewriting manifests changes only an entry's status and the values that it inherited.  If the old manifest encodes
entries as we do, as Iceberg-Java's manifests and ours of the same format version and spec do, everything else is copied
byte for byte.  Any other manifest is decoded and encoded anew.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import fastavro
from fastavro.schema import parse_schema

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.avro_fields import canonical_names, prune_schema, record_of, renamed
from icekeeper.metadata.avro_files import decimal_fields, read_avro_bytes, structure
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.inherited_numbers import inherited_file_number, inherited_number
from icekeeper.metadata.manifest_entries import entry_encoder
from icekeeper.metadata.manifest_read import decode_manifest
from icekeeper.metadata.single_value import least_decimal
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile, PartitionValue

__all__ = ["EntryCopier", "StoredEntry", "avro_long"]

# The fields that are decoded of an entry that is copied: those that may change, and those that a manifest list sums up.
_HEAD = {0: "status", 1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number"}
_FILE = {100: "file_path", 102: "partition", 103: "record_count"}
# The last fields of a v3 data file, from the first row id on.
_TAIL = {142: "first_row_id", 143: "referenced_data_file", 144: "content_offset", 145: "content_size_in_bytes"}


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
        self._schema = parse_schema(self._encoder.schema)
        self._structure = structure(self._encoder.schema)
        self._version = metadata.format_version
        self._spec = metadata.specs[spec_id]

    def copy(self, data: bytes, manifest: ManifestFile) -> Iterator[StoredEntry]:
        """The live entries, with every inherited value written out (rule 3).

        Raises:
            MetadataUnreadable: the manifest is damaged, or an entry lacks what it cannot inherit.
        """
        wanted = _FILE | (_TAIL if self._version >= 3 else {})
        header, schema, records = read_avro_bytes(
            data, manifest.manifest_path, prune=lambda found: prune_schema(found, _HEAD, wanted)
        )
        if structure(schema) == self._structure and header.get("format-version", "1") == str(self._version):
            with suppress(_UnusualEncodingError):
                copied = list(self._copied(schema, records, manifest))
                yield from copied
                return
        for entry in decode_manifest(data, manifest, self._spec):
            if entry.is_live:
                yield self._encoded(entry, manifest)

    def _encoded(self, entry: ManifestEntry, manifest: ManifestFile) -> StoredEntry:
        sink = io.BytesIO()
        if entry.snapshot_id is None:
            raise _without_snapshot(manifest)
        record = self._encoder.record(replace(entry, status=EntryStatus.EXISTING))
        fastavro.schemaless_writer(sink, self._schema, record)
        file = entry.file
        number = entry.sequence_number or 0
        return StoredEntry(file.partition, number, file.file_path, file.record_count, sink.getvalue())

    def _copied(
        self, schema: dict[str, Any], records: Iterator[tuple[dict[str, Any], memoryview]], manifest: ManifestFile
    ) -> Iterator[StoredEntry]:
        path = manifest.manifest_path
        file_schema = record_of(schema, 2, "data_file", path)
        head_names, file_names = (
            canonical_names(schema, _HEAD | {2: "data_file"}),
            canonical_names(file_schema, _FILE | _TAIL),
        )
        ours = record_of(record_of(self._encoder.schema, 2, "data_file", path), 102, "partition", path)
        decimals = [i for i, field in enumerate(ours["fields"]) if field["name"] in decimal_fields(ours)]
        numbered = self._version >= 2
        next_row_id = manifest.first_row_id if manifest.content is ManifestContent.DATA else None
        for record, raw in records:
            entry = renamed(record, head_names)
            status, written_id = EntryStatus(entry["status"]), entry["snapshot_id"]
            if status is EntryStatus.DELETED:
                continue
            snapshot_id = manifest.added_snapshot_id if written_id is None else written_id
            if snapshot_id is None:
                raise _without_snapshot(manifest)
            number = inherited_number(entry.get("sequence_number"), status, manifest)
            file_number = inherited_file_number(entry.get("file_sequence_number"), status, manifest)
            old_numbers: tuple[int | None, ...] = ()
            new_numbers: tuple[int | None, ...] = ()
            if numbered:
                old_numbers = (entry["sequence_number"], entry["file_sequence_number"])
                new_numbers = (number, file_number)
            old_head = _head(int(status), written_id, old_numbers)
            new_head = _head(int(EntryStatus.EXISTING), snapshot_id, new_numbers)
            file = renamed(entry["data_file"], file_names)
            body = raw[len(old_head) :]
            if raw[: len(old_head)] != old_head:
                raise _UnusualEncodingError
            values = list(file["partition"].values())
            for index in decimals:
                values[index] = least_decimal(values[index])
            new_tail = b""
            if self._version >= 3 and file["first_row_id"] is None and next_row_id is not None:
                body, new_tail = _with_row_id(body, file, next_row_id)
                next_row_id += file["record_count"]
            yield StoredEntry(
                tuple(values),
                number,
                file["file_path"],
                file["record_count"],
                b"".join((new_head, body, new_tail)),
            )


def _with_row_id(body: memoryview, file: dict[str, Any], first_row_id: int) -> tuple[memoryview, bytes]:
    """The encoded data file up to its first row id, and the rest encoded with the inherited row id."""
    rest = _optional_string(file["referenced_data_file"]) + b"".join(
        _optional_long(file[name]) for name in ("content_offset", "content_size_in_bytes")
    )
    old = _optional_long(None) + rest
    if body[len(body) - len(old) :] != old:
        raise _UnusualEncodingError
    return body[: len(body) - len(old)], _optional_long(first_row_id) + rest


@lru_cache(4096)  # entries of one commit have the same head
def _head(status: int, snapshot_id: int | None, numbers: tuple[int | None, ...]) -> bytes:
    return avro_long(status) + b"".join(map(_optional_long, (snapshot_id, *numbers)))


def _optional_long(value: int | None) -> bytes:
    return b"\x00" if value is None else b"\x02" + avro_long(value)


def _optional_string(value: str | None) -> bytes:
    if value is None:
        return b"\x00"
    encoded = value.encode()
    return b"\x02" + avro_long(len(encoded)) + encoded


def avro_long(value: int) -> bytes:
    """An int or long as Avro encodes it: zig-zag, in groups of seven bits, in as few bytes as it needs."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _without_snapshot(manifest: ManifestFile) -> MetadataUnreadable:
    return MetadataUnreadable(f"manifest {manifest.manifest_path} holds an entry without snapshot id")
