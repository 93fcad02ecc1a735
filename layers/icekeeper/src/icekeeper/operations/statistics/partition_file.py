"""Partition statistics as a Parquet or Avro file (specification, "Partition Statistics File")."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.metadata.avro_files import write_avro
from icekeeper.metadata.avro_schemas import avro_name, record_schema
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.single_value import decimal_unscaled
from icekeeper.operations.statistics.partition_statistics import PartitionStatistics, statistics_fields
from icekeeper.rows.arrow_schema import arrow_schema, arrow_type
from icekeeper.rows.raw_column import raw_column

__all__ = ["PartitionFileFormat", "encode_partition_file", "partition_file_format"]


class PartitionFileFormat(StrEnum):
    """Formats that Java reads; the value is the file's ending."""

    PARQUET = "parquet"
    AVRO = "avro"


def partition_file_format(metadata: TableMetadata) -> PartitionFileFormat:
    """The table's ``write.format.default`` as Java takes it, but Parquet for ORC, which no version of Java writes."""
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
    return write_avro(schema, (_record(fields, row) for row in rows), {})


def _record(fields: Sequence[Mapping[str, Any]], row: PartitionStatistics) -> dict[str, Any]:
    record = {field["name"]: getattr(row, field["name"]) for field in fields}
    parts = fields[0]["type"]["fields"]
    record["partition"] = {
        avro_name(part["name"]): _avro_value(part["type"], value)
        for part, value in zip(parts, row.partition, strict=True)
    }
    return record


def _avro_value(kind: str, value: Any) -> Any:
    if value is None or not kind.startswith("decimal"):
        return value
    width = record_schema("r", [{"id": 1, "name": "d", "type": kind, "required": True}])["fields"][0]["type"]["size"]
    return decimal_unscaled(value).to_bytes(width, "big", signed=True)
