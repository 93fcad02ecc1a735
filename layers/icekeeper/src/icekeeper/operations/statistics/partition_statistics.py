"""Compute partition statistics from manifest entries alone, and encode them as a Parquet or Avro file.

There is one row per spec and partition, even if all its files are deleted, as long as a manifest lists them.  DELETED
entries only show the last change.  Sources: specification, "Partition
Statistics" and "Partition Statistics File"; Java's ``PartitionStatsHandler``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.metadata.avro_files import write_avro
from icekeeper.metadata.avro_schemas import avro_name, record_schema
from icekeeper.metadata.delete_scope import PartitionKey, is_unpartitioned, partition_key
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.transforms import partition_type
from icekeeper.metadata.types import comparable, decimal_unscaled
from icekeeper.model import FileContent, ManifestEntry, ManifestFile, PartitionValue
from icekeeper.rows.arrow_schema import arrow_schema, arrow_type, raw_column

_PUFFIN = "PUFFIN"


@dataclass(slots=True)
class PartitionStatistics:
    """A row of the statistics; ``partition`` has the fields of all specs.  Sizes in bytes, time in epoch
    milliseconds."""

    partition: tuple[PartitionValue, ...]
    spec_id: int
    data_record_count: int = 0
    data_file_count: int = 0
    total_data_file_size_in_bytes: int = 0
    position_delete_record_count: int = 0
    position_delete_file_count: int = 0
    equality_delete_record_count: int = 0
    equality_delete_file_count: int = 0
    total_record_count: int | None = None
    last_updated_at: int | None = None
    last_updated_snapshot_id: int | None = None
    dv_count: int = 0

    def add_live(self, entry: ManifestEntry) -> None:
        """Count a live file."""
        file = entry.file
        if file.content is FileContent.DATA:
            self.data_record_count += file.record_count
            self.data_file_count += 1
            self.total_data_file_size_in_bytes += file.file_size_in_bytes
        elif file.content is FileContent.EQUALITY_DELETES:
            self.equality_delete_record_count += file.record_count
            self.equality_delete_file_count += 1
        else:
            self.position_delete_record_count += file.record_count
            if file.file_format.upper() == _PUFFIN:
                self.dv_count += 1
            else:
                self.position_delete_file_count += 1

    def changed(self, snapshot_id: int, at_ms: int) -> None:
        """Record a change, if it is the newest."""
        if self.last_updated_at is None or self.last_updated_at < at_ms:
            self.last_updated_at, self.last_updated_snapshot_id = at_ms, snapshot_id


def statistics_fields(metadata: TableMetadata) -> list[dict[str, Any]]:
    """The columns of a partition statistics file in the table's format version, as Iceberg fields."""
    is_v3 = metadata.format_version >= 3
    partition = {"type": "struct", "fields": partition_fields(metadata)}
    columns: list[tuple[str, Any, bool]] = [
        ("partition", partition, True),
        ("spec_id", "int", True),
        ("data_record_count", "long", True),
        ("data_file_count", "int", True),
        ("total_data_file_size_in_bytes", "long", True),
        ("position_delete_record_count", "long", is_v3),
        ("position_delete_file_count", "int", is_v3),
        ("equality_delete_record_count", "long", is_v3),
        ("equality_delete_file_count", "int", is_v3),
        ("total_record_count", "long", False),
        ("last_updated_at", "long", False),
        ("last_updated_snapshot_id", "long", False),
        *([("dv_count", "int", True)] if is_v3 else []),
    ]
    return [
        {"id": number, "name": name, "type": kind, "required": required}
        for number, (name, kind, required) in enumerate(columns, start=1)
    ]


def partition_fields(metadata: TableMetadata) -> list[dict[str, Any]]:
    """The fields of all specs, by id; a field has its name in the newest spec, and a void field its former type.

    Raises:
        TableUnsupported: a transform is unknown.
    """
    names: dict[int, str] = {}
    sources: dict[int, Mapping[str, Any]] = {}
    for spec_id in sorted(metadata.specs, reverse=True):
        for field in metadata.specs[spec_id]["fields"]:
            field_id = int(field["field-id"])
            names.setdefault(field_id, field["name"])
            if field_id not in sources or sources[field_id]["transform"] == "void":
                sources[field_id] = field
    schemas = metadata.schemas_current_first
    return [
        {"id": i, "name": names[i], "required": False, "type": partition_type(schemas, sources[i])}
        for i in sorted(sources)
    ]


def partition_statistics(
    metadata: TableMetadata, entries: Iterable[tuple[ManifestFile, ManifestEntry]]
) -> list[PartitionStatistics]:
    """The rows for all entries of a snapshot's manifests, sorted by partition, nulls first.

    Raises:
        TableUnsupported: a transform is unknown.
    """
    fields = partition_fields(metadata)
    rows: dict[PartitionKey, PartitionStatistics] = {}
    for manifest, entry in entries:
        spec_id = manifest.partition_spec_id
        key = partition_key(spec_id, entry.file.partition)
        if key not in rows:
            rows[key] = PartitionStatistics(_unified(metadata, fields, spec_id, entry.file.partition), spec_id)
        if entry.is_live:
            rows[key].add_live(entry)
        snapshot = metadata.snapshots.get(entry.snapshot_id or -1)
        if snapshot is not None:
            rows[key].changed(snapshot.snapshot_id, snapshot.timestamp_ms)
    _count_rows(metadata, rows.values())
    return sorted(rows.values(), key=lambda row: _order(fields, row))


def _unified(
    metadata: TableMetadata, fields: Sequence[Mapping[str, Any]], spec_id: int, partition: tuple[PartitionValue, ...]
) -> tuple[PartitionValue, ...]:
    own = {int(f["field-id"]): v for f, v in zip(metadata.specs[spec_id]["fields"], partition, strict=True)}
    return tuple(own.get(field["id"]) for field in fields)


def _count_rows(metadata: TableMetadata, rows: Iterable[PartitionStatistics]) -> None:
    """Set the number of rows after deletes, if known: a vector has an exact count, other deletes do not."""
    rows = list(rows)
    if any(row.equality_delete_file_count and is_unpartitioned(metadata.specs[row.spec_id]) for row in rows):
        return  # they apply to every partition
    for row in rows:
        if not row.position_delete_file_count and not row.equality_delete_file_count:
            row.total_record_count = row.data_record_count - row.position_delete_record_count


def _order(fields: Sequence[Mapping[str, Any]], row: PartitionStatistics) -> tuple[Any, ...]:
    """Nulls first, NaN last."""
    values = []
    for field, value in zip(fields, row.partition, strict=True):
        is_nan = isinstance(value, float) and math.isnan(value)
        values.append((value is not None, is_nan, () if value is None or is_nan else comparable(field["type"], value)))
    return (*values, row.spec_id)


class PartitionFileFormat(StrEnum):
    """Formats that Java reads; the value is the file's ending."""

    PARQUET = "parquet"
    AVRO = "avro"


def partition_file_format(metadata: TableMetadata) -> PartitionFileFormat:
    """The table's ``write.format.default`` as in Java, except Parquet for ORC, which no version of Java writes here."""
    wanted = metadata.properties.get("write.format.default", "").strip().lower()
    return PartitionFileFormat.AVRO if wanted == "avro" else PartitionFileFormat.PARQUET


def encode_partition_file(
    metadata: TableMetadata, rows: Sequence[PartitionStatistics], file_format: PartitionFileFormat
) -> bytes:
    """The bytes of the file.

    Raises:
        TableUnsupported: a partition type cannot be written.
    """
    fields = statistics_fields(metadata)
    return (_avro if file_format is PartitionFileFormat.AVRO else _parquet)(fields, rows)


def _parquet(fields: Sequence[Mapping[str, Any]], rows: Sequence[PartitionStatistics]) -> bytes:
    schema = arrow_schema({"fields": fields})
    columns: list[pa.Array] = []
    for field in fields:
        values = [getattr(row, field["name"]) for row in rows]
        if isinstance(field["type"], str):
            columns.append(raw_column(values, field["type"]))
            continue
        parts = field["type"]["fields"]
        children = [raw_column([value[i] for value in values], part["type"]) for i, part in enumerate(parts)]
        columns.append(pa.StructArray.from_arrays(children, fields=list(arrow_type(field["type"]))))
    sink = io.BytesIO()
    pq.write_table(
        pa.Table.from_arrays(columns, schema=schema),
        sink,
        compression="zstd",
        store_schema=False,
        write_page_checksum=True,
    )
    return sink.getvalue()


def _avro(fields: Sequence[Mapping[str, Any]], rows: Sequence[PartitionStatistics]) -> bytes:
    schema = record_schema("partition_statistics", fields)
    parts = fields[0]["type"]["fields"]

    def record(row: PartitionStatistics) -> dict[str, Any]:
        values = zip(parts, row.partition, strict=True)
        partition = {avro_name(part["name"]): _avro_value(part["type"], value) for part, value in values}
        return {field["name"]: getattr(row, field["name"]) for field in fields} | {"partition": partition}

    return write_avro(schema, map(record, rows), {})


def _avro_value(kind: str, value: Any) -> Any:
    if value is None or not kind.startswith("decimal"):
        return value
    width = record_schema("r", [{"id": 1, "name": "d", "type": kind, "required": True}])["fields"][0]["type"]["size"]
    return decimal_unscaled(value).to_bytes(width, "big", signed=True)
