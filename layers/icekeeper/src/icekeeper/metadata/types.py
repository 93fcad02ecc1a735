"""Iceberg's primitive types, the facts about them that other modules use, and their single values (pure).

A new primitive type needs a line in ``PRIMITIVES`` here, a line in the Arrow types of ``rows/arrow_schema.py``, and
tests.
Types are spelled as in table metadata, for example ``decimal(9, 2)``.
Source: specification, "Primitive Types" and appendixes A (Avro) and D (single-value serialization).
"""

from __future__ import annotations

import datetime
import re
import struct
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, TypeAlias

from icekeeper.errors import TableUnsupported
from icekeeper.model import PartitionFieldSummary, PartitionValue

# With at most nine digits, so that every number fits into 32 bits.
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)", re.ASCII)
_FIXED = re.compile(r"fixed\[(\d{1,9})\]", re.ASCII)
_SHAPE = re.compile(r"(geometry|geography)(?:\(\s*([^,()]+?)\s*(?:,\s*(['\w]+)\s*)?\))?", re.ASCII)
EDGES = ("spherical", "vincenty", "thomas", "andoyer", "karney")
"""Algorithms of the edges of geographies, in the order of Parquet's numbers."""
_MOST_DIGITS = 38


@dataclass(frozen=True, slots=True)
class Primitive:
    """The facts about a type."""

    avro: Any
    width: int | None = None
    """Bytes of a value in the single-value serialization; ``None``: the lengths differ."""
    is_integer: bool = False
    """Whether its raw values are integers, and are ordered like integers."""
    per_second: int = 0
    """Units per second; 0 for types that do not count parts of seconds."""


def _timestamp(unit: str, per_second: int, *, utc: bool) -> Primitive:
    avro = {"type": "long", "logicalType": f"timestamp-{unit}", "adjust-to-utc": utc}
    return Primitive(avro, 8, is_integer=True, per_second=per_second)


PRIMITIVES: Mapping[str, Primitive] = {
    "boolean": Primitive("boolean", 1),
    "int": Primitive("int", 4, is_integer=True),
    "long": Primitive("long", 8, is_integer=True),
    "float": Primitive("float", 4),
    "double": Primitive("double", 8),
    "date": Primitive({"type": "int", "logicalType": "date"}, 4, is_integer=True),
    "time": Primitive({"type": "long", "logicalType": "time-micros"}, 8, is_integer=True, per_second=10**6),
    "timestamp": _timestamp("micros", 10**6, utc=False),
    "timestamptz": _timestamp("micros", 10**6, utc=True),
    "timestamp_ns": _timestamp("nanos", 10**9, utc=False),
    "timestamptz_ns": _timestamp("nanos", 10**9, utc=True),
    "string": Primitive("string"),
    "binary": Primitive("bytes"),
    "uuid": Primitive({"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}, 16),
}
"""All types without parameters whose values data files store.  ``decimal`` and ``fixed`` have functions below."""

INTEGER_BITS: Mapping[str, int] = {
    name: 8 * kind.width for name, kind in PRIMITIVES.items() if kind.is_integer and kind.width is not None
}
"""Type whose raw values are integers → their bits."""
FLOATS = frozenset({"float", "double"})
NUMBERS = FLOATS | frozenset(INTEGER_BITS)
TIMESTAMPS = frozenset(name for name in PRIMITIVES if name.startswith("timestamp"))
UNITS_PER_DAY: Mapping[str, int] = {"date": 1, **{name: 86_400 * PRIMITIVES[name].per_second for name in TIMESTAMPS}}
"""``date``, and the types to which a date can be promoted → units per day."""
UNORDERED = frozenset({"variant", "unknown", "geometry", "geography"})
"""Types, without their parameters, whose values have no order."""


def decimal_of(iceberg_type: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type; ``None`` for other types, and for an invalid precision or scale.

    Source: specification, "Primitive Types": the precision is 38 or less.
    """
    match = _DECIMAL.fullmatch(iceberg_type)
    precision, scale = (int(match[1]), int(match[2])) if match else (0, 0)
    return (precision, scale) if 1 <= precision <= _MOST_DIGITS and scale <= _MOST_DIGITS else None


def fixed_length(iceberg_type: str) -> int | None:
    """The bytes of a value of a ``fixed`` type; ``None`` for other types."""
    match = _FIXED.fullmatch(iceberg_type)
    return int(match[1]) if match else None


def shape_of(iceberg_type: str) -> tuple[str, str, str] | None:
    """``geometry`` or ``geography``, its coordinate reference system and its edge algorithm; ``None`` for other types.

    Source: specification, "Geospatial Notes": the defaults are ``OGC:CRS84`` and ``spherical``; a geometry's edges are
    planar, which has no name.
    """
    match = _SHAPE.fullmatch(iceberg_type)
    if match is None:
        return None
    crs, algorithm = (part and part.strip("'") for part in match.groups()[1:])  # PyIceberg writes quotes
    if match[1] == "geometry":
        return None if algorithm else ("geometry", crs or "OGC:CRS84", "")
    edges = (algorithm or EDGES[0]).lower()
    return ("geography", crs or "OGC:CRS84", edges) if edges in EDGES else None


def is_primitive(iceberg_type: str) -> bool:
    """Whether this version of Icekeeper knows how values of the type are stored."""
    parametrised = (decimal_of, fixed_length, shape_of)
    return iceberg_type in PRIMITIVES or any(parse(iceberg_type) is not None for parse in parametrised)


def column_type(struct: Mapping[str, Any], field_id: int) -> str | None:
    """The primitive type of a column of a schema, or of a struct in it; ``None``: there is no such column."""
    for field in struct["fields"]:
        kind = field["type"]
        if int(field["id"]) == field_id:
            return kind if isinstance(kind, str) else None
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            found = column_type(kind, field_id)
            if found is not None:
                return found
    return None


# The single-value serialization, binary and JSON, and the partition summaries of a manifest.
#
# A raw value is what Avro or Parquet stores: dates as days, times and timestamps as integers, decimals as an unscaled
# integer or its big-endian bytes, uuids, fixed and binary as bytes.  Source: specification, appendix D.

_INTEGER_FORMATS = {name: "<i" if bits == 32 else "<q" for name, bits in INTEGER_BITS.items()}
_MAX_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def encode(iceberg_type: str, raw: Any) -> bytes:
    """The single-value bytes of a raw value of a primitive type."""
    if iceberg_type in _INTEGER_FORMATS:
        return struct.pack(_INTEGER_FORMATS[iceberg_type], raw)
    if iceberg_type == "float":
        return struct.pack("<f", raw)
    if iceberg_type == "double":
        return struct.pack("<d", raw)
    if iceberg_type == "boolean":
        return b"\x01" if raw else b"\x00"
    if iceberg_type == "string":
        return raw.encode() if isinstance(raw, str) else bytes(raw)
    if iceberg_type.startswith("decimal"):
        return _least_bytes(decimal_unscaled(raw))
    return bytes(raw)


def decode(iceberg_type: str, value: bytes) -> Any:
    """The raw value of single-value bytes, which have their old width if they are from before a type promotion
    (rule: promoted-values-keep-old-width).

    Raises:
        ValueError: the bytes are not a value of that type.
    """
    if iceberg_type in NUMBERS:
        if len(value) not in (4, 8):
            raise ValueError(f"{len(value)} bytes are not a value of type {iceberg_type}")
        if iceberg_type in FLOATS:
            return struct.unpack("<f" if len(value) == 4 else "<d", value)[0]
        units = UNITS_PER_DAY.get(iceberg_type, 1) if len(value) == 4 else 1
        return int.from_bytes(value, "little", signed=True) * units
    if iceberg_type == "boolean":
        return value != b"\x00"
    if iceberg_type == "uuid" and len(value) != 16:
        raise ValueError(f"{len(value)} bytes are not a value of type uuid")
    return value.decode() if iceberg_type == "string" else value


def comparable(iceberg_type: str, raw: Any) -> Any:
    """The raw value in a form that Python orders as Iceberg does: decimals as integers, -0.0 below 0.0."""
    if iceberg_type.startswith("decimal"):
        return decimal_unscaled(raw)
    if iceberg_type in FLOATS:
        return raw, 0 if struct.pack("<d", raw)[-1] & 0x80 else 1
    if iceberg_type == "string":
        return raw.encode() if isinstance(raw, str) else bytes(raw)
    return raw


def is_utf8(value: bytes) -> bool:
    """Whether these bytes are UTF-8; some writers store texts and bounds that are not."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def decimal_unscaled(raw: int | bytes) -> int:
    """The unscaled integer of a decimal that is stored as an integer or as big-endian bytes."""
    return raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)


def least_decimal(raw: bytes | None) -> bytes | None:
    """A decimal in as few bytes as possible, so that equal values have equal bytes."""
    return None if raw is None else _least_bytes(decimal_unscaled(raw))


def _least_bytes(unscaled: int) -> bytes:
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def truncated_lower(iceberg_type: str, value: bytes, length: int) -> bytes:
    """A lower bound truncated to ``length`` characters (strings) or bytes (binary); other types are not truncated."""
    if iceberg_type == "string":
        return value.decode()[:length].encode()
    return value[:length] if iceberg_type == "binary" else value


def truncated_upper(iceberg_type: str, value: bytes, length: int) -> bytes | None:
    """An upper bound truncated like a lower bound, then rounded up; ``None``: there is no upper bound of that length.

    Source: specification, "Bounds" notes, and Java's ``UnicodeUtil.truncateStringMax``.
    """
    if iceberg_type == "string":
        text = value.decode()
        if len(text) <= length:
            return value
        for end in range(length - 1, -1, -1):
            code_point = ord(text[end]) + 1
            if code_point in _SURROGATES:
                code_point = _SURROGATES.stop
            if code_point <= _MAX_CODE_POINT:
                return (text[:end] + chr(code_point)).encode()
        return None
    if iceberg_type == "binary" and len(value) > length:
        for end in range(length - 1, -1, -1):
            if value[end] < 0xFF:
                return value[:end] + bytes([value[end] + 1])
        return None
    return value


# The JSON serialization, in which schemas store column defaults.

_EPOCH = datetime.date(1970, 1, 1)
_MOMENT = re.compile(
    r"(?:(?P<date>[+-]?\d{4,}-\d\d-\d\d)T)?(?P<h>\d\d):(?P<m>\d\d)(?::(?P<s>\d\d)(?:\.(?P<frac>\d{1,9}))?)?"
    r"(?P<zone>Z|[+-]\d\d:\d\d)?"
)
_DECIMALS = Context(prec=76)


def raw_from_json(iceberg_type: str, value: Any) -> PartitionValue:
    """The raw value of a JSON value of a primitive type; decimals as unscaled integers.

    Raises:
        TableUnsupported: it is not a value of that type.
    """
    try:
        return _raw(iceberg_type, value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise TableUnsupported(f"the default {value!r} is not a value of type {iceberg_type}") from error


def _raw(iceberg_type: str, value: Any) -> PartitionValue:
    if iceberg_type in ("int", "long"):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(value)
        return value
    if iceberg_type in FLOATS:
        return float(value)
    if iceberg_type == "boolean":
        if not isinstance(value, bool):
            raise ValueError(value)
        return value
    if not isinstance(value, str):
        raise ValueError(value)
    if iceberg_type == "string":
        return value
    if iceberg_type == "date":
        return (datetime.date.fromisoformat(value) - _EPOCH).days
    if iceberg_type in TIMESTAMPS or iceberg_type == "time":
        return _moment(iceberg_type, value)
    if iceberg_type == "uuid":
        return uuid.UUID(value).bytes
    if iceberg_type == "binary" or iceberg_type.startswith("fixed"):
        return bytes.fromhex(value)
    if decimal := decimal_of(iceberg_type):
        unscaled = Decimal(value).scaleb(decimal[1], _DECIMALS)
        if unscaled != unscaled.to_integral_value():
            raise ValueError(value)
        return int(unscaled)
    raise ValueError(iceberg_type)


def _moment(iceberg_type: str, text: str) -> int:
    """A time or timestamp in its stored unit; Python's own types have no nanoseconds."""
    match = _MOMENT.fullmatch(text)
    if match is None or (match["date"] is None) != (iceberg_type == "time"):
        raise ValueError(text)
    seconds = (int(match["h"]) * 60 + int(match["m"])) * 60 + int(match["s"] or 0)
    if match["date"] is not None:
        seconds += (datetime.date.fromisoformat(match["date"]) - _EPOCH).days * 86_400
    if match["zone"] not in (None, "Z"):
        hours, minutes = match["zone"][1:].split(":")
        offset = (int(hours) * 60 + int(minutes)) * 60
        seconds -= offset if match["zone"][0] == "+" else -offset
    nanos = seconds * 1_000_000_000 + int((match["frac"] or "").ljust(9, "0"))
    return nanos // (10**9 // PRIMITIVES[iceberg_type].per_second)


# Bounds of uuids that hold in both orders that readers use
# (rule: summaries-hold-for-every-reader, platform: java-orders-uuids-signed).
#
# The specification orders uuids as unsigned bytes.  Iceberg-Java up to 1.10 compares them like ``java.util.UUID``: as
# two signed 64-bit numbers, the first and the second half.  A reader that expects the other order finds no value
# between the bounds.
#
# A lower bound must not be above any value in either order.  Two facts decide whether such a bound exists:
#
# * The first halves of the values and of the bound must have the same sign bit, because the orders disagree on halves
#   with different sign bits.
# * If the values with the smallest first half have second halves of both sign bits, no second half is below them in
#   both orders.  Then the bound needs a smaller first half, which does not exist below 0 and below the most negative
#   number.
#
# The same holds for upper bounds, mirrored.  ``uuid_section`` divides uuids so that each section has both bounds.

_HALF = 8
_SIGN = 0x80
_ZERO = bytes(_HALF)
_ENDS = frozenset({_ZERO, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"\xff" * _HALF})
"""The smallest and the largest first half of each sign bit."""


def uuid_section(value: bytes) -> int:
    """The section of a uuid, 0 to 3; uuids of the same section always have bounds.

    Nearly all uuids are in sections 0 and 2, by their first bit.  Uuids in sections 1 and 3 have an extreme first half,
    and their 65th bit is set.
    """
    at_an_end = value[:_HALF] in _ENDS and value[_HALF] & _SIGN
    return (2 if value[0] & _SIGN else 0) + (1 if at_an_end else 0)


def uuid_bounds(values: Collection[bytes]) -> tuple[bytes, bytes] | None:
    """The tightest bounds of one or more uuids that hold in both orders; ``None``: there are none, which never happens
    within a section."""
    low, high = min(values), max(values)
    if (low[0] ^ high[0]) & _SIGN:
        return None
    if _has_both_signs(values, low[:_HALF]):
        if low[:_HALF] in _ENDS:
            return None
        low = _next(low, -1)
    if _has_both_signs(values, high[:_HALF]):
        if high[:_HALF] in _ENDS:
            return None
        high = _next(high, 1)
    return low, high


def _has_both_signs(values: Collection[bytes], first: bytes) -> bool:
    """Whether values with this first half have second halves of both sign bits."""
    return len({value[_HALF] & _SIGN for value in values if value[:_HALF] == first}) > 1


def _next(value: bytes, step: int) -> bytes:
    return (int.from_bytes(value[:_HALF], "big") + step).to_bytes(_HALF, "big") + _ZERO


# Partition summaries of a manifest, for the manifest list (specification, "Manifest Lists", ``field_summary``).
#
# Readers take a summary without bounds for "all null" and skip the manifest.  So every field has bounds that hold for
# every reader (rule: summaries-hold-for-every-reader), or the manifest has no summaries at all.  Readers accept the
# second case, but Spark's ``manifests`` table does not.
# ``section_of`` avoids it, because partitions of the same section always have bounds.

Section: TypeAlias = tuple[int, ...]
"""A number per uuid field.  Only partitions of the same section may share a manifest; most specs have one section."""


def section_of(types: Sequence[str], partition: Sequence[PartitionValue]) -> Section:
    """The section of a partition; null counts as section 0.  ``types`` are the result types of the spec's fields."""
    return tuple(
        uuid_section(value) if isinstance(value, bytes) else 0
        for kind, value in zip(types, partition, strict=True)
        if kind == "uuid"
    )


def summarise_partitions(
    types: Sequence[str], partitions: Sequence[tuple[PartitionValue, ...]]
) -> tuple[PartitionFieldSummary, ...] | None:
    """A summary per partition field; ``None``: the partitions have several sections, so a field has no bounds."""
    summaries = []
    for i, kind in enumerate(types):
        values = [partition[i] for partition in partitions]
        present = [value for value in values if value is not None]
        numbers = [value for value in present if value == value]  # NaN differs from itself
        bounds = _bounds(kind, numbers) if numbers else (None, None)
        if bounds is None:
            return None
        contains_null, contains_nan = len(present) < len(values), len(numbers) < len(present)
        summaries.append(PartitionFieldSummary(contains_null, contains_nan, *bounds))
    return tuple(summaries)


def _bounds(kind: str, values: Sequence[PartitionValue]) -> tuple[bytes, bytes] | None:
    if kind == "uuid":
        return uuid_bounds([encode(kind, value) for value in values])
    low, high = (choose(values, key=lambda v: comparable(kind, v)) for choose in (min, max))
    return encode(kind, low), encode(kind, high)
