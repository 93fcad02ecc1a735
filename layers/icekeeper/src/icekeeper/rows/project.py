"""Converts rows of any file into rows of the current schema (specification, "Column Projection", "Schema Evolution").

Columns are matched by field id, never by name (rule: columns-by-field-id, promoted-values-keep-old-width).  The columns
of a file without ids get the ids of the name mapping or, without a mapping, their positions.  Converters are made once
per file; a column that needs no conversion is returned unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.types import raw_from_json
from icekeeper.model import PartitionValue
from icekeeper.rows.arrow_schema import (
    arrow_schema,
    arrow_type,
    column_at,
    column_path,
    field_id_of,
    leaf_columns,
    raw_column,
)

Converter: TypeAlias = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class _FileColumn:
    """A column of a file, with its id from the file or, in a file without ids, from the name mapping."""

    index: int
    name: str
    field_id: int | None
    type: pa.DataType
    children: tuple[_FileColumn, ...]

    def ids(self) -> Iterator[int]:
        """Its own id, and the ids of the columns inside it."""
        if self.field_id is not None:
            yield self.field_id
        for child in self.children:
            yield from child.ids()


class Projection:
    """Converts batches of a file into batches of a table schema."""

    def __init__(
        self,
        file_schema: pa.Schema,
        table_schema: Mapping[str, Any],
        identity_values: Mapping[int, PartitionValue],
        name_mapping: Sequence[Mapping[str, Any]] | None,
        must_hold: Collection[int] = (),
        by_position: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """``identity_values``, ``name_mapping`` and ``by_position`` are as in :class:`.ReadableFile`.

        ``must_hold``: the ids of columns, including nested columns, that the file itself must have.

        Raises:
            TableUnsupported: the file's columns have no usable ids, one of ``must_hold`` is missing, or a type cannot
                be converted.
        """
        self.schema = arrow_schema(table_schema)
        self._table_schema, self._identity_values = table_schema, identity_values
        self._held: frozenset[int] | None = None
        """The ids of the file's columns; ``None``: all ids of the schema."""
        self._sources: list[tuple[str, Converter | None] | Constant] = []
        self._is_same = file_schema.equals(self.schema, check_metadata=True)
        if self._is_same or file_schema.remove_metadata().equals(self.schema, check_metadata=True):
            # The common case: the schemas are the same, including field ids.
            self._sources += [(name, None) for name in self.schema.names]
            return
        columns = _file_columns(list(file_schema), name_mapping, by_position)
        missing = set(must_hold).difference(i for column in columns for i in column.ids())
        if missing:
            raise TableUnsupported(f"a file lacks column(s) {sorted(missing)}, which a default must not replace")
        by_id = _by_id(columns)
        self._held = frozenset(i for column in columns for i in column.ids())
        for field in table_schema["fields"]:
            column = by_id.get(field["id"])
            if column is None:
                self._sources.append(absent_column(field, identity_values, field["name"]))
            elif file_schema.names.count(column.name) > 1:
                raise TableUnsupported(f"a file has several columns named {column.name}")
            else:
                self._sources.append((column.name, _converter(column, field["type"], identity_values)))

    @property
    def held_ids(self) -> frozenset[int]:
        """The ids of the columns that the file itself has, including those inside structs, lists and maps."""
        if self._held is None:
            self._held = frozenset(i for column in _file_columns(list(self.schema), None, ()) for i in column.ids())
        return self._held

    @property
    def file_columns(self) -> list[str]:
        """The top-level columns to read, by their names in the file."""
        return list(dict.fromkeys(source[0] for source in self._sources if isinstance(source, tuple)))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows, in the same order, in the table's schema."""
        if self._is_same:
            return batch
        arrays = [_filled(source, batch.column, batch.num_rows) for source in self._sources]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def column_unlike_partition(self, batch: pa.RecordBatch) -> str | None:
        """The first column of the file with a value, in a batch of :meth:`apply`, that differs from its identity
        partition value; ``None``: there is none.  Columns that the file lacks do not count."""
        held = self._identity_values if self._held is None else self._held.intersection(self._identity_values)
        for leaf in (leaf for leaf in leaf_columns(self._table_schema) if leaf.field_id in held):
            values = column_at(batch, column_path(self._table_schema["fields"], leaf.field_id) or ())
            wanted = _constant(self._identity_values[leaf.field_id], leaf.iceberg_type, len(values))
            wanted = wanted.storage if isinstance(wanted, pa.ExtensionArray) else wanted
            if leaf.is_float:  # 0.0 and -0.0 are different values, all NaN are the same value
                bits = pa.int32() if leaf.iceberg_type == "float" else pa.int64()
                values, wanted = values.view(bits), wanted.view(bits)
            if not values.equals(wanted):
                return leaf.name
        return None


def _filled(source: tuple[Any, Converter | None] | Constant, column: Callable[[Any], pa.Array], rows: int) -> pa.Array:
    """A column of the file (by name or index), converted if necessary, or a constant column."""
    if not isinstance(source, tuple):
        return source(rows)
    key, convert = source
    return column(key) if convert is None else convert(column(key))


def _file_columns(
    fields: Sequence[pa.Field], mapping: Sequence[Mapping[str, Any]] | None, by_position: Sequence[Mapping[str, Any]]
) -> list[_FileColumn]:
    """The columns of a file; a file without any ids gets the ids of the name mapping (specification, "Name Mapping").

    Raises:
        TableUnsupported: the file has no ids, the table has no name mapping, and positions do not fit the schema.
    """
    if any(_has_ids(field) for field in fields):
        mapping = None
    elif mapping is None:
        mapping = _mapping_by_position(fields, by_position)
    return [_column(i, field, mapping) for i, field in enumerate(fields)]


def _mapping_by_position(
    fields: Sequence[pa.Field], schema: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """The name mapping that gives each column its position, counted from 1, as id.

    Iceberg-Java does this for any columns, and reads nested columns as null (platform: java-reads-by-position).  Here
    each column must agree in name and type with the field of that id (rule: columns-by-field-id).

    Raises:
        TableUnsupported: a column does not agree.
    """
    by_id = {int(field["id"]): field for field in schema}
    for position, column in enumerate(fields, 1):
        field = by_id.get(position, {})
        kind = field.get("type")
        is_primitive = field.get("name") == column.name and isinstance(kind, str)
        if not is_primitive or not has_same_values(column.type, arrow_type(kind)):
            raise TableUnsupported(
                "a file has no field ids, the table has no schema.name-mapping.default, and the file's columns are not "
                f"those of the schema in the same order (column {position} is {column.name}); the file was left alone"
            )
    return [{"field-id": position, "names": [column.name]} for position, column in enumerate(fields, 1)]


def _by_id(columns: Sequence[_FileColumn]) -> Mapping[int, _FileColumn]:
    """Field id → column; raises TableUnsupported if two columns have the same id."""
    found = {column.field_id: column for column in columns if column.field_id is not None}
    if len(found) < sum(column.field_id is not None for column in columns):
        names = ", ".join(column.name for column in columns)
        raise TableUnsupported(f"two of a file's columns {names} have the same field id")
    return found


def _has_ids(field: pa.Field) -> bool:
    return field_id_of(field) is not None or any(_has_ids(child) for child in _child_fields(field.type))


def _is_list(kind: pa.DataType) -> bool:
    """Whether the type is a list type that occurs in the Arrow schemas of other writers' Parquet files.

    List views are excluded, because Arrow 26 loses elements when it converts them into lists.
    """
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _child_fields(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    return [kind.value_field.with_name("element")] if _is_list(kind) else []


def _column(index: int, field: pa.Field, mapping: Sequence[Mapping[str, Any]] | None) -> _FileColumn:
    """A column with the ids of a name mapping; ``None``: with the ids of the file."""
    field_id, below = field_id_of(field), None
    if mapping is not None:
        mapped: Mapping[str, Any] = next((m for m in mapping if field.name in m.get("names", ())), {})
        field_id, below = mapped.get("field-id"), mapped.get("fields") or []
    children = [_column(i, child, below) for i, child in enumerate(_child_fields(field.type))]
    return _FileColumn(index, field.name, field_id, field.type, tuple(children))


def _converter(
    column: _FileColumn, iceberg_type: Any, identity_values: Mapping[int, PartitionValue]
) -> Converter | None:
    """A function that converts the file's column to the table's type; ``None``: it already has that type."""
    if isinstance(iceberg_type, str):
        return _primitive_converter(column, arrow_type(iceberg_type))
    kind = iceberg_type["type"]
    if kind == "struct" and pa.types.is_struct(column.type):
        return _struct_converter(column, iceberg_type, identity_values)
    if kind == "list" and _is_list(column.type):
        return _list_converter(column, iceberg_type)
    if kind == "map" and pa.types.is_map(column.type):
        return _map_converter(column, iceberg_type)
    raise TableUnsupported(f"column {column.name} is {column.type} in a file, which cannot be read as {kind}")


def _primitive_converter(column: _FileColumn, target: pa.DataType) -> Converter | None:
    source = column.type
    if source == target:
        return None
    if not has_same_values(source, target):  # false for nested types, too
        raise TableUnsupported(f"column {column.name} is {source} in a file, which cannot be read as {target}")
    if isinstance(target, pa.BaseExtensionType):
        storage = target.storage_type
        if source == storage:
            return lambda array: pa.ExtensionArray.from_storage(target, array)
        return lambda array: pa.ExtensionArray.from_storage(target, array.cast(storage))
    return lambda array: array.cast(target)


def _struct_converter(
    column: _FileColumn, iceberg_type: Mapping[str, Any], identity_values: Mapping[int, PartitionValue]
) -> Converter | None:
    target = arrow_type(iceberg_type)
    by_id = _by_id(column.children)
    sources: list[tuple[int, Converter | None] | Constant] = []
    for field in iceberg_type["fields"]:
        child = by_id.get(field["id"])
        if child is None:
            sources.append(absent_column(field, identity_values, f"{column.name}.{field['name']}"))
        else:
            sources.append((child.index, _converter(child, field["type"], identity_values)))
    if column.type == target and sources == [(index, None) for index in range(len(column.children))]:
        return None

    def convert_struct(array: pa.Array) -> pa.Array:
        children = [_filled(source, array.field, len(array)) for source in sources]
        if not children:
            return pa.nulls(len(array), target)
        return pa.StructArray.from_arrays(children, fields=list(target), mask=pc.is_null(array))

    return convert_struct


def _list_converter(column: _FileColumn, iceberg_type: Mapping[str, Any]) -> Converter | None:
    target = arrow_type(iceberg_type)
    if pa.types.is_fixed_size_list(column.type):
        as_list = pa.list_(column.type.value_field)
        plain = _FileColumn(column.index, column.name, column.field_id, as_list, column.children)
        then = _list_converter(plain, iceberg_type)
        return lambda array: array.cast(as_list) if then is None else then(array.cast(as_list))
    convert = _converter(column.children[0], iceberg_type["element"], {})
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
    keys = _converter(column.children[0], iceberg_type["key"], {})
    items = _converter(column.children[1], iceberg_type["value"], {})
    if keys is None and items is None:
        return None if column.type == target else lambda array: array.cast(target)

    def convert_map(array: pa.Array) -> pa.Array:
        array = _compact(array)
        key_array = array.keys if keys is None else keys(array.keys)
        item_array = array.items if items is None else items(array.items)
        return pa.MapArray.from_arrays(array.offsets, key_array, item_array, type=target, mask=pc.is_null(array))

    return convert_map


def _compact(array: pa.Array) -> pa.Array:
    """The array, copied if it is a slice: Arrow cannot combine sliced offsets with a null mask."""
    return array if array.offset == 0 else array.take(pa.arange(0, len(array)))


Constant: TypeAlias = Callable[[int], pa.Array]
"""Makes a column of the given number of rows, all with the same value."""


def absent_column(field: Mapping[str, Any], identity_values: Mapping[int, PartitionValue], name: str) -> Constant:
    """The constant column for a column that a file lacks; ``name`` is its full name for messages.

    It has the identity partition value, which may be null, else the initial default, else null (specification, "Column
    Projection", "Default values").  ``identity_values``: column id → raw value.

    Raises:
        TableUnsupported: the field is required and has neither, or its default is a list or map with entries.
    """
    kind = field["type"]
    if isinstance(kind, str) and field["id"] in identity_values:
        value = identity_values[field["id"]]
        return lambda length: _constant(value, kind, length)
    default = field.get("initial-default")
    if default is not None:
        return _default(kind, default, name)
    if field["required"]:
        raise TableUnsupported(f"a file lacks the required column {name}, which has no default")
    return lambda length: _constant(None, kind, length)


def _default(kind: Any, default: Any, name: str) -> Constant:
    if isinstance(kind, str):
        value = raw_from_json(kind, default)
        return lambda length: _constant(value, kind, length)
    target = arrow_type(kind)
    if kind["type"] == "struct" and isinstance(default, Mapping):
        # A field that the struct's default omits has its own default.
        fields = [{**f, "initial-default": default.get(str(f["id"]), f.get("initial-default"))} for f in kind["fields"]]
        children = [absent_column(f, {}, f"{name}.{f['name']}") for f in fields]
        return lambda length: pa.StructArray.from_arrays([c(length) for c in children], fields=list(target))
    if default in ([], {"keys": [], "values": []}):
        return lambda length: pa.array([[]] * length, target)
    raise TableUnsupported(f"column {name} has the default {default!r}, which this version of Icekeeper cannot fill in")


def _constant(value: PartitionValue, iceberg_type: Any, length: int) -> pa.Array:
    """A column in which every row has the same raw value, or null."""
    target = arrow_type(iceberg_type)
    if value is None and not isinstance(target, pa.BaseExtensionType):
        return _nulls(length, target)
    filled = raw_column([value], iceberg_type)
    if isinstance(filled, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(target, pa.repeat(filled.storage[0], length))
    return pa.repeat(filled[0], length)


def _nulls(length: int, kind: pa.DataType) -> pa.Array:
    """A column of nulls; its required fields have values, because Arrow's writer refuses a null in them even there."""
    if not pa.types.is_struct(kind):
        return pa.nulls(length, kind)
    return pa.StructArray.from_arrays(_parts(length, kind), fields=list(kind), mask=pa.repeat(True, length))


def _parts(length: int, kind: pa.StructType) -> list[pa.Array]:
    return [_nulls(length, field.type) if field.nullable else _zeros(length, field.type) for field in kind]


def _zeros(length: int, kind: pa.DataType) -> pa.Array:
    """A column without nulls, of zeros and empty values."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _zeros(length, kind.storage_type))
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(_parts(length, kind), fields=list(kind))
    if pa.types.is_nested(kind):
        return pa.array([[]] * length, kind)
    return pa.Array.from_buffers(kind, length, [None, *pa.nulls(length, kind).buffers()[1:]])


# Arrow casts far more types than Iceberg promotes: a text to the number in it, ``true`` to 1, a timestamp to its time
# of day, a double to the nearest float.  Engines do not cast these, or cast them differently.  So only few casts are
# allowed (rule: read-faithfully-or-not-at-all).


def _is_text(kind: pa.DataType) -> bool:
    """Text or bytes of any length: some writers do not distinguish them."""
    return any(
        is_it(kind)
        for is_it in (
            *(types.is_string, types.is_large_string, types.is_string_view),
            *(types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary),
        )
    )


_FAMILIES: Mapping[str, Callable[[pa.DataType], bool]] = {
    "boolean": types.is_boolean,
    "integer": types.is_integer,
    "float": types.is_floating,
    "decimal": types.is_decimal,
    "text": _is_text,
    "date": types.is_date,
    "time": types.is_time,
    "timestamp": types.is_timestamp,
    "null": types.is_null,
}
# Casts between families: a date may have become a timestamp, and Avro and old writers store times as plain integers.
_MORE = {("integer", "date"), ("integer", "time"), ("integer", "timestamp"), ("date", "timestamp")}


def has_same_values(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a column may be cast to ``target``, the Arrow type of a primitive Iceberg type.

    The cast itself still refuses single values, for example values out of range.
    """
    here, there = _family(_plain(source)), _family(_plain(target))
    if here == there == "float":
        return bool(source.bit_width <= target.bit_width)
    return here is not None and (here in (there, "null") or (here, there) in _MORE)


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if types.is_dictionary(kind) else kind


def _family(kind: pa.DataType) -> str | None:
    return next((name for name, is_of_it in _FAMILIES.items() if is_of_it(kind)), None)
