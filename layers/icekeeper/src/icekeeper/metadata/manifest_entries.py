"""Encodes manifest entries as Avro records of format versions 1 to 3.

What is long in a file that was read from a manifest, such as metrics of columns, stays the bytes that it is (rule 193).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import fastavro
from fastavro.schema import parse_schema

from icekeeper.metadata.avro_fields import record_of
from icekeeper.metadata.avro_schemas import AvroSchema, avro_name, manifest_schema
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.stored_file import LATE_FIELDS, Layout, StoredFile, layout_of
from icekeeper.model import DataFile, EntryStatus, ManifestEntry, PartitionValue

__all__ = ["EntryEncoder", "entry_encoder"]

# V1Writer in Iceberg-Java writes this constant; v1 readers require the field and ignore it.
_V1_BLOCK_SIZE_IN_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Schemas:
    """The schema of entries, whole and in parts: a record is encoded as its fields one after the other."""

    whole: AvroSchema
    before: AvroSchema
    """Up to the first late field of the data file."""
    after: AvroSchema
    """The fields of the data file behind its last late one."""
    late: Layout
    """What lies between."""


@dataclass(frozen=True, slots=True)
class EntryEncoder:
    """Encodes entries of one spec."""

    schema: AvroSchema
    version: int
    """The table's format version."""
    names: Sequence[str]
    """The Avro names of the partition fields."""
    widths: Mapping[str, int]
    """Name of a decimal partition field → its bytes."""
    schemas: _Schemas

    def encoded(self, entry: ManifestEntry) -> bytes:
        """Raises ValueError if an EXISTING or DELETED entry lacks its data sequence number or snapshot id."""
        record, file, sink = self._record(entry), entry.file, io.BytesIO()
        stretch = file.stretch(self.schemas.late) if isinstance(file, StoredFile) else None
        if stretch is None:
            record["data_file"] |= _late_values(file)
            fastavro.schemaless_writer(sink, self.schemas.whole, record)
        else:
            fastavro.schemaless_writer(sink, self.schemas.before, record)
            sink.write(stretch)
            fastavro.schemaless_writer(sink, self.schemas.after, record["data_file"])
        return sink.getvalue()

    def _record(self, entry: ManifestEntry) -> dict[str, Any]:
        """All values but those of late fields."""
        return _entry_record(entry, self.version, self.names, self.widths)


def entry_encoder(metadata: TableMetadata, spec_id: int) -> EntryEncoder:
    """The encoder for entries of a spec in the table's format version.

    Raises:
        TableUnsupported: the format version or a partition type cannot be written.
    """
    spec = metadata.specs[spec_id]
    schema = manifest_schema(metadata.format_version, metadata.schemas_current_first, spec)
    names = [avro_name(field["name"]) for field in spec["fields"]]
    return EntryEncoder(schema, metadata.format_version, names, _fixed_widths(schema), _schemas(json.dumps(schema)))


@lru_cache(maxsize=32)  # each takes longer to parse than a small manifest to write
def _schemas(text: str) -> _Schemas:
    schema = json.loads(text)
    fields = record_of(schema, 2, "data_file")["fields"]
    late = [number for number, field in enumerate(fields) if field["field-id"] in LATE_FIELDS]
    first, end = late[0], late[-1] + 1
    tail = {"type": "record", "name": "tail", "fields": fields[end:]}
    before = json.loads(text)
    del record_of(before, 2, "data_file")["fields"][first:]
    return _Schemas(
        cast("AvroSchema", parse_schema(schema)),
        cast("AvroSchema", parse_schema(before)),
        cast("AvroSchema", parse_schema(tail)),
        layout_of(fields[first:end]),
    )


def _entry_record(
    entry: ManifestEntry, version: int, names: Sequence[str], widths: Mapping[str, int]
) -> dict[str, Any]:
    # A file sequence number that another writer lost stays null, since nobody knows it.
    if entry.status is not EntryStatus.ADDED and (entry.snapshot_id is None or entry.sequence_number is None):
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
        "key_metadata": file.key_metadata,
        "equality_ids": _listed(file.equality_ids),
        "sort_order_id": file.sort_order_id,
        "referenced_data_file": file.referenced_data_file,
    }
    if version == 1:
        record["block_size_in_bytes"] = _V1_BLOCK_SIZE_IN_BYTES
    if version >= 3:
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


def _late_values(file: DataFile) -> dict[str, Any]:
    return {
        "column_sizes": _key_values(file.column_sizes),
        "value_counts": _key_values(file.value_counts),
        "null_value_counts": _key_values(file.null_value_counts),
        "nan_value_counts": _key_values(file.nan_value_counts),
        "lower_bounds": _key_values(file.lower_bounds),
        "upper_bounds": _key_values(file.upper_bounds),
        "split_offsets": _listed(file.split_offsets),
    }


def _listed(values: tuple[int, ...] | None) -> list[int] | None:
    """As a list, because fastavro takes a tuple in a union for (branch, value)."""
    return None if values is None else list(values)


def _key_values(mapping: Mapping[int, Any] | None) -> list[dict[str, Any]] | None:
    return None if mapping is None else [{"key": key, "value": mapping[key]} for key in sorted(mapping)]


def _fixed_widths(entry_schema: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of decimal partition fields by name; narrower values of a promoted type are widened to them."""
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
