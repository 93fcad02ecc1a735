"""Manifests and manifest lists from the frozen vocabulary into bytes, v1–v3.

What a manifest list says of a manifest (counts, least sequence number, partition summaries) is computed here from
the entries themselves, never copied (ICEBERG-RULES 15; specification, "Manifest Lists").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.metadata.avro_files import write_avro
from icekeeper.metadata.avro_schemas import (
    avro_name,
    manifest_header,
    manifest_list_schema,
    manifest_schema,
    partition_type,
)
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.single_value import comparable, encode
from icekeeper.model import (
    EntryStatus,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionFieldSummary,
    PartitionValue,
)

__all__ = ["EncodedManifest", "encode_manifest", "encode_manifest_list"]

# V1Writer in Iceberg-Java writes this constant; v1 readers require the field and ignore it.
_V1_BLOCK_SIZE_IN_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EncodedManifest:
    """A manifest ready to be stored, with the entry that its manifest list needs."""

    data: bytes
    manifest: ManifestFile


def encode_manifest(
    metadata: TableMetadata,
    *,
    spec_id: int,
    content: ManifestContent,
    entries: Sequence[ManifestEntry],
    path: str,
    snapshot_id: int,
    sequence_number: int,
) -> EncodedManifest:
    """Write one manifest of one spec and one content type.

    ``sequence_number`` is that of the snapshot being committed; ADDED entries may leave theirs null to inherit it,
    EXISTING and DELETED ones carry both explicitly (rule 6).

    Raises:
        ValueError: an EXISTING or DELETED entry lacks a sequence number or snapshot id.
        TableUnsupported: the format version or a partition type cannot be written.
    """
    version = metadata.format_version
    spec = metadata.specs[spec_id]
    types = [partition_type(metadata.schemas_current_first, field) for field in spec["fields"]]
    names = [avro_name(field["name"]) for field in spec["fields"]]
    schema = manifest_schema(version, metadata.schemas_current_first, spec)
    widths = _fixed_widths(schema)
    header = manifest_header(version, json.dumps(metadata.current_schema), json.dumps(spec["fields"]), spec_id, content)
    data = write_avro(schema, (_entry_record(entry, version, names, widths) for entry in entries), header)
    live = [entry for entry in entries if entry.is_live]
    sequence_numbers = [sequence_number if e.sequence_number is None else e.sequence_number for e in live]

    def count(status: EntryStatus) -> tuple[int, int]:
        rows = [entry.file.record_count for entry in entries if entry.status is status]
        return len(rows), sum(rows)

    added, existing, deleted = count(EntryStatus.ADDED), count(EntryStatus.EXISTING), count(EntryStatus.DELETED)
    manifest = ManifestFile(
        manifest_path=path,
        manifest_length=len(data),
        partition_spec_id=spec_id,
        content=content,
        sequence_number=sequence_number,
        min_sequence_number=min(sequence_numbers, default=sequence_number),
        added_snapshot_id=snapshot_id,
        added_files_count=added[0],
        existing_files_count=existing[0],
        deleted_files_count=deleted[0],
        added_rows_count=added[1],
        existing_rows_count=existing[1],
        deleted_rows_count=deleted[1],
        partitions=_summaries(types, [entry.file.partition for entry in entries]),
    )
    return EncodedManifest(data, manifest)


def encode_manifest_list(
    format_version: int,
    manifests: Iterable[ManifestFile],
    *,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    first_row_id: int | None = None,
) -> bytes:
    """Write the manifest list of one snapshot; ``first_row_id`` is the snapshot's, from v3 on.

    Raises:
        ValueError: a v3 list is given no first row id.
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


def _entry_record(
    entry: ManifestEntry, version: int, names: Sequence[str], widths: Mapping[str, int]
) -> dict[str, Any]:
    if entry.status is not EntryStatus.ADDED and (
        entry.snapshot_id is None or entry.sequence_number is None or entry.file_sequence_number is None
    ):
        raise ValueError(f"{entry.status.name} entry of {entry.file.file_path} must carry its ids explicitly")
    file = entry.file
    record: dict[str, Any] = {
        "content": int(file.content),
        "file_path": file.file_path,
        "file_format": file.file_format,
        "partition": {
            name: _widened(value, widths.get(name)) for name, value in zip(names, file.partition, strict=True)
        },
        "record_count": file.record_count,
        "file_size_in_bytes": file.file_size_in_bytes,
        "column_sizes": _key_values(file.column_sizes),
        "value_counts": _key_values(file.value_counts),
        "null_value_counts": _key_values(file.null_value_counts),
        "nan_value_counts": _key_values(file.nan_value_counts),
        "lower_bounds": _key_values(file.lower_bounds),
        "upper_bounds": _key_values(file.upper_bounds),
        "key_metadata": file.key_metadata,
        "split_offsets": _listed(file.split_offsets),
        "equality_ids": _listed(file.equality_ids),
        "sort_order_id": file.sort_order_id,
        "referenced_data_file": file.referenced_data_file,
    }
    if version == 1:
        record["block_size_in_bytes"] = _V1_BLOCK_SIZE_IN_BYTES
    if version >= 3:
        # Of an ADDED entry it is assigned on reading (specification, "First Row ID Inheritance").
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


def _list_record(manifest: ManifestFile, version: int) -> dict[str, Any]:
    def counted(value: int | None) -> int | None:
        # v2 requires counts; where a v1 writer left them out, "all of them" is not known, so the caller must
        # have rewritten such a manifest before (see commit.snapshot).
        if value is None and version >= 2:
            raise ValueError(f"manifest {manifest.manifest_path} has no file counts and must be rewritten first")
        return value

    return {
        "manifest_path": manifest.manifest_path,
        "manifest_length": manifest.manifest_length,
        "partition_spec_id": manifest.partition_spec_id,
        "content": int(manifest.content),
        "sequence_number": manifest.sequence_number,
        "min_sequence_number": manifest.min_sequence_number,
        "added_snapshot_id": manifest.added_snapshot_id,
        "added_files_count": counted(manifest.added_files_count),
        "existing_files_count": counted(manifest.existing_files_count),
        "deleted_files_count": counted(manifest.deleted_files_count),
        "added_rows_count": counted(manifest.added_rows_count),
        "existing_rows_count": counted(manifest.existing_rows_count),
        "deleted_rows_count": counted(manifest.deleted_rows_count),
        "partitions": None
        if manifest.partitions is None
        else [
            {
                "contains_null": s.contains_null,
                "contains_nan": s.contains_nan,
                "lower_bound": s.lower_bound,
                "upper_bound": s.upper_bound,
            }
            for s in manifest.partitions
        ],
        "key_metadata": manifest.key_metadata,
        "first_row_id": manifest.first_row_id,
    }


def _listed(values: tuple[int, ...] | None) -> list[int] | None:
    """fastavro takes a tuple in a union for (branch, value)."""
    return None if values is None else list(values)


def _key_values(mapping: Mapping[int, Any] | None) -> list[dict[str, Any]] | None:
    return None if mapping is None else [{"key": key, "value": mapping[key]} for key in sorted(mapping)]


def _fixed_widths(entry_schema: Mapping[str, Any]) -> dict[str, int]:
    """Partition columns stored as decimals, with their width: a narrower value of a promoted type is widened."""
    data_file = next(f for f in entry_schema["fields"] if f["name"] == "data_file")
    partition = next(f for f in data_file["type"]["fields"] if f["name"] == "partition")
    decimals: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for field in partition["type"]["fields"]:
        kind = field["type"][1]
        if isinstance(kind, dict) and kind.get("logicalType") == "decimal":
            sizes[kind["name"]] = kind["size"]
            decimals[field["name"]] = kind["size"]
        elif isinstance(kind, str) and kind in sizes:
            decimals[field["name"]] = sizes[kind]
    return decimals


def _widened(value: PartitionValue, width: int | None) -> PartitionValue:
    if width is None or not isinstance(value, bytes) or len(value) == width:
        return value
    return int.from_bytes(value, "big", signed=True).to_bytes(width, "big", signed=True)


def _summaries(
    types: Sequence[str], partitions: Sequence[tuple[PartitionValue, ...]]
) -> tuple[PartitionFieldSummary, ...]:
    result = []
    for index, kind in enumerate(types):
        values = [partition[index] for partition in partitions]
        present = [value for value in values if value is not None]
        numbers = [value for value in present if value == value]  # NaN differs from itself
        low = min(numbers, key=lambda v: comparable(kind, v), default=None)
        high = max(numbers, key=lambda v: comparable(kind, v), default=None)
        result.append(
            PartitionFieldSummary(
                contains_null=len(present) < len(values),
                contains_nan=len(numbers) < len(present),
                lower_bound=None if low is None else encode(kind, low),
                upper_bound=None if high is None else encode(kind, high),
            )
        )
    return tuple(result)
