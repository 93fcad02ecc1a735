"""Decodes manifests and manifest lists of format versions 1 to 3.

Fields are found by Avro ``field-id``, or by name where a writer left the ids out.  Inherited snapshot ids, sequence
numbers and row ids are filled in here, so that no caller sees a null that means "look into the manifest list"
(specification, "Manifest Entry Inheritance", "First Row ID Inheritance").
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.avro_fields import canonical_names, prune_schema, record_of, renamed
from icekeeper.metadata.avro_files import decimal_fields, read_avro
from icekeeper.metadata.avro_schemas import avro_name
from icekeeper.metadata.inherited_numbers import inherited_file_number, inherited_number
from icekeeper.metadata.single_value import least_decimal
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
)

__all__ = [
    "decode_identities",
    "decode_live_files",
    "decode_manifest",
    "decode_manifest_list",
    "manifest_from_file",
]

JsonObject = Mapping[str, Any]

_LIST_FIELDS = {
    500: "manifest_path",
    501: "manifest_length",
    502: "partition_spec_id",
    517: "content",
    515: "sequence_number",
    516: "min_sequence_number",
    503: "added_snapshot_id",
    504: "added_files_count",
    505: "existing_files_count",
    506: "deleted_files_count",
    512: "added_rows_count",
    513: "existing_rows_count",
    514: "deleted_rows_count",
    507: "partitions",
    519: "key_metadata",
    520: "first_row_id",
}
_ENTRY_FIELDS = {0: "status", 1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number", 2: "data_file"}
_FILE_FIELDS = {
    134: "content",
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    108: "column_sizes",
    109: "value_counts",
    110: "null_value_counts",
    137: "nan_value_counts",
    125: "lower_bounds",
    128: "upper_bounds",
    131: "key_metadata",
    132: "split_offsets",
    135: "equality_ids",
    140: "sort_order_id",
    142: "first_row_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}
_LIVE_FILE_FIELDS = (100, 104, 144)
_MAPS = (
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
)


def decode_manifest_list(data: bytes, path: str) -> list[ManifestFile]:
    """The manifests of a snapshot, in file order.

    Raises:
        MetadataUnreadable: the file is damaged.
    """
    _, schema, records = read_avro(data, path)
    names = canonical_names(schema, _LIST_FIELDS)
    return [_manifest_file(renamed(record, names), path) for record in records]


def _manifest_file(record: dict[str, Any], path: str) -> ManifestFile:
    summaries = record.get("partitions")
    try:
        return ManifestFile(
            manifest_path=record["manifest_path"],
            manifest_length=record["manifest_length"],
            partition_spec_id=record["partition_spec_id"],
            content=ManifestContent(record.get("content") or 0),
            sequence_number=record.get("sequence_number") or 0,
            min_sequence_number=record.get("min_sequence_number") or 0,
            added_snapshot_id=record.get("added_snapshot_id"),
            added_files_count=record.get("added_files_count"),
            existing_files_count=record.get("existing_files_count"),
            deleted_files_count=record.get("deleted_files_count"),
            added_rows_count=record.get("added_rows_count"),
            existing_rows_count=record.get("existing_rows_count"),
            deleted_rows_count=record.get("deleted_rows_count"),
            partitions=None
            if summaries is None
            else tuple(
                PartitionFieldSummary(
                    s["contains_null"], s.get("contains_nan"), s.get("lower_bound"), s.get("upper_bound")
                )
                for s in summaries
            ),
            key_metadata=record.get("key_metadata"),
            first_row_id=record.get("first_row_id"),
        )
    except (KeyError, ValueError) as error:
        raise MetadataUnreadable(f"manifest list {path} holds an entry that is not a manifest: {error}") from error


def manifest_from_file(data: bytes, path: str, added_snapshot_id: int) -> ManifestFile:
    """The description of a manifest that a v1 snapshot lists inline, from its own header; its counts are unknown.

    Raises:
        MetadataUnreadable: the file is damaged.
    """
    header, _, _ = read_avro(data, path)
    return ManifestFile(
        manifest_path=path,
        manifest_length=len(data),
        partition_spec_id=int(header.get("partition-spec-id") or 0),
        added_snapshot_id=added_snapshot_id,
    )


def decode_manifest(data: bytes, manifest: ManifestFile, spec: JsonObject) -> Iterator[ManifestEntry]:
    """The entries of a manifest, of every status, with inherited values filled in.

    ``spec`` is the table's partition spec of ``manifest.partition_spec_id``; partition tuples follow its fields.

    Raises:
        MetadataUnreadable: the file is damaged, or an entry lacks what it cannot inherit.
    """
    path = manifest.manifest_path
    header, schema, records = read_avro(data, path)
    entry_names = canonical_names(schema, _ENTRY_FIELDS)
    file_schema = record_of(schema, 2, "data_file", path)
    file_names = canonical_names(file_schema, _FILE_FIELDS)
    annotated = record_of(json.loads(header["avro.schema"]), 2, "data_file", path)
    decimals = decimal_fields(record_of(annotated, 102, "partition", path))
    partition_names = _partition_names(record_of(file_schema, 102, "partition", path), spec)
    next_row_id = manifest.first_row_id if manifest.content is ManifestContent.DATA else None
    for record in records:
        entry = renamed(record, entry_names)
        raw = renamed(entry["data_file"], file_names)
        try:
            status = EntryStatus(entry["status"])
            partition = raw["partition"]
            for name in decimals:
                partition[name] = least_decimal(partition[name])
            first_row_id = raw.get("first_row_id")
            if status is not EntryStatus.DELETED and first_row_id is None and next_row_id is not None:
                first_row_id = next_row_id
                next_row_id += raw["record_count"]
            split_offsets, equality_ids = raw.get("split_offsets"), raw.get("equality_ids")
            file = DataFile(
                content=FileContent(raw.get("content") or 0),
                file_path=raw["file_path"],
                file_format=raw["file_format"],
                partition=tuple(None if name is None else partition[name] for name in partition_names),
                record_count=raw["record_count"],
                file_size_in_bytes=raw["file_size_in_bytes"],
                key_metadata=raw.get("key_metadata"),
                split_offsets=None if split_offsets is None else tuple(split_offsets),
                equality_ids=None if equality_ids is None else tuple(equality_ids),
                sort_order_id=raw.get("sort_order_id"),
                first_row_id=first_row_id,
                referenced_data_file=raw.get("referenced_data_file"),
                content_offset=raw.get("content_offset"),
                content_size_in_bytes=raw.get("content_size_in_bytes"),
                **{name: _pairs(raw.get(name)) for name in _MAPS},
            )
        except (KeyError, ValueError, TypeError) as error:
            raise MetadataUnreadable(f"manifest {path} holds an entry that cannot be understood: {error!r}") from error
        snapshot_id = entry.get("snapshot_id")
        yield ManifestEntry(
            status=status,
            snapshot_id=manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
            sequence_number=inherited_number(entry.get("sequence_number"), status, manifest),
            file_sequence_number=inherited_file_number(entry.get("file_sequence_number"), status, manifest),
            file=file,
        )


def decode_live_files(data: bytes, path: str) -> Iterator[LiveFile]:
    """The file of every entry that is not DELETED; nothing else is decoded.

    Raises:
        MetadataUnreadable: the file is damaged.
    """
    _, schema, records = read_avro(data, path, prune=partial(_pruned, {0: "status", 1: "snapshot_id"}))
    entry_names = canonical_names(schema, _ENTRY_FIELDS)
    file_names = canonical_names(record_of(schema, 2, "data_file", path), _FILE_FIELDS)
    for record in records:
        entry = renamed(record, entry_names)
        if entry["status"] != EntryStatus.DELETED:
            file = renamed(entry["data_file"], file_names)
            yield LiveFile(
                file["file_path"],
                file.get("content_offset"),
                file.get("file_size_in_bytes") or 0,
                entry.get("snapshot_id"),
            )


def decode_identities(data: bytes, manifest: ManifestFile) -> Iterator[tuple[FileKey, FileIdentity]]:
    """The key and identity of every entry that is not DELETED: enough to tell whether it is a file seen before.

    Raises:
        MetadataUnreadable: the file is damaged, or an entry lacks what it cannot inherit.
    """
    wanted = {i: name for i, name in _ENTRY_FIELDS.items() if name != "data_file"}
    _, schema, records = read_avro(data, manifest.manifest_path, prune=partial(_pruned, wanted))
    entry_names = canonical_names(schema, _ENTRY_FIELDS)
    file_names = canonical_names(record_of(schema, 2, "data_file", manifest.manifest_path), _FILE_FIELDS)
    for record in records:
        entry = renamed(record, entry_names)
        status = EntryStatus(entry["status"])
        if status is EntryStatus.DELETED:
            continue
        file = renamed(entry["data_file"], file_names)
        snapshot_id = entry.get("snapshot_id")
        yield (
            (file["file_path"], file.get("content_offset")),
            FileIdentity(
                inherited_number(entry.get("sequence_number"), status, manifest),
                file["file_size_in_bytes"],
                manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
                inherited_file_number(entry.get("file_sequence_number"), status, manifest),
            ),
        )


def _pruned(entry_fields: Mapping[int, str], schema: dict[str, Any]) -> dict[str, Any]:
    """The writer's schema with only these fields of an entry, and path, size and offset of its file."""
    return prune_schema(schema, dict(entry_fields), {i: _FILE_FIELDS[i] for i in _LIVE_FILE_FIELDS})


def _partition_names(partition_schema: JsonObject, spec: JsonObject) -> list[str | None]:
    """For each field of the spec the name of its column in the manifest; ``None``: the manifest has no such column."""
    by_id = {int(f["field-id"]): f["name"] for f in partition_schema["fields"] if f.get("field-id") is not None}
    names = {f["name"] for f in partition_schema["fields"]}
    result: list[str | None] = []
    for field in spec["fields"]:
        found = by_id.get(int(field["field-id"]))
        if found is None and not by_id and avro_name(field["name"]) in names:
            found = avro_name(field["name"])
        result.append(found)
    return result


def _pairs(items: Any) -> dict[int, Any] | None:
    if items is None:
        return None
    if isinstance(items, dict):
        return {int(key): value for key, value in items.items()}
    return {item["key"]: item["value"] for item in items}
