"""Makes partition tuples of the partition records that manifests store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from icekeeper.metadata.avro_fields import record_of
from icekeeper.metadata.avro_files import decimal_fields
from icekeeper.metadata.avro_schemas import avro_name, column_type
from icekeeper.metadata.single_value import UNITS_PER_DAY, least_decimal
from icekeeper.model import PartitionValue

__all__ = ["StoredField", "partition_maker", "stored_fields"]


class StoredField(NamedTuple):
    """A field of a partition spec, as it is found in manifests of any age."""

    field_id: int
    name: str
    units_per_day: int
    """Of the timestamp that the column itself is now; 0: it is none, or transformed."""


StoredFields: TypeAlias = tuple[StoredField, ...]


def stored_fields(spec: Mapping[str, Any], table_schemas: Sequence[Mapping[str, Any]] = ()) -> StoredFields:
    """The fields of a spec; ``table_schemas``: every schema of the table, the current one first."""
    return tuple(
        StoredField(int(field["field-id"]), str(field["name"]), _units_per_day(field, table_schemas))
        for field in spec["fields"]
    )


def _units_per_day(field: Mapping[str, Any], schemas: Sequence[Mapping[str, Any]]) -> int:
    if field["transform"] != "identity":
        return 0
    kinds = (column_type(schema, int(field["source-id"])) for schema in schemas)
    return UNITS_PER_DAY.get(next((kind for kind in kinds if kind is not None), ""), 0)


def partition_maker(
    schema_text: str, schema: Mapping[str, Any], fields: StoredFields
) -> Callable[[Mapping[str, Any]], tuple[PartitionValue, ...]]:
    """Makes tuples that follow the fields of a spec of the records of a manifest, of values as they are since the last
    promotion of a column (rule 176).

    ``schema`` is that of entries without logical types, ``schema_text`` the same with them.

    Raises:
        LookupError: there is no partition in an entry.
    """
    annotated = record_of(record_of(json.loads(schema_text), 2, "data_file"), 102, "partition")
    decimals = frozenset(decimal_fields(annotated))
    stored = record_of(record_of(schema, 2, "data_file"), 102, "partition")
    names = _column_names(stored, fields)
    of_32_bits = {field["name"] for field in stored["fields"] if _is_int(field["type"])}
    # A timestamp of 32 bits is a day: the column was a date when the manifest was written.
    days = {name: f.units_per_day for name, f in zip(names, fields, strict=True) if name in of_32_bits}

    def partition(record: Mapping[str, Any]) -> tuple[PartitionValue, ...]:
        values = (None if name is None else record[name] for name in names)
        return tuple(least_decimal(v) if n in decimals else v for n, v in zip(names, values, strict=True))

    def since_promotion(record: Mapping[str, Any]) -> tuple[PartitionValue, ...]:
        units = (days.get(name) or 1 for name in names)
        return tuple(v and v * n if n > 1 else v for n, v in zip(units, partition(record), strict=True))

    return since_promotion if any(days.values()) else partition


def _is_int(kind: Any) -> bool:
    branches = kind if isinstance(kind, list) else [kind]
    return "int" in branches or {"type": "int"} in branches


def _column_names(partition: Mapping[str, Any], fields: StoredFields) -> list[str | None]:
    """For each field of the spec the name of its column in the manifest; ``None``: the manifest has no such column."""
    by_id = {int(f["field-id"]): f["name"] for f in partition["fields"] if f.get("field-id") is not None}
    names = {f["name"] for f in partition["fields"]}
    result: list[str | None] = []
    for field_id, name, _ in fields:
        found = by_id.get(field_id)
        if found is None and not by_id and avro_name(name) in names:
            found = avro_name(name)
        result.append(found)
    return result
