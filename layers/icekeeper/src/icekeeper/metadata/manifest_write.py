"""Encodes manifests and manifest lists of format versions 1 to 3 (pure).

Entries are encoded one by one, or copied from another manifest without decoding all their fields.  Manifests can also
be assembled from compressed blocks.  The counts, sequence number and partition summaries for the manifest list are
computed from the entries, never copied (rule: summaries-hold-for-every-reader).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import fastavro
from deflate import deflate_compress
from fastavro.schema import parse_schema

from icekeeper.errors import MetadataUnreadable, TableUnsupported
from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import task_cores
from icekeeper.metadata.avro_files import (
    SYNC_BYTES,
    AvroFile,
    decimal_fields,
    open_avro,
    partition_record,
    record_of,
    structure,
    write_avro,
    writer_types,
)
from icekeeper.metadata.avro_schemas import AvroSchema, manifest_list_schema, manifest_schema
from icekeeper.metadata.avro_values import avro_long
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.entry_columns import (
    LATE_FIELDS,
    METRIC_FIELDS,
    WHOLE,
    EntryReader,
    Layout,
    StoredFile,
    entry_columns,
    layout_of,
)
from icekeeper.metadata.manifest_read import decode_manifest, entry_status, inherited_file_number, inherited_number
from icekeeper.metadata.transforms import partition_type
from icekeeper.metadata.types import least_decimal, summarise_partitions
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile, PartitionValue

BLOCK_BYTES = 64_000
"""The encoded records of a block, before compression (Java's ``DataFileConstants.DEFAULT_SYNC_INTERVAL``)."""
# This level compresses as well as zlib's default level, in half the time.
_DEFLATE_LEVEL = 6


@dataclass(frozen=True, slots=True)
class EncodedManifest:
    """The bytes of a manifest, and its entry for the manifest list."""

    data: bytes
    manifest: ManifestFile


def encode_manifest(
    metadata: TableMetadata,
    *,
    spec_id: int,
    content: ManifestContent,
    entries: Iterable[ManifestEntry],
    path: str,
    snapshot_id: int,
    sequence_number: int,
) -> EncodedManifest:
    """Encode a manifest, which the snapshot with this id and sequence number stores at ``path``.

    ADDED entries may have null sequence numbers and inherit the snapshot's.  EXISTING and DELETED entries state their
    own sequence numbers (rule: carry-entries-explicitly).

    Raises:
        ValueError: an EXISTING or DELETED entry lacks a sequence number or snapshot id.
        TableUnsupported: the format version or a partition type cannot be written.
    """
    builder = ManifestBuilder(metadata, spec_id, content)
    for entry in entries:
        builder.add(entry)
    return builder.encoded(path, snapshot_id, sequence_number)


class ManifestBuilder:
    """Encodes a manifest entry by entry, and keeps only its compressed blocks."""

    def __init__(self, metadata: TableMetadata, spec_id: int, content: ManifestContent) -> None:
        """Raises TableUnsupported: the format version or a partition type cannot be written."""
        self._spec_id, self._content = spec_id, content
        self._types = partition_types(metadata, spec_id)
        self._encoder = entry_encoder(metadata, spec_id)
        self._header = empty_manifest(self._encoder, metadata, spec_id, content)
        self._blocks: list[bytes] = []
        self._waiting: list[bytes] = []
        self._waiting_bytes = self.count = 0
        self._files, self._rows = dict.fromkeys(EntryStatus, 0), dict.fromkeys(EntryStatus, 0)
        self._min_number: int | None = None
        self._inherits_number = False
        # By repr, because 0.0 == -0.0, which are two partitions.
        self._partitions: dict[str, tuple[PartitionValue, ...]] = {}
        self._last_partition: tuple[PartitionValue, ...] | None = None

    def add(self, entry: ManifestEntry) -> None:
        """Raises ValueError: an EXISTING or DELETED entry lacks a sequence number or snapshot id."""
        encoded = self._encoder.encoded(entry)
        self._waiting.append(encoded)
        self._waiting_bytes += len(encoded)
        if self._waiting_bytes >= BLOCK_BYTES:
            self._end_block()
        self.count += 1
        self._files[entry.status] += 1
        self._rows[entry.status] += entry.file.record_count
        if entry.is_live:
            number = entry.sequence_number
            if number is None:
                self._inherits_number = True
            elif self._min_number is None or number < self._min_number:
                self._min_number = number
        if (partition := entry.file.partition) is not self._last_partition:
            self._partitions.setdefault(repr(partition), partition)
            self._last_partition = partition

    def _end_block(self) -> None:
        self._blocks.append(avro_block(self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    def encoded(self, path: str, snapshot_id: int, sequence_number: int) -> EncodedManifest:
        """The manifest, once all entries are added; parameters as in :func:`encode_manifest`."""
        if self._waiting:
            self._end_block()
        data = container_of(self._header, self._blocks)
        numbers = [number for number in (self._min_number,) if number is not None]
        if self._inherits_number or not numbers:
            numbers.append(sequence_number)
        manifest = ManifestFile(
            manifest_path=path,
            manifest_length=len(data),
            partition_spec_id=self._spec_id,
            content=self._content,
            sequence_number=sequence_number,
            min_sequence_number=min(numbers),
            added_snapshot_id=snapshot_id,
            added_files_count=self._files[EntryStatus.ADDED],
            existing_files_count=self._files[EntryStatus.EXISTING],
            deleted_files_count=self._files[EntryStatus.DELETED],
            added_rows_count=self._rows[EntryStatus.ADDED],
            existing_rows_count=self._rows[EntryStatus.EXISTING],
            deleted_rows_count=self._rows[EntryStatus.DELETED],
            partitions=summarise_partitions(self._types, list(self._partitions.values())),
        )
        return EncodedManifest(data, manifest)


def empty_manifest(encoder: EntryEncoder, metadata: TableMetadata, spec_id: int, content: ManifestContent) -> bytes:
    """A manifest without blocks: its header (specification, "Manifests"), which is mostly schemas."""
    header = {
        "schema": json.dumps(metadata.current_schema),
        "partition-spec": json.dumps(metadata.specs[spec_id]["fields"]),
        "partition-spec-id": str(spec_id),
        "format-version": str(metadata.format_version),
    }
    if metadata.format_version >= 2:
        header["content"] = "deletes" if content is ManifestContent.DELETES else "data"
    return write_avro(encoder.schema, (), header)


def partition_types(metadata: TableMetadata, spec_id: int) -> list[str]:
    """The result types of a spec's fields, in order.

    Raises:
        TableUnsupported: the spec, a transform or a source column is unknown.
    """
    spec = metadata.specs.get(spec_id)
    if spec is None:
        raise TableUnsupported(f"a manifest uses partition spec {spec_id}, which the table does not have")
    return [partition_type(metadata.schemas_current_first, field) for field in spec["fields"]]


def encode_manifest_list(
    format_version: int,
    manifests: Iterable[ManifestFile],
    *,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    first_row_id: int | None = None,
) -> bytes:
    """Encode the manifest list of a snapshot; ``first_row_id`` is required from v3 on.

    Raises:
        ValueError: a v3 list has no first row id.
        TableUnsupported: the format version cannot be written.
    """
    if format_version >= 3 and first_row_id is None:
        raise ValueError("a v3 manifest list needs the snapshot's first row id")
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
        "format-version": str(format_version),
    }
    if format_version >= 2:
        header["sequence-number"] = str(sequence_number)
    if format_version >= 3:
        header["first-row-id"] = str(first_row_id)
    records = (_list_record(manifest, format_version) for manifest in manifests)
    return write_avro(manifest_list_schema(format_version), records, header)


def _list_record(manifest: ManifestFile, version: int) -> dict[str, Any]:
    record = {field.name: getattr(manifest, field.name) for field in fields(manifest)}
    # v2 requires counts.  If a v1 writer omitted them, commit.snapshot fills them in before.
    if version >= 2 and any(value is None for name, value in record.items() if name.endswith("_count")):
        raise ValueError(f"manifest {manifest.manifest_path} has no file counts and must be rewritten first")
    record["content"] = int(manifest.content)
    if manifest.partitions is not None:
        record["partitions"] = [asdict(summary) for summary in manifest.partitions]
    return record


# Encoding of entries.

# V1Writer in Iceberg-Java writes this constant; v1 readers require the field and ignore it.
_V1_BLOCK_SIZE_IN_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EntryEncoder:
    """Encodes entries of a spec; late fields of a ``StoredFile``, such as column metrics, are copied as bytes
    (rule: damage-ends-in-a-named-error).

    Avro encodes a record as the sequence of its fields, so the schema of entries is also kept in parts.
    """

    schema: AvroSchema
    version: int
    names: Sequence[str]
    """The Avro names of the partition fields."""
    widths: Mapping[str, int]
    """Decimal partition field → its width in bytes; narrower values, from before a promotion, are widened."""
    whole: AvroSchema
    before: AvroSchema
    """All fields before the first late field of the data file."""
    late: Layout
    after: AvroSchema
    """The fields of the data file after the last late field."""

    def encoded(self, entry: ManifestEntry) -> bytes:
        """Raises ValueError if an EXISTING or DELETED entry lacks its data sequence number or snapshot id."""
        record, file, sink = self._record(entry), entry.file, io.BytesIO()
        stretch = file.stretch(self.late) if isinstance(file, StoredFile) else None
        if stretch is None:
            metrics = {name: _key_values(getattr(file, name)) for name in METRIC_FIELDS.values()}
            record["data_file"] |= {**metrics, "split_offsets": _listed(file.split_offsets)}
            fastavro.schemaless_writer(sink, self.whole, record)
        else:
            fastavro.schemaless_writer(sink, self.before, record)
            sink.write(stretch)
            fastavro.schemaless_writer(sink, self.after, record["data_file"])
        return sink.getvalue()

    def _record(self, entry: ManifestEntry) -> dict[str, Any]:
        """All values except late fields.  A file sequence number that another writer omitted stays null."""
        if entry.status is not EntryStatus.ADDED and (entry.snapshot_id is None or entry.sequence_number is None):
            raise ValueError(f"{entry.status.name} entry of {entry.file.file_path} must state its ids explicitly")
        file = entry.file
        partition = dict(zip(self.names, file.partition, strict=True))
        for name, width in self.widths.items():
            value = partition[name]
            if isinstance(value, bytes) and len(value) != width:
                partition[name] = int.from_bytes(value, "big", signed=True).to_bytes(width, "big", signed=True)
        record: dict[str, Any] = {
            "content": int(file.content),
            "file_path": file.file_path,
            "file_format": file.file_format,
            "partition": partition,
            "record_count": file.record_count,
            "file_size_in_bytes": file.file_size_in_bytes,
            "key_metadata": file.key_metadata,
            "equality_ids": _listed(file.equality_ids),
            "sort_order_id": file.sort_order_id,
            "referenced_data_file": file.referenced_data_file,
        }
        if self.version == 1:
            record["block_size_in_bytes"] = _V1_BLOCK_SIZE_IN_BYTES
        if self.version >= 3:
            # Readers assign the row id of an ADDED entry (specification, "First Row ID Inheritance").
            record["first_row_id"] = None if entry.status is EntryStatus.ADDED else file.first_row_id
            record["content_offset"] = file.content_offset
            record["content_size_in_bytes"] = file.content_size_in_bytes
        return {
            "status": int(entry.status),
            "snapshot_id": entry.snapshot_id,
            "sequence_number": entry.sequence_number,
            "file_sequence_number": entry.file_sequence_number,
            "data_file": record,
        }


def entry_encoder(metadata: TableMetadata, spec_id: int) -> EntryEncoder:
    """The encoder for entries of a spec, in the table's format version.

    Raises:
        TableUnsupported: the format version or a partition type cannot be written.
    """
    schema = manifest_schema(metadata.format_version, metadata.schemas_current_first, metadata.specs[spec_id])
    return _encoder_of(json.dumps(schema), metadata.format_version)


@lru_cache(maxsize=32)  # parsing a schema takes longer than writing a small manifest
def _encoder_of(schema_text: str, version: int) -> EntryEncoder:
    schema, before = json.loads(schema_text), json.loads(schema_text)
    partition, fields = partition_record(schema), record_of(schema, 2, "data_file")["fields"]
    late = [number for number, field in enumerate(fields) if field["field-id"] in LATE_FIELDS]
    first, end = late[0], late[-1] + 1
    del record_of(before, 2, "data_file")["fields"][first:]
    return EntryEncoder(
        schema=schema,
        version=version,
        names=[field["name"] for field in partition["fields"]],
        widths=decimal_fields(partition),
        whole=cast("AvroSchema", parse_schema(schema)),
        before=cast("AvroSchema", parse_schema(before)),
        late=layout_of(fields[first:end]),
        after=cast("AvroSchema", parse_schema({"type": "record", "name": "tail", "fields": fields[end:]})),
    )


def _listed(values: tuple[int, ...] | None) -> list[int] | None:
    """A list, because fastavro takes a tuple in a union for (branch, value)."""
    return None if values is None else list(values)


def _key_values(mapping: Mapping[int, Any] | None) -> list[dict[str, Any]] | None:
    return None if mapping is None else [{"key": key, "value": mapping[key]} for key in sorted(mapping)]


# Copying of entries.
#
# A manifest rewrite changes only an entry's status and its inherited values.  All other bytes are copied if the old
# manifest encodes entries like Icekeeper, as Iceberg-Java does for the same format version and spec.  Any other
# manifest is decoded and encoded again.
# The decoded fields of a copied entry, by id: fields that may change (status, snapshot id and both sequence numbers),
# and fields that the manifest list summarises (path, partition and record count).
_HEAD = (0, 1, 3, 4)
_FILE = (100, 102, 103)
# The last fields of a v3 data file: first row id, referenced data file, content offset and size.
_TAIL = (142, 143, 144, 145)


class _UnusualEncodingError(Exception):
    """A number is stored in more bytes than it needs, which Avro allows; its bytes cannot be predicted."""


class StoredEntry(NamedTuple):
    """A live entry, encoded with the status EXISTING."""

    partition: tuple[PartitionValue, ...]
    sequence_number: int
    file_path: str
    record_count: int
    data: bytes


stored_entry: Callable[[tuple[Any, ...]], StoredEntry] = partial(tuple.__new__, StoredEntry)
"""The entry with these fields, twice as fast as by the class itself."""


class EntryCopier:
    """Copies the live entries of data and delete manifests of a spec."""

    def __init__(self, metadata: TableMetadata, spec_id: int) -> None:
        """Raises TableUnsupported: the format version or a partition type cannot be written."""
        self._encoder = entry_encoder(metadata, spec_id)
        self._structure = structure(self._encoder.schema)
        self._version = metadata.format_version
        self._spec, self._schemas = metadata.specs[spec_id], metadata.schemas_current_first
        self._decimals = tuple(i for i, name in enumerate(self._encoder.names) if name in self._encoder.widths)

    def copy(self, data: bytes, manifest: ManifestFile) -> Iterator[StoredEntry]:
        """The live entries, with every inherited value made explicit (rule: carry-entries-explicitly).

        Raises:
            MetadataUnreadable: the manifest is damaged, or an entry lacks a value that it cannot inherit, or has a
                value of another type.
        """
        opened = open_avro(data, manifest.manifest_path)
        is_of_version = opened.header.get("format-version", "1") == str(self._version)
        if is_of_version and structure(writer_types(opened.schema_text).schema) == self._structure:
            with suppress(_UnusualEncodingError):
                yield from list(self._copied(opened, manifest))
                return
        for entry in decode_manifest(data, manifest, self._spec, self._schemas):
            if entry.is_live:
                if entry.snapshot_id is None:
                    raise _without_snapshot(manifest)
                file, number = entry.file, entry.sequence_number or 0
                try:
                    encoded = self._encoder.encoded(replace(entry, status=EntryStatus.EXISTING))
                except (ValueError, TypeError, OverflowError, AttributeError) as error:
                    raise MetadataUnreadable(
                        f"manifest {manifest.manifest_path} has an entry with a value that does not have its column's "
                        f"type: {error}"
                    ) from error
                yield StoredEntry(file.partition, number, file.file_path, file.record_count, encoded)

    def _copied(self, opened: AvroFile, manifest: ManifestFile) -> Iterator[StoredEntry]:
        reader = _reader_of(opened.schema_text, self._decimals, _TAIL if self._version >= 3 else ())
        # Keyed by the values of an entry before its data file, which are equal for the entries of a commit.
        heads: dict[tuple[Any, ...], tuple[bytes, int] | None] = {}
        next_row_id = manifest.first_row_id if manifest.content is ManifestContent.DATA else None
        for columns, _ in opened.blocks(reader.read_block):
            keys, files = zip(*columns[: len(_HEAD)], strict=True), zip(*columns[len(_HEAD) :], strict=True)
            for key, (body, file_path, partition, record_count, *tail) in zip(keys, files, strict=True):
                try:
                    head = heads[key]
                except KeyError:
                    head = heads[key] = self._head(manifest, *key)
                if head is None:
                    continue
                encoded, number = head
                if tail and tail[0] is None and next_row_id is not None:
                    body = _with_row_id(body, tail, next_row_id)
                    next_row_id += record_count
                yield stored_entry((partition, number, file_path, record_count, encoded + body))

    def _head(
        self,
        manifest: ManifestFile,
        status_code: int,
        written_id: int | None,
        written_number: int | None,
        written_file_number: int | None,
    ) -> tuple[bytes, int] | None:
        """The encoded fields of the EXISTING entry before its data file, and the entry's sequence number; ``None`` for
        a deleted entry."""
        status = entry_status(status_code, manifest.manifest_path)
        if status is EntryStatus.DELETED:
            return None
        snapshot_id = manifest.added_snapshot_id if written_id is None else written_id
        if snapshot_id is None:
            raise _without_snapshot(manifest)
        number = inherited_number(written_number, status, manifest)
        numbers = [snapshot_id, number, inherited_file_number(written_file_number, status, manifest)]
        if self._version < 2:  # entries have no sequence numbers
            del numbers[1:]
        return avro_long(int(EntryStatus.EXISTING)) + b"".join(map(_optional_long, numbers)), number


@lru_cache(maxsize=64)
def _reader_of(schema_text: str, decimals: tuple[int, ...], tail: tuple[int, ...]) -> EntryReader:
    """``decimals``: the positions of decimal partition fields; ``tail``: the last fields of a data file."""

    def partition(record: Mapping[str, Any]) -> tuple[PartitionValue, ...]:
        values = list(record.values())
        for index in decimals:
            values[index] = least_decimal(values[index])
        return tuple(values)

    return entry_columns(writer_types(schema_text), _HEAD, (WHOLE, *_FILE, *tail), partition)


def _with_row_id(body: bytes, tail: Sequence[Any], first_row_id: int) -> bytes:
    """The encoded data file with its inherited row id; ``tail`` has the values of its last fields."""
    _, referenced, *numbers = tail
    encoded = b"" if referenced is None else referenced.encode()
    rest = b"\x00" if referenced is None else b"\x02" + avro_long(len(encoded)) + encoded
    rest += b"".join(map(_optional_long, numbers))
    old = _optional_long(None) + rest
    if not body.endswith(old):
        raise _UnusualEncodingError
    return body[: len(body) - len(old)] + _optional_long(first_row_id) + rest


def _optional_long(value: int | None) -> bytes:
    return b"\x00" if value is None else b"\x02" + avro_long(value)


def _without_snapshot(manifest: ManifestFile) -> MetadataUnreadable:
    return MetadataUnreadable(f"manifest {manifest.manifest_path} has an entry without snapshot id")


# Manifests assembled from compressed blocks: their size is known in advance, and they can end where a partition ends.


@dataclass(frozen=True, slots=True)
class EntryBlock:
    """A block of an Avro file without its sync marker, and the totals of its entries for the manifest list."""

    data: bytes
    files: int
    rows: int
    min_sequence_number: int
    partitions: tuple[tuple[PartitionValue, ...], ...]
    """Each partition once, in the order of the entries."""
    ends_partition: bool
    """Whether no later block has entries of its last partition."""

    @property
    def size(self) -> int:
        """The size of the block in a file, with the sync marker."""
        return len(self.data) + SYNC_BYTES


def entry_blocks(entries: Iterable[StoredEntry], block_bytes: int = BLOCK_BYTES) -> list[EntryBlock]:
    """Blocks of about ``block_bytes`` before compression; the entries are in partition order.

    A block may have only a quarter of that if a partition ends there, so that most partitions end with a block.  Blocks
    are compressed in parallel on the task's cores.
    """
    parts = _parts(entries, block_bytes)
    if (cores := task_cores()) == 1:
        return [_block(*part) for part in parts]
    with WorkThreads(cores, thread_name_prefix="manifest-deflate") as pool:
        return list(pool.map(lambda part: _block(*part), parts))


def _parts(entries: Iterable[StoredEntry], block_bytes: int) -> Iterator[tuple[list[StoredEntry], bool]]:
    """The entries of each block, and whether a partition ends with it."""
    waiting: list[StoredEntry] = []
    size = 0
    for run in _runs(entries):
        for entry in run:
            if waiting and size >= block_bytes:
                yield waiting, entry is run[0]
                waiting, size = [], 0
            waiting.append(entry)
            size += len(entry.data)
        if waiting and size >= block_bytes // 4:
            yield waiting, True
            waiting, size = [], 0
    if waiting:
        yield waiting, True


def _runs(entries: Iterable[StoredEntry]) -> Iterator[list[StoredEntry]]:
    """The entries, in a list per partition."""
    run: list[StoredEntry] = []
    for entry in entries:
        # Most entries share their partition object with the entry before.  repr, because 0.0 == -0.0, which are two
        # partitions.
        if run and entry.partition is not run[-1].partition and repr(entry.partition) != repr(run[-1].partition):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _block(entries: Sequence[StoredEntry], ends_partition: bool) -> EntryBlock:
    _, numbers, _, counts, encoded = zip(*entries, strict=True)
    return EntryBlock(
        data=avro_block(encoded),
        files=len(entries),
        rows=sum(counts),
        min_sequence_number=min(numbers),
        partitions=tuple({repr(run[0].partition): run[0].partition for run in _runs(entries)}.values()),
        ends_partition=ends_partition,
    )


class ManifestAssembler:
    """Assembles manifests of a spec and a content type from blocks."""

    def __init__(self, metadata: TableMetadata, spec_id: int, content: ManifestContent) -> None:
        """Raises TableUnsupported: the format version or a partition type cannot be written."""
        self._spec_id, self._content = spec_id, content
        self._types = partition_types(metadata, spec_id)
        self._header = empty_manifest(entry_encoder(metadata, spec_id), metadata, spec_id, content)

    @property
    def header_bytes(self) -> int:
        """The bytes of a manifest without entries."""
        return len(self._header)

    def assemble(self, blocks: Sequence[EntryBlock], path: str) -> EncodedManifest:
        """A manifest of EXISTING entries; the commit sets its sequence number and snapshot id."""
        data = container_of(self._header, (block.data for block in blocks))
        partitions = [partition for block in blocks for partition in block.partitions]
        manifest = ManifestFile(
            manifest_path=path,
            manifest_length=len(data),
            partition_spec_id=self._spec_id,
            content=self._content,
            min_sequence_number=min(block.min_sequence_number for block in blocks),
            added_snapshot_id=None,
            added_files_count=0,
            existing_files_count=sum(block.files for block in blocks),
            deleted_files_count=0,
            added_rows_count=0,
            existing_rows_count=sum(block.rows for block in blocks),
            deleted_rows_count=0,
            partitions=summarise_partitions(self._types, partitions),
        )
        return EncodedManifest(data, manifest)


# Avro container files of encoded records (Apache Avro 1.12 specification, "Object Container Files").


def avro_block(records: Sequence[bytes]) -> bytes:
    """A deflated block of encoded records, without the sync marker after it."""
    payload = deflate_compress(b"".join(records), _DEFLATE_LEVEL)
    return avro_long(len(records)) + avro_long(len(payload)) + payload


def container_of(header: bytes, blocks: Iterable[bytes]) -> bytes:
    """A container file of these blocks; ``header`` is a file with codec ``deflate`` and no blocks."""
    marker = header[-SYNC_BYTES:]
    return header + b"".join(part for block in blocks for part in (block, marker))
