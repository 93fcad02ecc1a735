"""Iceberg schemas as Arrow schemas (specification, "Parquet" data type mappings), leaf columns, raw values as columns,
and memory per row.

Strings remain 32-bit Arrow strings: batches are small, and the Parquet reader returns this type.
"""

from __future__ import annotations

import decimal
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.types import decimal_of, decimal_unscaled, fixed_length, is_primitive, shape_of
from icekeeper.model import PartitionValue

Result = TypeVar("Result")
# Enough for the schemas of a table and its projections, in several threads.
_REMEMBERED = 8


def same_argument(function: Callable[[Mapping[str, Any]], Result]) -> Callable[[Mapping[str, Any]], Result]:
    """Cache a pure function of a mapping; the key is the identity of the mapping, because comparing schemas is slow.

    A group of small files needs the Arrow schema of the same Iceberg schema ten times; with 2,000 columns each
    conversion takes milliseconds.  Use it only if neither the mapping nor the result is ever changed.
    """
    # The cache keeps the mapping, so that no other object can get its address.
    lately: deque[tuple[Mapping[str, Any], Result]] = deque(maxlen=_REMEMBERED)

    @wraps(function)
    def remembering(argument: Mapping[str, Any]) -> Result:
        for known, result in tuple(lately):
            if known is argument:
                return result
        result = function(argument)
        lately.append((argument, result))
        return result

    return remembering


FIELD_ID_KEY = b"PARQUET:field_id"
ANNOTATED_KEY = b"iceberg.type"
"""The Iceberg type of a geometry, geography or variant, which Arrow has as binary or as a struct."""
ORC_FIELD_ID_KEY = b"iceberg.id"

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", tz="UTC"),
    "string": pa.string(),
    "uuid": pa.uuid(),
    "binary": pa.binary(),
}


class StoredVariant(str):
    """The type ``variant`` of a column, with the Arrow struct in which some files store its values.

    A variant may be shredded: fields that many values share are columns of their own.  So the struct differs between
    files (apache/parquet-format, "Variant Shredding").
    """

    storage: pa.StructType

    def __new__(cls, storage: pa.StructType) -> StoredVariant:
        """``storage``: metadata, value and typed value, as Arrow reads them."""
        made = super().__new__(cls, "variant")
        made.storage = storage
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredVariant, (self.storage,)


UNSHREDDED = pa.struct([pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)])
Variants: TypeAlias = tuple[tuple[int, pa.StructType], ...]
"""The field ids of a table's variants, ascending, and how a file stores each."""


@dataclass(frozen=True, slots=True)
class LeafColumn:
    """A primitive column; ``repeated``: it is inside a list, map or variant, so its values are not those of rows.

    All leaf columns of a variant have the variant's field id and type.
    """

    field_id: int
    name: str
    iceberg_type: str
    repeated: bool
    parquet_path: str
    """Its full name, with Parquet's groups around the elements of lists and maps."""

    @property
    def has_bounds(self) -> bool:
        """Whether manifests and file footers may have bounds for it: not for uuids, except in lists and maps, nor for
        geometries and geographies, whose boxes are in no order.

        Readers prune by bounds, but disagree on the order of uuids: Iceberg-Java up to 1.10 compares them as signed
        numbers, so it prunes rows that are within the bounds in byte order (platform: java-orders-uuids-signed).
        """
        return (self.iceberg_type != "uuid" or self.repeated) and not self.is_shape

    @property
    def is_shape(self) -> bool:
        """Whether it is a geometry or geography; Parquet's C++ writes no statistics of them, not even their nulls."""
        return shape_of(self.iceberg_type) is not None

    @property
    def is_float(self) -> bool:
        """Whether it may contain NaN, 0.0 and -0.0."""
        return self.iceberg_type in ("float", "double")


_PARTS = {"list": ("element",), "map": ("key", "value")}


def stored_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that data files contain: all except columns of type ``unknown``, which are always null.

    Raises:
        TableUnsupported: this version cannot rewrite a column's type (rule: read-faithfully-or-not-at-all).
    """
    return {**schema, "fields": _stored_fields(schema["fields"], "")}


def _stored_fields(fields: Sequence[Mapping[str, Any]], above: str) -> list[dict[str, Any]]:
    kept = [f for f in fields if f["type"] != "unknown"]
    if fields and not kept and above:
        raise _unsupported(above[:-1], "struct with only unknown columns")
    return [{**f, "type": _stored_type(f["type"], f"{above}{f['name']}")} for f in kept]


def _stored_type(kind: Any, name: str) -> Any:
    if isinstance(kind, str):
        if not is_primitive(kind) and kind != "variant":
            raise _unsupported(name, kind)
        return kind
    if kind["type"] == "struct":
        return {**kind, "fields": _stored_fields(kind["fields"], f"{name}.")}
    parts = _PARTS.get(kind["type"])
    if parts is None:
        raise _unsupported(name, str(kind["type"]))
    return {**kind, **{part: _stored_type(kind[part], f"{name}.{part}") for part in parts}}


def _unsupported(name: str, kind: str) -> TableUnsupported:
    return TableUnsupported(
        f"column {name} is of type {kind}, which this version of Icekeeper cannot rewrite; the table was left alone"
    )


def variant_ids(schema: Mapping[str, Any]) -> list[int]:
    """The field ids of the variants of a schema, ascending."""
    return sorted({leaf.field_id for leaf in leaf_columns(schema) if leaf.iceberg_type == "variant"})


def variants_of_file(stored: pa.Schema, ids: Sequence[int]) -> Variants:
    """How a file with this Arrow schema stores the variants with these ids.

    Raises:
        TableUnsupported: it has no field ids, or another type in place of a variant.
    """
    if not ids:
        return ()
    found = dict(_fields_by_id(stored))
    if not found:
        raise TableUnsupported("it has no field ids, so its variants are not found")
    for field_id in ids:
        kind = found.get(field_id, UNSHREDDED)
        if not pa.types.is_struct(kind) or kind.get_field_index("metadata") < 0 or set(dict(_fields_by_id(kind))):
            raise TableUnsupported(f"it stores no variant in column {field_id}, which is one in the table")
    return tuple((field_id, found.get(field_id, UNSHREDDED)) for field_id in ids)


def _fields_by_id(fields: Iterable[pa.Field]) -> Iterator[tuple[int, pa.DataType]]:
    for field in fields:
        field_id = field_id_of(field)
        if field_id is not None:
            yield field_id, field.type
        if pa.types.is_nested(field.type):
            yield from _fields_by_id(field.type.field(number) for number in range(field.type.num_fields))


def with_variants(schema: Mapping[str, Any], variants: Variants) -> Mapping[str, Any]:
    """The schema with the storage of its variants; the same object if it has none."""
    return {**schema, **_with_variants(schema, dict(variants))} if variants else schema


def unshredded(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of files that store each variant in one piece."""
    return with_variants(schema, tuple((field_id, UNSHREDDED) for field_id in variant_ids(schema)))


def _with_variants(kind: Mapping[str, Any], storages: Mapping[int, pa.StructType]) -> dict[str, Any]:
    """A struct, list or map type with the storage of the variants in it."""

    def stored(part: Any, field_id: int) -> Any:
        if isinstance(part, Mapping):
            return _with_variants(part, storages)
        return StoredVariant(storages[field_id]) if part == "variant" else part

    if "fields" in kind:
        return {**kind, "fields": [{**f, "type": stored(f["type"], f["id"])} for f in kind["fields"]]}
    return {**kind, **{part: stored(kind[part], kind[f"{part}-id"]) for part in _PARTS[kind["type"]]}}


def column_path(fields: Sequence[Mapping[str, Any]], field_id: int) -> tuple[int, ...] | None:
    """The path to a column, as positions from the top through structs; ``None``: missing, or in a list or map."""
    for position, field in enumerate(fields):
        if int(field["id"]) == field_id:
            return (position,)
        kind = field["type"]
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            below = column_path(kind["fields"], field_id)
            if below is not None:
                return (position, *below)
    return None


def column_at(batch: pa.RecordBatch, path: Sequence[int]) -> pa.Array:
    """The column at a path, with its Arrow storage type; values in a null struct are null."""
    array = batch.column(path[0])
    for position in path[1:]:
        array = pc.struct_field(array, [position])
    # Arrow's lookups accept only storage types.
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def fields_with(fields: Sequence[Mapping[str, Any]], field_ids: Collection[int]) -> list[dict[str, Any]]:
    """The fields with these ids; a nested field is returned in its structs, without their other fields."""
    kept = []
    for field in fields:
        kind = field["type"]
        if field["id"] in field_ids:
            kept.append(dict(field))
        elif isinstance(kind, Mapping) and kind["type"] == "struct":
            below = fields_with(kind["fields"], field_ids)
            if below:
                kept.append({**field, "type": {**kind, "fields": below}})
    return kept


@same_argument
def arrow_schema(schema: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema of an Iceberg schema, with field ids as column metadata.

    Raises:
        TableUnsupported: this version does not rewrite a column's type.
    """
    return pa.schema([_field(f["name"], f["id"], f["type"], bool(f["required"])) for f in schema["fields"]])


def arrow_type(iceberg_type: Any) -> pa.DataType:
    """The Arrow type of an Iceberg type; nested types have field ids as metadata.

    Raises:
        TableUnsupported: this version does not rewrite the type.
    """
    if isinstance(iceberg_type, str):
        if iceberg_type in _PRIMITIVES:
            return _PRIMITIVES[iceberg_type]
        if decimal_type := decimal_of(iceberg_type):
            return pa.decimal128(*decimal_type)
        if (length := fixed_length(iceberg_type)) is not None:
            return pa.binary(length)
        if shape_of(iceberg_type) is not None:
            return pa.binary()
        if isinstance(iceberg_type, StoredVariant):
            return iceberg_type.storage
        raise TableUnsupported(f"columns of type {iceberg_type} are not rewritten by this version of Icekeeper")
    kind = iceberg_type["type"]
    if kind == "struct":
        fields = [_field(f["name"], f["id"], f["type"], bool(f["required"])) for f in iceberg_type["fields"]]
        return pa.struct(fields)
    if kind == "list":
        element = iceberg_type["element"]
        return pa.list_(_field("element", iceberg_type["element-id"], element, bool(iceberg_type["element-required"])))
    if kind == "map":
        return pa.map_(
            _field("key", iceberg_type["key-id"], iceberg_type["key"], True),
            _field("value", iceberg_type["value-id"], iceberg_type["value"], bool(iceberg_type["value-required"])),
        )
    raise TableUnsupported(f"columns of type {kind} are not rewritten by this version of Icekeeper")


def _field(name: str, field_id: int, iceberg_type: Any, required: bool) -> pa.Field:
    metadata = {FIELD_ID_KEY: str(field_id)}
    if isinstance(iceberg_type, str) and (iceberg_type == "variant" or shape_of(iceberg_type) is not None):
        metadata[ANNOTATED_KEY] = str(iceberg_type)
    return pa.field(name, arrow_type(iceberg_type), nullable=not required, metadata=metadata)


def is_annotated(fields: Any) -> bool:
    """Whether fields of an Arrow schema, or fields in them, are geometries, geographies or variants."""
    return any(
        ANNOTATED_KEY in (field.metadata or {})
        or (pa.types.is_nested(field.type) and is_annotated(field.type.field(i) for i in range(field.type.num_fields)))
        for field in fields
    )


def field_id_of(field: pa.Field) -> int | None:
    """The field id of a column in a Parquet or ORC file; ``None``: it has no id."""
    metadata = field.metadata or {}
    value = metadata.get(FIELD_ID_KEY, metadata.get(ORC_FIELD_ID_KEY))
    return None if value is None else int(value)


@same_argument
def leaf_columns(schema: Mapping[str, Any]) -> Sequence[LeafColumn]:
    """The primitive columns of an Iceberg schema in Parquet's column order, which is depth first."""
    return tuple(leaf for f in schema["fields"] for leaf in _leaves((f["name"], f["name"]), f["id"], f["type"], False))


def _leaves(names: tuple[str, str], field_id: int, iceberg_type: Any, repeated: bool) -> Iterator[LeafColumn]:
    name, path = names
    if isinstance(iceberg_type, StoredVariant):
        for end in _paths_below(iceberg_type.storage):
            yield LeafColumn(int(field_id), f"{name}{end}", "variant", True, f"{path}{end}")
        return
    if isinstance(iceberg_type, str):
        yield LeafColumn(int(field_id), name, iceberg_type, repeated, path)
        return
    kind = iceberg_type["type"]
    if kind == "struct":
        for field in iceberg_type["fields"]:
            below = f"{name}.{field['name']}", f"{path}.{field['name']}"
            yield from _leaves(below, field["id"], field["type"], repeated)
        return
    group, parts = ("list", ("element",)) if kind == "list" else ("key_value", ("key", "value"))
    for part in parts:
        below = f"{name}.{part}", f"{path}.{group}.{part}"
        yield from _leaves(below, iceberg_type[f"{part}-id"], iceberg_type[part], True)


def _paths_below(kind: pa.DataType) -> Iterator[str]:
    """The Parquet paths of the leaf columns below a column of a variant's storage, each with a dot before it."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from (f".{field.name}{below}" for below in _paths_below(field.type))
    elif pa.types.is_list(kind):
        yield from (f".list.element{below}" for below in _paths_below(kind.value_type))
    else:
        yield ""


def leaf_values(array: pa.Array, leaves: Iterator[LeafColumn]) -> Iterator[tuple[LeafColumn, pa.Array]]:
    """Every leaf column of an array with its values, through structs, lists and maps.

    The elements of all rows form a single array; a value in a null struct is null.  ``leaves``: the leaf columns of the
    array and of the columns after it.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        for child in array.flatten():
            yield from leaf_values(child, leaves)
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        yield from leaf_values(as_list(array).flatten(), leaves)
    else:
        yield next(leaves), array


def as_list(array: pa.Array) -> pa.Array:
    """A map as a list of its entries, because Arrow's list functions accept only lists; a list is unchanged."""
    return array.view(pa.list_(array.type.field(0))) if pa.types.is_map(array.type) else array


# Arrow decimals have up to 38 digits; Python's default context would round to 28.
_DECIMAL_CONTEXT = decimal.Context(prec=76)


def raw_column(values: Sequence[PartitionValue], iceberg_type: str) -> pa.Array:
    """A column of raw values, as stored in metadata (specification, appendix D), of a primitive type.

    Raises:
        TableUnsupported: a value is not of that type.
    """
    if iceberg_type == "unknown":
        return pa.nulls(len(values))
    target = arrow_type(iceberg_type)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, pa.array(values, target.storage_type))
    if pa.types.is_decimal(target):
        return pa.array([_decimal(value, target.scale) for value in values], target)
    if pa.types.is_temporal(target):
        return pa.array(values, pa.int32() if pa.types.is_date(target) else pa.int64()).cast(target)
    return pa.array(values, target)


def _decimal(value: PartitionValue, scale: int) -> decimal.Decimal | None:
    if value is None:
        return None
    if not isinstance(value, int | bytes):
        raise TableUnsupported(f"partition value {value!r} is not a decimal")
    return decimal.Decimal(decimal_unscaled(value)).scaleb(-scale, _DECIMAL_CONTEXT)


_OFFSET_BYTES = 4
"""Memory of a text or binary value in addition to its bytes."""
_LIKELY_TEXT_BYTES = 64
_TEXTS = frozenset({"string", "binary", "variant"})


@cache
def value_bytes(iceberg_type: str) -> float:
    """Bytes of a value of a primitive type in Arrow; for text and binary values, without their own bytes."""
    try:
        kind = arrow_type(iceberg_type)
        return float(getattr(kind, "storage_type", kind).bit_width) / 8
    except (TableUnsupported, ValueError):  # a type without a width, or a type that is not rewritten
        return _OFFSET_BYTES


def likely_row_bytes(iceberg_types: Iterable[str]) -> int:
    """An estimate of the bytes of a row with these types in Arrow; the length of texts is assumed."""
    return int(sum(value_bytes(kind) + _LIKELY_TEXT_BYTES * (kind in _TEXTS) for kind in iceberg_types))
