"""Parses, checks and renders table metadata files, plain or compressed with gzip."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic_core import SchemaValidator, ValidationError

from icekeeper.errors import MetadataUnreadable
from icekeeper.machine.foreign_bytes import GZIP_MAGIC, FileLimits, parsed_json
from icekeeper.metadata.document import TableMetadata

_BEGINNING = 64 * 1024
# Only plain values may precede it, so that it is a member of the document and not of a nested object.
_LEADING_UUID = re.compile(
    rb'\s*\{(?:\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[^\s"{}\[\],]+)\s*,)*\s*"table-uuid"\s*:\s*"(?P<uuid>[0-9A-Za-z-]+)"'
)


def is_metadata_file(path: str) -> bool:
    """Whether a path has the suffix of a table metadata file."""
    return path.endswith((".metadata.json", ".metadata.json.gz"))


def parse_document(data: bytes, location: str) -> TableMetadata:
    """Parse a metadata file and check its shape.

    Raises:
        MetadataUnreadable: the bytes are truncated, are not table metadata, or decompress to more than the limit.
    """
    limits = FileLimits(f"metadata file {location}", len(data))
    try:
        document = parsed_json(limits.unpack("gzip" if data[:2] == GZIP_MAGIC else "null", data), limits)
    except (ValueError, MemoryError) as error:
        raise MetadataUnreadable(f"metadata file {location} cannot be parsed: {error}") from error
    if not isinstance(document, dict):
        raise MetadataUnreadable(f"metadata file {location} does not contain a JSON object")
    try:
        require_shape(document)
        return TableMetadata(document)
    except MetadataUnreadable as error:
        raise MetadataUnreadable(f"metadata file {location} is not valid Iceberg table metadata: {error}") from None


def leading_uuid(beginning: bytes) -> str | None:
    """The table UUID from the first bytes of a metadata file; ``None``: these bytes do not show it."""
    try:
        is_packed = beginning[:2] == GZIP_MAGIC
        plain = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(beginning, _BEGINNING) if is_packed else beginning
    except zlib.error:
        return None
    match = _LEADING_UUID.match(plain)
    return match["uuid"].decode() if match else None


def render_document(metadata: TableMetadata, *, compress: bool = False) -> bytes:
    """The bytes of a metadata file, with gzip if ``compress``."""
    plain = json.dumps(metadata.document, separators=(",", ":")).encode()
    return gzip.compress(plain) if compress else plain


# The shape of a document is checked once, when it is parsed.  All other code relies on it: ids are numbers, snapshots
# have timestamps, the current schema exists.  Unknown fields are accepted, and so are faults of readable tables, which
# ``verify`` reports (rule: damage-ends-in-a-named-error).
# Source: specification, "Table Metadata Fields", "Schemas and Data Types", appendix C.

Shape = dict[str, Any]
"""A pydantic-core schema."""

_LONG: Shape = {"type": "int", "strict": True, "ge": -(2**63), "le": 2**63 - 1}
_INT: Shape = {"type": "int", "strict": True, "ge": -(2**31), "le": 2**31 - 1}
# The years 1 to 9999, as in Python's dates.  A timestamp that is in microseconds by mistake is far beyond them.
_MILLIS: Shape = {"type": "int", "strict": True, "ge": -62_135_596_800_000, "le": 253_402_300_799_999}
_FLAG: Shape = {"type": "bool", "strict": True}
_TEXT: Shape = {"type": "str", "strict": True}
_SOME_TEXT: Shape = {"type": "str", "strict": True, "min_length": 1}
_TEXTS: Shape = {"type": "dict", "strict": True, "values_schema": _TEXT}
# pydantic-core neither checks nor copies the values of this object.
_ANY_OBJECT: Shape = {"type": "is-instance", "cls": dict}
# In Parquet, -1 means that a column has no id.
_FIELD_ID: Shape = {**_INT, "ge": 0}
# A type, and the fields of a struct, which may contain each other.
_TYPE: Shape = {"type": "definition-ref", "schema_ref": "type"}
_FIELDS: Shape = {"type": "list", "strict": True, "items_schema": {"type": "definition-ref", "schema_ref": "field"}}
_SHOWN = 60
_WITH_IDS = (
    ("snapshots", "snapshot-id", "snapshots"),
    ("schemas", "schema-id", "schemas"),
    ("partition-specs", "spec-id", "partition specs"),
)


def require_shape(document: Mapping[str, Any]) -> None:
    """Check a whole document.

    Raises:
        MetadataUnreadable: the message names the first error, for example ``snapshots[3].timestamp-ms is 'x'``.
    """
    try:
        _validator().validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise MetadataUnreadable(_sentence(first["loc"], first)) from None
    _require_current(document)


def _sentence(loc: tuple[int | str, ...], error: Any) -> str:
    place = ""
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        elif not part.startswith("#"):  # the tag of a type, see _kind_of_type
            place += f".{part}" if place else part
    if error["type"] == "missing":
        return f"{place} is missing"
    message = str(error["msg"])
    wanted = message[0].lower() + message[1:]
    found = repr(error["input"])
    return f"{place} is {found[:_SHOWN]}{'…' * (len(found) > _SHOWN)}; {wanted}"


def _require_current(document: Mapping[str, Any]) -> None:
    """Check that the current schema and the default spec exist; a missing sort order counts as unsorted."""
    for key, id_key, what in _WITH_IDS:
        # Some readers use the first entry with an id, others the last (rule: refuse-ambiguous-tables).
        by_id: dict[int, Mapping[str, Any]] = {}
        for entry in document.get(key) or ():
            entry_id = entry.get(id_key) or 0
            if (known := by_id.setdefault(entry_id, entry)) is not entry and known != entry:
                raise MetadataUnreadable(f"two different {what} have the id {entry_id}")
    schemas = document.get("schemas") or [document.get("schema")]
    if schemas == [None]:
        raise MetadataUnreadable("schemas is missing")
    current = document.get("current-schema-id")
    if current is not None and all((schema.get("schema-id") or 0) != current for schema in schemas):
        raise MetadataUnreadable(f"current-schema-id is {current}, but the document has no such schema")
    specs = document.get("partition-specs")
    default = document.get("default-spec-id") or 0
    if specs and all(spec["spec-id"] != default for spec in specs):
        raise MetadataUnreadable(f"default-spec-id is {default}, but the document has no such partition spec")
    for fields in (*(spec["fields"] for spec in specs or ()), document.get("partition-spec") or ()):
        for field in fields:
            if field.get("source-id") is None and not field.get("source-ids"):
                raise MetadataUnreadable(f"partition field {field['name']} has no source-id")
    for order in document.get("sort-orders") or ():
        if any(field.get("source-id") is None and not field.get("source-ids") for field in order.get("fields") or ()):
            raise MetadataUnreadable(f"a field of sort order {order['order-id']} has no source-id")


def _list(items: Shape) -> Shape:
    return {"type": "list", "strict": True, "items_schema": items}


def _object(required: Mapping[str, Shape], optional: Mapping[str, Shape]) -> Shape:
    fields = {key: {"type": "typed-dict-field", "schema": shape, "required": True} for key, shape in required.items()}
    for key, shape in optional.items():
        nullable = {"type": "nullable", "schema": shape}
        fields[key] = {"type": "typed-dict-field", "schema": nullable, "required": False}
    return {"type": "typed-dict", "strict": True, "extra_behavior": "ignore", "fields": fields}


@cache
def _validator() -> SchemaValidator:
    field = _object({"id": _FIELD_ID, "name": _TEXT, "required": _FLAG, "type": _TYPE}, {})
    definitions = [_type(), {**field, "ref": "field"}]
    shape: Any = {"type": "definitions", "schema": _document(), "definitions": definitions}
    return SchemaValidator(shape)


def _kind_of_type(value: Any) -> str | None:
    if isinstance(value, str):
        return "#primitive"
    return f"#{value.get('type')}" if isinstance(value, dict) else None


def _type() -> Shape:
    entry = {"key-id": _FIELD_ID, "key": _TYPE, "value-id": _FIELD_ID, "value": _TYPE, "value-required": _FLAG}
    choices = {
        "#primitive": _SOME_TEXT,
        "#struct": _object({"fields": _FIELDS}, {}),
        "#list": _object({"element-id": _FIELD_ID, "element": _TYPE, "element-required": _FLAG}, {}),
        "#map": _object(entry, {}),
    }
    return {
        "type": "tagged-union",
        "choices": choices,
        "discriminator": _kind_of_type,
        "custom_error_type": "no_type",
        "custom_error_message": "it is no type",
        "ref": "type",
    }


def _document() -> Shape:
    schema = _object({"fields": _FIELDS}, {"schema-id": _INT, "identifier-field-ids": _list(_INT)})
    partition_field = _object(
        {"name": _TEXT, "transform": _SOME_TEXT}, {"field-id": _INT, "source-id": _INT, "source-ids": _list(_INT)}
    )
    sort_field = _object(
        {"transform": _SOME_TEXT, "direction": _TEXT, "null-order": _TEXT},
        {"source-id": _INT, "source-ids": _list(_INT)},
    )
    snapshot = _object(
        {"snapshot-id": _LONG, "timestamp-ms": _MILLIS},
        {
            "parent-snapshot-id": _LONG,
            "sequence-number": _LONG,
            "summary": _ANY_OBJECT,
            "manifest-list": _SOME_TEXT,
            "manifests": _list(_SOME_TEXT),
            "schema-id": _INT,
            "first-row-id": _LONG,
            "added-rows": _LONG,
        },
    )
    ref = _object(
        {"snapshot-id": _LONG},
        {"type": _TEXT, "min-snapshots-to-keep": _INT, "max-snapshot-age-ms": _LONG, "max-ref-age-ms": _LONG},
    )
    blob = _object({}, {"properties": _ANY_OBJECT})
    return _object(
        {"format-version": {**_INT, "ge": 1}, "location": _SOME_TEXT},
        {
            "table-uuid": _TEXT,
            "last-updated-ms": _MILLIS,
            "last-sequence-number": _LONG,
            "last-column-id": _INT,
            "last-partition-id": _INT,
            "next-row-id": _LONG,
            "properties": _TEXTS,
            "schemas": _list(schema),
            "schema": schema,
            "current-schema-id": _INT,
            "partition-specs": _list(_object({"spec-id": _INT, "fields": _list(partition_field)}, {})),
            "partition-spec": _list(partition_field),
            "default-spec-id": _INT,
            "sort-orders": _list(_object({"order-id": _INT}, {"fields": _list(sort_field)})),
            "default-sort-order-id": _INT,
            "current-snapshot-id": _LONG,
            "snapshots": _list(snapshot),
            "refs": {"type": "dict", "strict": True, "values_schema": ref},
            "snapshot-log": _list(_object({"snapshot-id": _LONG, "timestamp-ms": _MILLIS}, {})),
            "metadata-log": _list(_object({"metadata-file": _SOME_TEXT, "timestamp-ms": _MILLIS}, {})),
            "statistics": _list(
                _object({"snapshot-id": _LONG, "statistics-path": _SOME_TEXT}, {"blob-metadata": _list(blob)})
            ),
            "partition-statistics": _list(_object({"snapshot-id": _LONG, "statistics-path": _SOME_TEXT}, {})),
        },
    )
