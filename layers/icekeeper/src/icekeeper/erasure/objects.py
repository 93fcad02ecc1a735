"""What an object is that no manifest describes, by its first bytes, and what it stores of matching rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

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
from icekeeper.model import ManifestEntry
from icekeeper.rows.file_rows import open_rows
from icekeeper.rows.read_task import ReadableFile, name_mapping
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.storage import Storage

NoteEntries: TypeAlias = Callable[[str, str, int, Iterable[ManifestEntry]], None]
"""Called with a manifest that no snapshot lists: its path and version, its spec id and its entries."""

_FORMATS = ((b"PAR1", "PARQUET"), (b"ORC", "ORC"))
_AVRO, _PUFFIN = b"Obj\x01", b"PFA1"
# Files that writers leave beside data, which hold no values.
_WITHOUT_VALUES = (".crc", "/_SUCCESS", f"/{VERSION_HINT}")
_PARTITION_STATISTICS = frozenset({"partition", "spec_id", "data_record_count"})


@dataclass(frozen=True, slots=True)
class Look:
    """What an object stores, and how to read its rows if it has some."""

    whats: tuple[What, ...] = ()
    file: FileToRead | None = None
    sketches: frozenset[int] = frozenset()
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """Reads objects other than the data and delete files that manifests describe."""

    metadata: TableMetadata
    storage: Storage
    filter: RowFilter
    note: NoteEntries

    def look(self, listed: ListedObject) -> Look:
        """Look at an object.

        Raises:
            StorageError: it cannot be read.
            MetadataUnreadable: it is damaged.
            ArrowException, OSError, ValueError: likewise.
        """
        if listed.size == 0 or listed.path.endswith(_WITHOUT_VALUES):
            return Look()
        start = self._start(listed)
        kind = next((kind for magic, kind in _FORMATS if start.startswith(magic)), None)
        if kind is not None:
            return self._rows(listed, kind)
        if start.startswith(_AVRO):
            return self._avro(listed)
        if start.startswith(_PUFFIN):
            return self._puffin(listed)
        if start.startswith((b"{", GZIP_MAGIC)):
            return self._json(listed)
        return Look(unknown=f"{listed.path} has a format that is not read")

    def _start(self, listed: ListedObject) -> bytes:
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

    def _rows(self, listed: ListedObject, kind: str) -> Look:
        """A file with rows: statistics of partitions, or rows of any schema."""
        with self.storage.translated(listed.path), self._opened(listed) as stream:
            schema, batches = open_rows(stream, kind)
            if set(schema.names) >= _PARTITION_STATISTICS:
                return self._partitions(pa.Table.from_batches(list(batches(["partition"]))))
        readable = ReadableFile(
            listed.path,
            kind,
            name_mapping=name_mapping(self.metadata),
            by_position=self.metadata.current_schema["fields"],
            file_size_in_bytes=listed.size,
        )
        return Look(file=FileToRead(readable, listed.size, False, listed.version))

    def _partitions(self, table: pa.Table) -> Look:
        names = partition_names(self.metadata, self.filter)
        for chunk in table.column("partition").chunks:
            wanted = [(names[f.name], chunk.field(f.name)) for f in chunk.type if f.name in names]
            for row in range(len(chunk)):
                stored = {column.field_id: [point(raw_value(column.kind, values[row]))] for column, values in wanted}
                if self.filter.is_stored(stored):
                    return Look((What.BOUNDS,))
        return Look()

    def _avro(self, listed: ListedObject) -> Look:
        """A manifest, a manifest list, or rows."""
        data = self._bytes(listed)
        opened = open_avro(data, listed.path)
        ids = {field.get("field-id") for field in json.loads(opened.schema_text).get("fields", ())}
        if {0, 2} <= ids:
            manifest = manifest_from_file(data, listed.path, 0)
            spec = self.metadata.specs.get(manifest.partition_spec_id)
            if spec is None:
                raise MetadataUnreadable(
                    f"{listed.path} uses partition spec {manifest.partition_spec_id}, which the table does not have"
                )
            entries = list(decode_manifest(data, manifest, spec, self.metadata.schemas_current_first))
            self.note(listed.path, listed.version, manifest.partition_spec_id, entries)
            return Look()
        if {500, 501, 502} <= ids:
            for manifest in decode_manifest_list(data, listed.path):
                spec = self.metadata.specs.get(manifest.partition_spec_id)
                if spec is not None and summary_trace(self.filter, manifest, spec):
                    return Look((What.BOUNDS,))
            return Look()
        return self._rows(listed, "AVRO")

    def _puffin(self, listed: ListedObject) -> Look:
        """Deletion vectors, which hold positions, or statistics."""
        names, ids = partition_names(self.metadata, self.filter), {column.field_id for column in self.filter.columns}
        blobs = decode_footer(self._bytes(listed), listed.path)
        is_named = any(text_trace(self.filter, names, value) for blob in blobs for value in texts(blob.properties))
        sketches = frozenset(
            blob.snapshot_id for blob in blobs if blob.type != DELETION_VECTOR and ids.intersection(blob.fields)
        )
        return Look((What.NAME,) if is_named else (), sketches=sketches)

    def _json(self, listed: ListedObject) -> Look:
        data = self._bytes(listed)
        limits = FileLimits(listed.path, len(data))
        document = parsed_json(limits.unpack("gzip" if data[:2] == GZIP_MAGIC else "null", data), limits)
        names = partition_names(self.metadata, self.filter)
        is_named = any(text_trace(self.filter, names, text) for text in texts(document))
        return Look((What.TEXT,) if is_named else ())
