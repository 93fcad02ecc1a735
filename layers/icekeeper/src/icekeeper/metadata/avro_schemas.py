"""Avro schemas of manifests and manifest lists, field for field as Iceberg-Java writes them.

Every field has its ``field-id`` and every list its ``element-id``: without them Java's metadata tables fail and DuckDB
aborts (platform: duckdb-aborts-on-manifests).  Source: specification, "Manifests", "Manifest Lists", and Java's
``V1Metadata``, ``V2Metadata``, ``V3Metadata``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.transforms import partition_type
from icekeeper.metadata.types import PRIMITIVES, decimal_of, fixed_length

AvroSchema = dict[str, Any]


def avro_name(name: str) -> str:
    """A column name as Avro allows it (Java's ``AvroSchemaUtil.makeCompatibleName``): ``we ird`` → ``we_x20ird``."""
    safe = "".join(c if c == "_" or (c.isascii() and c.isalnum()) else f"_x{ord(c):X}" for c in name)
    return f"_{safe}" if safe[:1].isdigit() else safe


def _optional(name: str, schema: Any, field_id: int) -> AvroSchema:
    return {"name": name, "type": ["null", schema], "default": None, "field-id": field_id}


def _required(name: str, schema: Any, field_id: int) -> AvroSchema:
    return {"name": name, "type": schema, "field-id": field_id}


def _int_map(key_id: int, value_id: int, value_type: str) -> AvroSchema:
    record = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_required("key", "int", key_id), _required("value", value_type, value_id)],
    }
    return {"type": "array", "items": record, "logicalType": "map"}


def _list(element: Any, element_id: int) -> AvroSchema:
    return {"type": "array", "items": element, "element-id": element_id}


def _value_schema(iceberg_type: str, named: set[str]) -> Any:
    """The Avro type of a partition value; types in ``named`` are already defined and are referenced by name."""
    if iceberg_type == "unknown":
        return "null"
    schema: AvroSchema
    if iceberg_type in PRIMITIVES:
        avro = PRIMITIVES[iceberg_type].avro
        if isinstance(avro, str):
            return avro
        schema = dict(avro)
        if "name" not in schema:
            return schema
    elif decimal := decimal_of(iceberg_type):
        precision, scale = decimal
        schema = {
            "type": "fixed",
            "name": f"decimal_{precision}_{scale}",
            "size": (10**precision).bit_length() // 8 + 1,  # for a two's complement number of that many digits
            "logicalType": "decimal",
            "precision": precision,
            "scale": scale,
        }
    elif (length := fixed_length(iceberg_type)) is not None:
        schema = {"type": "fixed", "name": f"fixed_{length}", "size": length}
    else:
        raise TableUnsupported(f"partition values of type {iceberg_type} cannot be written to a manifest")
    if schema["name"] in named:
        return schema["name"]
    named.add(schema["name"])
    return schema


def record_schema(name: str, fields: Sequence[Mapping[str, Any]], named: set[str] | None = None) -> AvroSchema:
    """The schema of an Iceberg struct of primitive columns and structs; types in ``named`` are already defined.

    Raises:
        TableUnsupported: a column's type cannot be written.
    """
    named = set() if named is None else named
    columns = []
    for field in fields:
        kind, field_id = field["type"], int(field["id"])
        is_struct = isinstance(kind, Mapping)
        schema = record_schema(f"r{field_id}", kind["fields"], named) if is_struct else _value_schema(kind, named)
        column = (_required if field["required"] else _optional)(avro_name(field["name"]), schema, field_id)
        if column["name"] != field["name"]:
            column["iceberg-field-name"] = field["name"]
        columns.append(column)
    return {"type": "record", "name": name, "fields": columns}


def manifest_schema(
    format_version: int, table_schemas: Sequence[Mapping[str, Any]], spec: Mapping[str, Any]
) -> AvroSchema:
    """The schema of ``manifest_entry`` for a partition spec.

    Raises:
        TableUnsupported: the format version or a partition type cannot be written.
    """
    _check_written_version(format_version)
    partition = [
        {
            "id": field["field-id"],
            "name": field["name"],
            "required": False,
            "type": partition_type(table_schemas, field),
        }
        for field in spec["fields"]
    ]
    modern = format_version >= 2
    data_file = [_required("content", "int", 134)] if modern else []
    data_file += [
        _required("file_path", "string", 100),
        _required("file_format", "string", 101),
        _required("partition", record_schema("r102", partition), 102),
        _required("record_count", "long", 103),
        _required("file_size_in_bytes", "long", 104),
    ]
    if not modern:
        data_file.append(_required("block_size_in_bytes", "long", 105))
    data_file += [
        _optional("column_sizes", _int_map(117, 118, "long"), 108),
        _optional("value_counts", _int_map(119, 120, "long"), 109),
        _optional("null_value_counts", _int_map(121, 122, "long"), 110),
        _optional("nan_value_counts", _int_map(138, 139, "long"), 137),
        _optional("lower_bounds", _int_map(126, 127, "bytes"), 125),
        _optional("upper_bounds", _int_map(129, 130, "bytes"), 128),
        _optional("key_metadata", "bytes", 131),
        _optional("split_offsets", _list("long", 133), 132),
    ]
    if modern:
        data_file.append(_optional("equality_ids", _list("int", 136), 135))
    data_file.append(_optional("sort_order_id", "int", 140))
    if format_version >= 3:
        data_file.append(_optional("first_row_id", "long", 142))
    if modern:
        data_file.append(_optional("referenced_data_file", "string", 143))
    if format_version >= 3:
        data_file += [_optional("content_offset", "long", 144), _optional("content_size_in_bytes", "long", 145)]
    entry = [_required("status", "int", 0), _optional("snapshot_id", "long", 1)]
    if modern:
        entry += [_optional("sequence_number", "long", 3), _optional("file_sequence_number", "long", 4)]
    entry.append(_required("data_file", {"type": "record", "name": "r2", "fields": data_file}, 2))
    return {"type": "record", "name": "manifest_entry", "fields": entry}


def manifest_list_schema(format_version: int) -> AvroSchema:
    """The schema of ``manifest_file``.

    Raises:
        TableUnsupported: the format version is unknown.
    """
    _check_written_version(format_version)
    modern = format_version >= 2
    count = _required if modern else _optional
    summary = {
        "type": "record",
        "name": "r508",
        "fields": [
            _required("contains_null", "boolean", 509),
            _optional("contains_nan", "boolean", 518),
            _optional("lower_bound", "bytes", 510),
            _optional("upper_bound", "bytes", 511),
        ],
    }
    partitions = _optional("partitions", _list(summary, 508), 507)
    rows = [
        count("added_rows_count", "long", 512),
        count("existing_rows_count", "long", 513),
        count("deleted_rows_count", "long", 514),
    ]
    fields = [
        _required("manifest_path", "string", 500),
        _required("manifest_length", "long", 501),
        _required("partition_spec_id", "int", 502),
    ]
    if modern:
        fields += [
            _required("content", "int", 517),
            _required("sequence_number", "long", 515),
            _required("min_sequence_number", "long", 516),
        ]
    fields += [
        _required("added_snapshot_id", "long", 503),
        count("added_files_count", "int", 504),
        count("existing_files_count", "int", 505),
        count("deleted_files_count", "int", 506),
    ]
    fields += [*rows, partitions] if modern else [partitions, *rows]
    fields.append(_optional("key_metadata", "bytes", 519))
    if format_version >= 3:
        fields.append(_optional("first_row_id", "long", 520))
    return {"type": "record", "name": "manifest_file", "fields": fields}


def _check_written_version(format_version: int) -> None:
    if format_version not in (1, 2, 3):
        raise TableUnsupported(f"this version of Icekeeper does not write metadata of format version {format_version}")
