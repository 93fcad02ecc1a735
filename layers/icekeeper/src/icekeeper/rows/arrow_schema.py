"""Iceberg schemas as Arrow schemas: leaf columns, raw values as columns, and memory per row."""

from __future__ import annotations

import decimal
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.single_value import decimal_unscaled
from icekeeper.metadata.types import decimal_of, fixed_length, is_primitive
from icekeeper.model import PartitionValue

# Remembers what pure functions made of the mappings that they were last given.
#
# A group of small files asks for the Arrow schema and the leaf columns of one and the same Iceberg schema ten times,
# and the next group of the table asks again: of 2,000 columns each takes milliseconds.

Result = TypeVar("Result")
# The schema of the table, that of one reading of it with fewer columns, and those of some threads' tables.
_REMEMBERED = 8


def same_argument(function: Callable[[Mapping[str, Any]], Result]) -> Callable[[Mapping[str, Any]], Result]:
    """The function, which is not called again for a mapping that it was called with lately: the object itself, not an
    equal one, because comparing schemas takes as long.

    Only for mappings that nobody changes, and results that nobody changes either.
    """
    # The mapping is kept beside the result, so that no other one can take its place in memory.
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


# Translates Iceberg schemas into Arrow schemas, and lists their leaf columns in Parquet's order.
#
# Source: specification, "Parquet" data type mappings.  Strings stay 32-bit Arrow strings: batches are small, and the
# Parquet reader delivers them so.

FIELD_ID_KEY = b"PARQUET:field_id"
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


@dataclass(frozen=True, slots=True)
class LeafColumn:
    """A primitive column; ``repeated``: it lies inside a list or map."""

    field_id: int
    name: str
    iceberg_type: str
    repeated: bool
    parquet_path: str
    """Its full name, with the groups that Parquet puts around the elements of lists and maps."""

    @property
    def has_bounds(self) -> bool:
        """Whether manifests and file footers may have bounds for it (platform: java-orders-uuids-signed).

        Readers prune by both, and they disagree on the order of uuids: Iceberg-Java up to 1.10 compares them as signed
        numbers, and finds nothing between bounds in the order of the bytes.  Inside lists and maps nobody prunes.
        """
        return self.iceberg_type != "uuid" or self.repeated

    @property
    def is_float(self) -> bool:
        """Whether it may hold NaN, 0.0 and -0.0."""
        return self.iceberg_type in ("float", "double")


def stored_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of an Iceberg schema that data files hold: all but those of type ``unknown``, which are always null.

    Raises:
        TableUnsupported: a column's type cannot be carried through a rewrite (rule: read-faithfully-or-not-at-all).
    """
    return {**schema, "fields": _stored_fields(schema["fields"], "")}


def _stored_fields(fields: Sequence[Mapping[str, Any]], above: str) -> list[dict[str, Any]]:
    kept = [f for f in fields if f["type"] != "unknown"]
    if fields and not kept and above:
        raise _unsupported(above[:-1], "struct of unknown columns only")
    return [{**f, "type": _stored_type(f["type"], f"{above}{f['name']}")} for f in kept]


def _stored_type(kind: Any, name: str) -> Any:
    if isinstance(kind, str):
        if not is_primitive(kind):
            raise _unsupported(name, kind)
        return kind
    if kind["type"] == "struct":
        return {**kind, "fields": _stored_fields(kind["fields"], f"{name}.")}
    parts = {"list": ("element",), "map": ("key", "value")}.get(kind["type"])
    if parts is None:
        raise _unsupported(name, str(kind["type"]))
    return {**kind, **{part: _stored_type(kind[part], f"{name}.{part}") for part in parts}}


def _unsupported(name: str, kind: str) -> TableUnsupported:
    return TableUnsupported(
        f"column {name} is of type {kind}, which this version of Icekeeper cannot rewrite; the table was left alone"
    )


def column_path(fields: Sequence[Mapping[str, Any]], field_id: int) -> tuple[int, ...] | None:
    """The path to a column, as positions from the top through structs; ``None``: it is missing, or in a list or map."""
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
    """The column at a path, of its Arrow storage type; what lies in a null struct is null."""
    array = batch.column(path[0])
    for position in path[1:]:
        array = pc.struct_field(array, [position])
    # Arrow's lookups take storage types only.
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def fields_with(fields: Sequence[Mapping[str, Any]], field_ids: Collection[int]) -> list[dict[str, Any]]:
    """The fields with these ids; a field in a struct comes with the structs around it, without their other fields."""
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
        TableUnsupported: a column type is not rewritten by this version.
    """
    return pa.schema([_field(f["name"], f["id"], f["type"], bool(f["required"])) for f in schema["fields"]])


def arrow_type(iceberg_type: Any) -> pa.DataType:
    """The Arrow type of an Iceberg type; nested types have field ids as metadata.

    Raises:
        TableUnsupported: the type is not rewritten by this version.
    """
    if isinstance(iceberg_type, str):
        return _primitive(iceberg_type)
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
    return pa.field(name, arrow_type(iceberg_type), nullable=not required, metadata={FIELD_ID_KEY: str(field_id)})


def _primitive(name: str) -> pa.DataType:
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    if decimal_type := decimal_of(name):
        return pa.decimal128(*decimal_type)
    if (length := fixed_length(name)) is not None:
        return pa.binary(length)
    raise TableUnsupported(f"columns of type {name} are not rewritten by this version of Icekeeper")


def field_id_of(field: pa.Field) -> int | None:
    """The Iceberg field id that a Parquet or ORC file gives a column, ``None`` where the writer left it out."""
    metadata = field.metadata or {}
    value = metadata.get(FIELD_ID_KEY, metadata.get(ORC_FIELD_ID_KEY))
    return None if value is None else int(value)


@same_argument
def leaf_columns(schema: Mapping[str, Any]) -> Sequence[LeafColumn]:
    """The primitive columns of an Iceberg schema, depth first, which is Parquet's column order."""
    return tuple(leaf for f in schema["fields"] for leaf in _leaves((f["name"], f["name"]), f["id"], f["type"], False))


def _leaves(names: tuple[str, str], field_id: int, iceberg_type: Any, repeated: bool) -> Iterator[LeafColumn]:
    name, path = names
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


# Walks the leaf columns of Arrow arrays, through structs, lists and maps.


def leaf_values(array: pa.Array, leaves: Iterator[LeafColumn]) -> Iterator[tuple[LeafColumn, pa.Array]]:
    """Every leaf column with its values, the elements of all rows in one array; a value in a null struct is null.

    ``leaves`` are those of the array, and of the columns after it.
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
    """Maps as lists of their entries, since Arrow's list functions take lists only; lists as they are."""
    return array.view(pa.list_(array.type.field(0))) if pa.types.is_map(array.type) else array


# Makes Arrow columns of raw values, as metadata has them (specification, appendix D; see :mod:`icekeeper.model`).

# Arrow decimals have up to 38 digits; Python's default context would round to 28.
_DECIMAL_CONTEXT = decimal.Context(prec=76)


def raw_column(values: Sequence[PartitionValue], iceberg_type: str) -> pa.Array:
    """A column of raw values of a primitive type; ``None`` becomes null.

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


# How much memory rows take as Arrow has them, as far as types and sizes tell (pure).

_OFFSET_BYTES = 4
"""Of a text or binary value beside its bytes."""
_LIKELY_TEXT_BYTES = 64
_TEXTS = frozenset({"string", "binary"})


@cache
def value_bytes(iceberg_type: str) -> float:
    """Bytes of one value of a primitive type; of texts and binary values what they take besides their own bytes."""
    try:
        kind = arrow_type(iceberg_type)
        return float(getattr(kind, "storage_type", kind).bit_width) / 8
    except (TableUnsupported, ValueError):  # a type without a width, or one that is not rewritten
        return _OFFSET_BYTES


def likely_row_bytes(iceberg_types: Iterable[str]) -> int:
    """About the bytes of a row with one value of each of these types; how long texts are, no manifest tells."""
    return int(sum(value_bytes(kind) + _LIKELY_TEXT_BYTES * (kind in _TEXTS) for kind in iceberg_types))
