"""What an object is that no manifest describes, by its first bytes, and what it stores of matching rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from icekeeper.erasure.places import What
from icekeeper.erasure.row_filter import RowFilter, point, raw_value
from icekeeper.erasure.search import FileToRead
from icekeeper.erasure.traces import partition_names, summary_trace, text_trace, texts
from icekeeper.errors import MetadataUnreadable
from icekeeper.machine.foreign_bytes import GZIP_MAGIC, FileLimits, parsed_json
from icekeeper.metadata.avro_files import open_avro
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import decode_manifest, decode_manifest_list, manifest_from_file
from icekeeper.metadata.puffin import DELETION_VECTOR, decode_footer
from icekeeper.metadata.table_reader import VERSION_HINT
from icekeeper.model import ManifestEntry, ManifestFile
from icekeeper.operations.compaction.plan.value_ranges import Column
from icekeeper.rows.file_rows import open_rows
from icekeeper.rows.read_task import ReadableFile, name_mapping
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import compared
from icekeeper.storage.storage import Storage

NoteEntries: TypeAlias = Callable[[str, str, int, Iterable[ManifestEntry]], None]
"""Called with a manifest that no snapshot lists: its path and version, its spec id and its entries."""

ObjectKey: TypeAlias = tuple[str, str, str]
"""Store, key and version: however its path is spelled."""

_AVRO_HEADER_BYTES = 1024 * 1024
_FORMATS = ((b"PAR1", "PARQUET"), (b"ORC", "ORC"))
_AVRO, _PUFFIN = b"Obj\x01", b"PFA1"
# Hadoop's checksums of a file, which hold no values (``ChecksumFileSystem.CHECKSUM_VERSION``).
_CHECKSUMS = b"crc\0"
_PARTITION_STATISTICS = frozenset({"partition", "spec_id", "data_record_count"})


def key_of(path: str, version: str = "") -> ObjectKey:
    """The object at a path."""
    place = compared(path)
    return place.authority, place.key, version


@dataclass(slots=True)
class Sighting:
    """What was found in an object."""

    whats: dict[What, int] = field(default_factory=dict)
    """What it stores, with the number of rows; 0: values in metadata."""
    unknown: str = ""
    """Why it is unknown what it stores, as a sentence."""
    possible: set[ObjectKey] = field(default_factory=set)
    """Files that its values may describe: a trace unless all of them are free of matching rows."""
    sketches: set[int] = field(default_factory=set)
    """Snapshots over whose rows it has statistics."""
    etag: str = ""
    signature: object = None
    """Size, ETag and time of the object that was looked at."""


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """Reads objects other than the data and delete files that manifests describe."""

    metadata: TableMetadata
    storage: Storage
    filter: RowFilter
    note: NoteEntries

    @property
    def _names(self) -> Mapping[str, Column]:
        return partition_names(self.metadata, self.filter)

    def look(self, listed: ListedObject, found: Sighting) -> FileToRead | None:
        """Note what an object holds; returns how to read it if it holds rows.

        Raises:
            StorageError: it cannot be read.
            MetadataUnreadable: it is damaged.
            ArrowException, OSError, ValueError: likewise.
        """
        start = self._start(listed)
        kind = next((kind for magic, kind in _FORMATS if start.startswith(magic)), None)
        if kind is not None:
            return self._rows(listed, kind, found)
        if start.startswith(_AVRO):
            return self._avro(listed, found)
        if start.startswith(_PUFFIN):
            self._puffin(listed, found)
        elif start.startswith((b"{", GZIP_MAGIC)):
            self._json(listed, found)
        elif not start.startswith(_CHECKSUMS) and not (listed.path.endswith(VERSION_HINT) and start.strip().isdigit()):
            found.unknown = f"{listed.path} has a format that is not read"
        return None

    def _start(self, listed: ListedObject) -> bytes:
        if listed.size == 0:
            return _CHECKSUMS
        with self.storage.translated(listed.path), self._opened(listed) as stream:
            return bytes(stream.read(4))

    def _opened(self, listed: ListedObject) -> pa.NativeFile:
        if listed.version:
            return self.storage.open_version(listed)
        return self.storage.open_input(listed.path, listed.size)

    def _bytes(self, listed: ListedObject) -> bytes:
        if not listed.version:
            return self.storage.read(listed.path)
        with self.storage.translated(listed.path), self._opened(listed) as stream:
            return bytes(stream.read())

    def _rows(self, listed: ListedObject, kind: str, found: Sighting) -> FileToRead | None:
        """A file with rows: statistics of partitions, or rows of any schema."""
        with self.storage.translated(listed.path), self._opened(listed) as stream:
            schema, batches = open_rows(stream, kind)
            if set(schema.names) >= _PARTITION_STATISTICS:
                self._partitions(batches(["partition"]), found)
                return None
        readable = ReadableFile(
            listed.path,
            kind,
            name_mapping=name_mapping(self.metadata),  # without it, the columns of a file without ids are unknown
            file_size_in_bytes=listed.size,
        )
        return FileToRead(readable, listed.size, False, listed.version)

    def _partitions(self, batches: Iterable[pa.RecordBatch], found: Sighting) -> None:
        for batch in batches:
            column = batch.column(0)
            wanted = [(self._names[f.name], column.field(f.name)) for f in column.type if f.name in self._names]
            for row in range(len(column)):
                stored = {c.field_id: [point(raw_value(c.kind, values[row]))] for c, values in wanted}
                if self.filter.is_stored(stored):
                    found.whats[What.BOUNDS] = 0

    def _avro(self, listed: ListedObject, found: Sighting) -> FileToRead | None:
        """A manifest, a manifest list, or rows."""
        with self.storage.translated(listed.path), self._opened(listed) as stream:
            header = open_avro(bytes(stream.read(_AVRO_HEADER_BYTES)), listed.path)
        ids = {field.get("field-id") for field in json.loads(header.schema_text).get("fields", ())}
        if {0, 2} <= ids:
            data = self._bytes(listed)
            manifest = manifest_from_file(data, listed.path, 0)
            spec = self._spec(manifest)
            entries = list(decode_manifest(data, manifest, spec, self.metadata.schemas_current_first))
            self.note(listed.path, listed.version, manifest.partition_spec_id, entries)
        elif {500, 501, 502} <= ids:
            for manifest in decode_manifest_list(self._bytes(listed), listed.path):
                if summary_trace(self.filter, manifest, self._spec(manifest)):
                    found.whats[What.BOUNDS] = 0
        else:
            return self._rows(listed, "AVRO", found)
        return None

    def _spec(self, manifest: ManifestFile) -> Mapping[str, Any]:
        try:
            return self.metadata.specs[manifest.partition_spec_id]
        except KeyError:
            raise MetadataUnreadable(
                f"{manifest.manifest_path} uses partition spec {manifest.partition_spec_id}, unknown to the table"
            ) from None

    def _puffin(self, listed: ListedObject, found: Sighting) -> None:
        """Deletion vectors, which hold positions, or statistics."""
        ids = {column.field_id for column in self.filter.columns}
        for blob in decode_footer(self._bytes(listed), listed.path):
            if any(text_trace(self.filter, self._names, text) for text in texts(blob.properties)):
                found.whats[What.NAME] = 0
            if blob.type != DELETION_VECTOR and ids.intersection(blob.fields):
                found.sketches.add(blob.snapshot_id)

    def _json(self, listed: ListedObject, found: Sighting) -> None:
        data = self._bytes(listed)
        limits = FileLimits(listed.path, len(data))
        document = parsed_json(limits.unpack("gzip" if data[:2] == GZIP_MAGIC else "null", data), limits)
        if any(text_trace(self.filter, self._names, text) for text in texts(document)):
            found.whats[What.TEXT] = 0
