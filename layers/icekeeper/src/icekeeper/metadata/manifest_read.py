"""Decodes manifests and manifest lists of format versions 1 to 3 (pure).

Fields are found by Avro ``field-id``, or by name if a writer omitted the ids.  Inherited snapshot ids, sequence numbers
and row ids are filled in here, so that no caller gets a null for a value that the manifest list contains.
Source: specification, "Manifest Entry Inheritance", "First Row ID Inheritance".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.avro_files import AvroFile, decimal_fields, open_avro, partition_record, writer_types
from icekeeper.metadata.avro_schemas import avro_name, manifest_list_schema
from icekeeper.metadata.avro_values import AvroTypes, Reader, read_bytes
from icekeeper.metadata.entry_columns import (
    BYTES,
    ENTRY_FIELDS,
    FILE_FIELDS,
    LATE,
    LATE_FIELDS,
    METRIC_FIELDS,
    NUMBER,
    STORED,
    TEXT,
    EntryReader,
    StoredFile,
    entry_columns,
    made,
    require_type,
)
from icekeeper.metadata.types import TIMESTAMPS, UNITS_PER_DAY, column_type, least_decimal
from icekeeper.model import (
    DataFile,
    EntryStatus,
    FileContent,
    FileIdentity,
    FileKey,
    LiveFile,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionFieldSummary,
    PartitionValue,
)

JsonObject = Mapping[str, Any]

_LIST_FIELDS = {field["field-id"]: field["name"] for field in manifest_list_schema(3)["fields"]}
# Names of an early draft that some v1 writers still use (specification, "Manifest Lists", v1).
_LEGACY_NAMES = {
    "added_data_files_count": "added_files_count",
    "existing_data_files_count": "existing_files_count",
    "deleted_data_files_count": "deleted_files_count",
}
# Avro types of fields that are not numbers, and of the fields of partition summaries.
_LIST_TYPES = {"manifest_path": TEXT, "partitions": frozenset({"array"}), "key_metadata": BYTES}
_FLAG = frozenset({"boolean"})
_SUMMARY_TYPES = {"contains_null": _FLAG, "contains_nan": _FLAG, "lower_bound": BYTES, "upper_bound": BYTES}
_SUMMARY_BYTES = 512
# The typical memory of a decoded entry of a manifest list, without its summaries and bytes.
_ENTRY_BYTES = 768
# Avro types of partition values, which are compared and looked up.
_PARTITION_TYPES = NUMBER | TEXT | BYTES | frozenset({"boolean", "float", "double", "fixed"})
# Fields that are decoded for every file, in the order of a stored file's fields.  Late fields are decoded on demand.
_FILE = (134, 100, 101, 102, 103, 104, 131, 135, 140, 142, 143, 144, 145)
_ROWS, _KEYS, _ROW_ID = (_FILE.index(field_id) for field_id in (103, 135, 142))
_CONTENTS = {None: FileContent.DATA} | {int(content): content for content in FileContent}
_DELETED = int(EntryStatus.DELETED)
_STATUSES = {int(status): status for status in EntryStatus}
_PUT_ENTRY = tuple(getattr(ManifestEntry, field.name).__set__ for field in dataclasses.fields(ManifestEntry))


def entry_status(code: int, path: str) -> EntryStatus:
    """The status with this code, of an entry in the manifest at ``path``.

    Raises:
        MetadataUnreadable: there is no such status.
    """
    try:
        return _STATUSES[code]
    except KeyError:
        raise MetadataUnreadable(f"manifest {path} has an entry with the unknown status {code}") from None


class ListEntries:
    """Decodes manifest lists.  Successive snapshots list mostly the same manifests, so equal bytes are decoded once."""

    def __init__(self) -> None:
        # Schema → the first field's bytes → the entry's bytes, and the entry.
        self._known: dict[str, dict[bytes, tuple[bytes, ManifestFile]]] = {}
        self.size = 0
        """About how many bytes of memory different entries take; a caller that keeps them sets it back to 0."""

    def decode(self, data: bytes, path: str) -> list[ManifestFile]:
        """The manifests of a snapshot, in file order.

        Raises:
            MetadataUnreadable: the file is damaged.
        """
        opened = open_avro(data, path)
        try:
            read, begins_with_text = _list_reader(opened.schema_text)
        except LookupError as error:
            raise MetadataUnreadable(f"manifest list {path} {error}") from None
        known = self._known.setdefault(opened.schema_text, {})

        def entry(block: bytes, at: int) -> tuple[ManifestFile, int]:
            key = read_bytes(block, at)[0] if begins_with_text else b""
            same, manifest = known.get(key, (b"", None))
            if manifest is not None and block.startswith(same, at):
                return manifest, at + len(same)
            record, end = read(block, at)
            manifest = _manifest_file(record, path)
            if end <= len(block):
                known[key] = block[at:end], manifest
                self.size += _ENTRY_BYTES + end - at + _SUMMARY_BYTES * len(manifest.partitions or ())
            return manifest, end

        found = []
        for manifest in opened.values(entry):
            found.append(manifest)
            opened.limits.hold(_SUMMARY_BYTES * len(manifest.partitions or ()))
        return found


def decode_manifest_list(data: bytes, path: str) -> list[ManifestFile]:
    """As :meth:`ListEntries.decode`, for a single list."""
    return ListEntries().decode(data, path)


def _manifest_file(record: JsonObject, path: str) -> ManifestFile:
    values = {name: value for name, value in record.items() if value is not None}
    try:
        for name in ("manifest_path", "manifest_length", "partition_spec_id"):
            if name not in values:
                raise ValueError(f"it has no {name}")
        values["content"] = ManifestContent(values.get("content", 0))
        if "partitions" in values:
            values["partitions"] = tuple(
                PartitionFieldSummary(
                    s["contains_null"], s.get("contains_nan"), s.get("lower_bound"), s.get("upper_bound")
                )
                for s in values["partitions"]
            )
        return ManifestFile(**{"added_snapshot_id": None, **values})
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataUnreadable(f"manifest list {path} has an entry that is not a manifest: {error}") from error


@lru_cache(maxsize=64)
def _list_reader(schema_text: str) -> tuple[Reader, bool]:
    """A reader of entries, and whether their first field is a text.

    Raises:
        LookupError: a field has another type than in the specification.
    """
    types = writer_types(schema_text)
    names: dict[str, str] = {}
    for field in types.schema["fields"]:
        written, field_id = field["name"], field.get("field-id")
        name = _LEGACY_NAMES.get(written, written) if field_id is None else _LIST_FIELDS.get(int(field_id), written)
        if name not in _LIST_FIELDS.values():
            continue
        names[written] = name
        require_type(types, field["type"], name, _LIST_TYPES.get(name, NUMBER))
        if name == "partitions":
            for part in _summary_record(types, field["type"])["fields"]:
                if part["name"] in _SUMMARY_TYPES:
                    require_type(types, part["type"], part["name"], _SUMMARY_TYPES[part["name"]])
    first = [types.defined(field["type"]) for field in types.schema["fields"][:1]]
    return types.fields_reader(names), any(isinstance(kind, dict) and kind["type"] == "string" for kind in first)


def _summary_record(types: AvroTypes, kind: Any) -> JsonObject:
    defined = types.defined(kind)
    for branch in defined if isinstance(defined, list) else [defined]:
        if types.defined(branch)["type"] == "array":
            items = types.defined(types.defined(branch)["items"])
            if isinstance(items, dict) and items["type"] == "record":
                return items
    raise LookupError("has partitions that are not records; Iceberg's manifest lists do not")


def manifest_from_file(data: bytes, path: str, added_snapshot_id: int) -> ManifestFile:
    """A manifest that a v1 snapshot lists inline, described from the manifest's header; its counts are unknown.

    Raises:
        MetadataUnreadable: the file is damaged.
    """
    spec_id = open_avro(data, path).header.get("partition-spec-id") or "0"
    if not (spec_id.isascii() and spec_id.isdecimal() and len(spec_id) <= 10):
        raise MetadataUnreadable(f"manifest {path} has a header with partition-spec-id {spec_id[:60]!r}")
    return ManifestFile(
        manifest_path=path,
        manifest_length=len(data),
        partition_spec_id=int(spec_id),
        added_snapshot_id=added_snapshot_id,
    )


def decode_manifest(
    data: bytes, manifest: ManifestFile, spec: JsonObject, table_schemas: Sequence[JsonObject] = ()
) -> Iterator[ManifestEntry]:
    """The entries of a manifest, of every status, with inherited values filled in.

    ``spec`` is the manifest's partition spec; partition tuples follow its fields.  Their values have the current types
    of the columns.  ``table_schemas`` has every schema, the current schema first.

    Raises:
        MetadataUnreadable: the file is damaged, or an entry lacks a value that it cannot inherit.
    """
    path = manifest.manifest_path
    opened = open_avro(data, path)
    fields = tuple(
        (int(field["field-id"]), str(field["name"]), _units_per_day(field, table_schemas)) for field in spec["fields"]
    )
    reader = _entry_reader(opened, (0, 1, 3, 4), (LATE, *_FILE), (0, 100, 101, 103, 104), fields)
    late = reader.late
    added_snapshot_id = manifest.added_snapshot_id
    next_row_id = manifest.first_row_id if manifest.content is ManifestContent.DATA else None
    for columns, _ in opened.blocks(reader.read_block):
        codes, snapshot_ids, numbers, file_numbers, stretches, *stored = columns
        statuses = [entry_status(code, path) for code in codes]
        try:
            stored[0] = [_CONTENTS[content] for content in stored[0]]
            if next_row_id is not None:
                stored[_ROW_ID], next_row_id = _row_ids(next_row_id, stored, statuses)
            stored[_KEYS] = [None if keys is None else tuple(keys) for keys in stored[_KEYS]]
            files: Sequence[DataFile]
            if late is None:
                files = [_decoded(values) for values in zip(*stored, strict=True)]
            else:
                files = StoredFile.of(stored, late, stretches)
        except (KeyError, ValueError, TypeError) as error:
            raise MetadataUnreadable(f"manifest {path} has an entry that cannot be decoded: {error!r}") from error
        values = (
            statuses,
            [added_snapshot_id if i is None else i for i in snapshot_ids],
            [inherited_number(n, s, manifest) if n is None else n for n, s in zip(numbers, statuses, strict=True)],
            [
                inherited_file_number(n, s, manifest) if n is None else n
                for n, s in zip(file_numbers, statuses, strict=True)
            ],
            files,
        )
        yield from made(ManifestEntry, len(statuses), zip(_PUT_ENTRY, values, strict=True))


def _row_ids(
    next_row_id: int, stored: Sequence[Sequence[Any]], statuses: Sequence[EntryStatus]
) -> tuple[list[int | None], int]:
    """The row ids of files, inherited if they are null, and the next row id to inherit."""
    found: list[int | None] = []
    for row_id, rows, status in zip(stored[_ROW_ID], stored[_ROWS], statuses, strict=True):
        if row_id is None and status is not EntryStatus.DELETED:
            found.append(next_row_id)
            next_row_id += rows
        else:
            found.append(row_id)
    return found, next_row_id


def _decoded(values: Sequence[Any]) -> DataFile:
    """A file with all fields decoded, for manifests that encode late fields in an unusual way."""
    found = dict(zip((*STORED, *LATE_FIELDS.values()), values, strict=True))
    offsets = found["split_offsets"]
    found["split_offsets"] = None if offsets is None else tuple(offsets)
    return DataFile(**found | {name: _pairs(found[name]) for name in METRIC_FIELDS.values()})


def decode_live_files(data: bytes, path: str) -> Iterator[LiveFile]:
    """The file of every live entry; nothing else is decoded.

    Raises:
        MetadataUnreadable: the file is damaged.
    """
    opened = open_avro(data, path)
    reader = _entry_reader(opened, (0, 1), (100, 104, 144), (0, 100))
    for columns, _ in opened.blocks(reader.read_block):
        for status, snapshot_id, file_path, size, content_offset in zip(*columns, strict=True):
            if status != _DELETED:
                yield LiveFile(file_path, content_offset, size or 0, snapshot_id)


def decode_live_paths(data: bytes, path: str) -> Iterator[list[str]]:
    """The path of every live entry, block by block; nothing else is decoded.

    Raises:
        MetadataUnreadable: the file is damaged.
    """
    opened = open_avro(data, path)
    reader = _entry_reader(opened, (0,), (100,), (0, 100))
    for (statuses, paths), _ in opened.blocks(reader.read_block):
        if _DELETED in statuses:
            yield [path for status, path in zip(statuses, paths, strict=True) if status != _DELETED]
        else:
            yield list(paths)


def decode_identities(data: bytes, manifest: ManifestFile) -> Iterator[tuple[FileKey, FileIdentity]]:
    """The key and identity of every live entry, to recognize files seen before.

    Raises:
        MetadataUnreadable: the file is damaged, or an entry lacks a value that it cannot inherit.
    """
    opened = open_avro(data, manifest.manifest_path)
    reader = _entry_reader(opened, (0, 1, 3, 4), (100, 104, 144), (0, 100, 104))
    for columns, _ in opened.blocks(reader.read_block):
        for code, snapshot_id, number, file_number, file_path, size, content_offset in zip(*columns, strict=True):
            status = entry_status(code, manifest.manifest_path)
            if status is EntryStatus.DELETED:
                continue
            yield (
                (file_path, content_offset),
                FileIdentity(
                    inherited_number(number, status, manifest),
                    size,
                    manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
                    inherited_file_number(file_number, status, manifest),
                ),
            )


def inherited_number(value: int | None, status: EntryStatus, manifest: ManifestFile) -> int:
    """The data sequence number of an entry; ADDED entries and v1 manifests may inherit it from the manifest.

    Raises:
        MetadataUnreadable: it is null and cannot be inherited.
    """
    number = inherited_file_number(value, status, manifest)
    if number is None:
        raise MetadataUnreadable(
            f"manifest {manifest.manifest_path} has an {status.name} entry without sequence number"
        )
    return number


def inherited_file_number(value: int | None, status: EntryStatus, manifest: ManifestFile) -> int | None:
    """The file sequence number of an entry, inherited like the data sequence number.

    ``None``: it is missing.  Early v2 writers left such entries, and Iceberg reads them.
    """
    if value is None and (status is EntryStatus.ADDED or manifest.sequence_number == 0):
        return manifest.sequence_number
    return value


# A field of a partition spec: its id, its name, and the units per day of an identity field whose column is now a
# timestamp; 0 for all other fields.
_StoredField: TypeAlias = tuple[int, str, int]


def _entry_reader(
    opened: AvroFile,
    entry: tuple[int, ...],
    file: tuple[int, ...],
    required: tuple[int, ...],
    partition_fields: tuple[_StoredField, ...] = (),
) -> EntryReader:
    """A reader of these fields of entries and of their data files, by id; the fields in ``required`` must exist."""
    try:
        reader = _reader_of(opened.schema_text, entry, file, partition_fields)
    except LookupError as error:
        raise MetadataUnreadable(f"manifest {opened.path} {error}") from None
    if lacking := reader.missing.intersection(required):
        names = ", ".join(sorted((ENTRY_FIELDS | FILE_FIELDS)[field_id] for field_id in lacking))
        raise MetadataUnreadable(f"manifest {opened.path} has no field {names}; it is not an Iceberg manifest")
    return reader


# The manifests of a table have few different schemas, so a reader serves thousands of manifests.
@lru_cache(maxsize=64)
def _reader_of(
    schema_text: str, entry: tuple[int, ...], file: tuple[int, ...], partition_fields: tuple[_StoredField, ...]
) -> EntryReader:
    types = writer_types(schema_text)
    make = _partition_maker(schema_text, types, partition_fields) if 102 in file else None
    reader = entry_columns(types, entry, file, make)
    if reader.late is None and LATE in file:  # their encoding is unusual, so they are decoded at once
        return entry_columns(types, entry, (*file, *LATE_FIELDS), make)
    return reader


def _pairs(items: Any) -> dict[int, Any] | None:
    if items is None:
        return None
    if isinstance(items, dict):
        return {int(key): value for key, value in items.items()}
    found = {item["key"]: item["value"] for item in items}
    if not all(isinstance(key, int) and isinstance(value, int | bytes) for key, value in found.items()):
        raise TypeError("column metrics are neither numbers nor bytes")
    return found


def _units_per_day(field: Mapping[str, Any], schemas: Sequence[Mapping[str, Any]]) -> int:
    if field["transform"] != "identity":
        return 0
    kinds = (column_type(schema, int(field["source-id"])) for schema in schemas)
    kind = next((kind for kind in kinds if kind is not None), "")
    return UNITS_PER_DAY[kind] if kind in TIMESTAMPS else 0


def _partition_maker(
    schema_text: str, types: AvroTypes, fields: tuple[_StoredField, ...]
) -> Callable[[Mapping[str, Any]], tuple[PartitionValue, ...]]:
    """A function from a manifest's partition records to tuples in the order of the spec's ``fields``.

    Values of promoted columns get the column's current type (rule: promoted-values-keep-old-width).  ``types`` has the
    schema of entries without logical types, ``schema_text`` has it with logical types.

    Raises:
        LookupError: the entries have no partition, or a partition field is a list, map or record.
    """
    decimals = decimal_fields(partition_record(json.loads(schema_text)))
    stored = partition_record(types.schema)["fields"]
    by_id = {int(field["field-id"]): field for field in stored if field.get("field-id") is not None}
    by_name = {} if by_id else {field["name"]: field for field in stored}
    columns: list[tuple[str | None, int]] = []
    for field_id, name, units_per_day in fields:
        field = by_id.get(field_id) or by_name.get(avro_name(name))
        if field is None:
            columns.append((None, 0))
            continue
        require_type(types, field["type"], f"partition field {name}", _PARTITION_TYPES)
        branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
        # A timestamp of 32 bits is a number of days: the column was a date when the manifest was written.
        has_32_bits = "int" in branches or {"type": "int"} in branches
        columns.append((field["name"], units_per_day if has_32_bits else 0))

    def partition(record: Mapping[str, Any]) -> tuple[PartitionValue, ...]:
        values = []
        for name, units in columns:
            value = None if name is None else record[name]
            if name in decimals:
                value = least_decimal(value)
            elif value and units > 1:
                value *= units
            values.append(value)
        return tuple(values)

    return partition


def portions(manifests: Sequence[ManifestFile], portion_bytes: int) -> Iterator[tuple[ManifestFile, ...]]:
    """The manifests in order, in a portion per task; a portion ends once it has ``portion_bytes``."""
    portion: list[ManifestFile] = []
    size = 0
    for manifest in manifests:
        portion.append(manifest)
        size += manifest.manifest_length
        if size >= portion_bytes:
            yield tuple(portion)
            portion, size = [], 0
    if portion:
        yield tuple(portion)
