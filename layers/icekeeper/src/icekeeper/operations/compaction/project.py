"""Rows of an older file as rows of the current schema, matched by field id and never by name.

Source: specification, "Column Projection", "Schema Evolution" (ICEBERG-RULES 20, 21).  A column that a file lacks is
its identity partition value, else null.  Converters are made once per file; a column that needs none is passed on
untouched.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.single_value import decimal_unscaled
from icekeeper.model import PartitionValue
from icekeeper.operations.compaction.arrow_schema import arrow_schema, arrow_type, field_id_of

__all__ = ["Projection"]

Converter: TypeAlias = Callable[[pa.Array], pa.Array]

# Arrow decimals have up to 38 digits; Python's default context would round to 28.
_DECIMAL_CONTEXT = decimal.Context(prec=76)


@dataclass(frozen=True, slots=True)
class _FileColumn:
    """A column of a file with the id that the file, or else the name mapping, gives it."""

    index: int
    name: str
    field_id: int | None
    type: pa.DataType
    children: tuple[_FileColumn, ...]


class Projection:
    """Turns batches of one file into batches of the table's current schema."""

    def __init__(
        self,
        file_schema: pa.Schema,
        table_schema: Mapping[str, Any],
        identity_values: Mapping[int, PartitionValue],
        name_mapping_json: str | None,
    ) -> None:
        """Raises TableUnsupported where the file's columns cannot be told apart or a type cannot be converted."""
        mapping = None if name_mapping_json is None else json.loads(name_mapping_json)
        columns = _file_columns(list(file_schema), mapping)
        by_id = {column.field_id: column for column in columns if column.field_id is not None}
        self.schema = arrow_schema(table_schema)
        self._sources: list[tuple[str | None, Converter | None, PartitionValue]] = []
        for field, target in zip(table_schema["fields"], self.schema, strict=True):
            column = by_id.get(field["id"])
            if column is not None:
                self._sources.append((column.name, _converter(column, field["type"]), None))
                continue
            value = identity_values.get(field["id"])
            if value is None and not target.nullable:
                raise TableUnsupported(f"a file lacks the required column {field['name']}, which has no default")
            self._sources.append((None, None, value))
        self._field_types = [field["type"] for field in table_schema["fields"]]

    @property
    def file_columns(self) -> list[str]:
        """Top-level columns that must be read, by their name in the file."""
        return [name for name, _, _ in self._sources if name is not None]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the table's schema, same rows in the same order."""
        arrays = []
        for (name, convert, value), iceberg_type in zip(self._sources, self._field_types, strict=True):
            if name is None:
                arrays.append(_constant(value, iceberg_type, batch.num_rows))
            else:
                array = batch.column(name)
                arrays.append(array if convert is None else convert(array))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _file_columns(fields: Sequence[pa.Field], mapping: Sequence[Mapping[str, Any]] | None) -> list[_FileColumn]:
    """Ids as written in the file; a file without any takes them from the name mapping (specification, "Name Mapping").

    Raises:
        TableUnsupported: the file has no ids and the table no name mapping.
    """
    if any(_has_ids(field) for field in fields):
        return [_column(i, field, None, use_ids=True) for i, field in enumerate(fields)]
    if mapping is None:
        raise TableUnsupported("a file has no field ids and the table no schema.name-mapping.default; it is left alone")
    return [_column(i, field, mapping, use_ids=False) for i, field in enumerate(fields)]


def _has_ids(field: pa.Field) -> bool:
    return field_id_of(field) is not None or any(_has_ids(child) for child in _child_fields(field.type))


def _child_fields(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    return []


def _column(index: int, field: pa.Field, mapping: Sequence[Mapping[str, Any]] | None, *, use_ids: bool) -> _FileColumn:
    names: Sequence[str] = [field.name]
    if pa.types.is_map(field.type):
        child_names = ["key", "value"]
    elif pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        child_names = ["element"]
    else:
        child_names = []
    mapped = None if mapping is None else next((m for m in mapping if field.name in m.get("names", ())), None)
    below = None if use_ids else (mapped or {}).get("fields") or []
    children = []
    for i, child in enumerate(_child_fields(field.type)):
        named = child if not child_names else child.with_name(child_names[i])
        children.append(_column(i, named, below, use_ids=use_ids))
    field_id = field_id_of(field) if use_ids else (None if mapped is None else mapped.get("field-id"))
    return _FileColumn(index, names[0], field_id, field.type, tuple(children))


def _converter(column: _FileColumn, iceberg_type: Any) -> Converter | None:
    """How to turn the file's column into the table's type; ``None`` when it already is."""
    if isinstance(iceberg_type, str):
        return _primitive_converter(column.type, arrow_type(iceberg_type))
    kind = iceberg_type["type"]
    if kind == "struct" and pa.types.is_struct(column.type):
        return _struct_converter(column, iceberg_type)
    if kind == "list" and (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return _list_converter(column, iceberg_type)
    if kind == "map" and pa.types.is_map(column.type):
        return _map_converter(column, iceberg_type)
    raise TableUnsupported(f"column {column.name} is {column.type} in a file, which cannot be read as {kind}")


def _primitive_converter(source: pa.DataType, target: pa.DataType) -> Converter | None:
    if source == target:
        return None
    if isinstance(target, pa.BaseExtensionType):
        storage = target.storage_type
        if source == storage:
            return lambda array: pa.ExtensionArray.from_storage(target, array)
        return lambda array: pa.ExtensionArray.from_storage(target, array.cast(storage))
    return lambda array: array.cast(target)


def _struct_converter(column: _FileColumn, iceberg_type: Mapping[str, Any]) -> Converter | None:
    target = arrow_type(iceberg_type)
    by_id = {child.field_id: child for child in column.children if child.field_id is not None}
    sources: list[tuple[int | None, Converter | None, Any]] = []
    for field, target_field in zip(iceberg_type["fields"], target, strict=True):
        child = by_id.get(field["id"])
        if child is None and not target_field.nullable:
            raise TableUnsupported(f"a file lacks the required column {column.name}.{field['name']}")
        convert = None if child is None else _converter(child, field["type"])
        sources.append((None if child is None else child.index, convert, field["type"]))
    in_place = [index for index, convert, _ in sources if convert is None] == list(range(len(column.children)))
    if in_place and len(sources) == len(column.children) and column.type == target:
        return None

    def convert_struct(array: pa.Array) -> pa.Array:
        children = []
        for index, convert, kind in sources:
            if index is None:
                children.append(_constant(None, kind, len(array)))
            else:
                child = array.field(index)
                children.append(child if convert is None else convert(child))
        if not children:
            return pa.nulls(len(array), target)
        return pa.StructArray.from_arrays(children, fields=list(target), mask=pc.is_null(array))

    return convert_struct


def _list_converter(column: _FileColumn, iceberg_type: Mapping[str, Any]) -> Converter | None:
    target = arrow_type(iceberg_type)
    convert = _converter(column.children[0], iceberg_type["element"])
    if convert is None and pa.types.is_list(column.type):
        return None if column.type == target else lambda array: array.cast(target)

    def convert_list(array: pa.Array) -> pa.Array:
        array = _compact(array)
        values = array.values if convert is None else convert(array.values)
        offsets = array.offsets.cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=target, mask=pc.is_null(array))

    return convert_list


def _map_converter(column: _FileColumn, iceberg_type: Mapping[str, Any]) -> Converter | None:
    target = arrow_type(iceberg_type)
    keys = _converter(column.children[0], iceberg_type["key"])
    items = _converter(column.children[1], iceberg_type["value"])
    if keys is None and items is None:
        return None if column.type == target else lambda array: array.cast(target)

    def convert_map(array: pa.Array) -> pa.Array:
        array = _compact(array)
        key_array = array.keys if keys is None else keys(array.keys)
        item_array = array.items if items is None else items(array.items)
        return pa.MapArray.from_arrays(array.offsets, key_array, item_array, type=target, mask=pc.is_null(array))

    return convert_map


def _compact(array: pa.Array) -> pa.Array:
    """A slice copied to start at offset 0: Arrow cannot combine sliced offsets with a null mask."""
    return array if array.offset == 0 else array.take(pa.array(range(len(array)), pa.int64()))


def _constant(value: PartitionValue, iceberg_type: Any, length: int) -> pa.Array:
    """A column of one raw partition value, or of nulls."""
    target = arrow_type(iceberg_type)
    if value is None:
        if isinstance(target, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(target, pa.nulls(length, target.storage_type))
        return pa.nulls(length, target)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, pa.repeat(pa.scalar(value, target.storage_type), length))
    if pa.types.is_decimal(target):
        if not isinstance(value, int | bytes):
            raise TableUnsupported(f"partition value {value!r} is not a decimal")
        unscaled = decimal.Decimal(decimal_unscaled(value))
        return pa.repeat(pa.scalar(unscaled.scaleb(-target.scale, _DECIMAL_CONTEXT), target), length)
    if pa.types.is_temporal(target):
        storage = pa.int32() if pa.types.is_date(target) else pa.int64()
        return pa.repeat(pa.scalar(value, storage).cast(target), length)
    return pa.repeat(pa.scalar(value, target), length)
