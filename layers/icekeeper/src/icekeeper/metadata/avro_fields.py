"""Finds fields of a manifest's Avro schema by ``field-id``, or by name where a writer left the ids out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["canonical_names", "is_field", "record_of"]

JsonObject = Mapping[str, Any]

# Names of an early draft that some v1 writers still use (specification, "Manifest Lists", v1).
_LEGACY_NAMES = {
    "added_data_files_count": "added_files_count",
    "existing_data_files_count": "existing_files_count",
    "deleted_data_files_count": "deleted_files_count",
}


def is_field(field: JsonObject, field_id: int, name: str) -> bool:
    """Whether a field of a schema has that id, or, if it has no id, that name."""
    found = field.get("field-id")
    return bool(field["name"] == name if found is None else int(found) == field_id)


def record_of(schema: JsonObject, field_id: int, name: str) -> dict[str, Any]:
    """The record schema of a nested field, nullable or not (BigQuery makes ``data_file`` nullable).

    Raises:
        LookupError: there is no such field.
    """
    for field in schema["fields"]:
        if is_field(field, field_id, name):
            kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
            for kind in kinds:
                if isinstance(kind, dict) and kind.get("type") == "record":
                    return kind
    raise LookupError(f"has no field {name}; it is not an Iceberg manifest")


def canonical_names(schema: JsonObject, wanted: Mapping[int, str]) -> dict[str, str]:
    """Names in the file → names in the specification, of fields that are wanted; ``wanted`` are the latter by id."""
    found = {}
    for field in schema["fields"]:
        name, field_id = field["name"], field.get("field-id")
        canonical = _LEGACY_NAMES.get(name, name) if field_id is None else wanted.get(int(field_id), name)
        if canonical in wanted.values():
            found[name] = canonical
    return found
