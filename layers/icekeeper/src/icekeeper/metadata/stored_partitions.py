"""Makes partition tuples of the partition records that manifests store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from icekeeper.metadata.avro_fields import record_of
from icekeeper.metadata.avro_files import decimal_fields
from icekeeper.metadata.avro_schemas import avro_name
from icekeeper.metadata.single_value import least_decimal
from icekeeper.model import PartitionValue

__all__ = ["partition_maker"]


def partition_maker(
    schema_text: str, schema: Mapping[str, Any], fields: Sequence[tuple[int, str]]
) -> Callable[[Mapping[str, Any]], tuple[PartitionValue, ...]]:
    """Makes tuples that follow the fields of a spec (id and name of each) of the records of a manifest.

    ``schema`` is that of entries without logical types, ``schema_text`` the same with them.

    Raises:
        LookupError: there is no partition in an entry.
    """
    annotated = record_of(record_of(json.loads(schema_text), 2, "data_file"), 102, "partition")
    decimals = frozenset(decimal_fields(annotated))
    names = _column_names(record_of(record_of(schema, 2, "data_file"), 102, "partition"), fields)

    def partition(record: Mapping[str, Any]) -> tuple[PartitionValue, ...]:
        values = (None if name is None else record[name] for name in names)
        return tuple(least_decimal(v) if n in decimals else v for n, v in zip(names, values, strict=True))

    return partition


def _column_names(partition: Mapping[str, Any], fields: Sequence[tuple[int, str]]) -> list[str | None]:
    """For each field of the spec the name of its column in the manifest; ``None``: the manifest has no such column."""
    by_id = {int(f["field-id"]): f["name"] for f in partition["fields"] if f.get("field-id") is not None}
    names = {f["name"] for f in partition["fields"]}
    result: list[str | None] = []
    for field_id, name in fields:
        found = by_id.get(field_id)
        if found is None and not by_id and avro_name(name) in names:
            found = avro_name(name)
        result.append(found)
    return result
