"""Iceberg's primitive types, and the facts about them that other modules ask for (pure).

A new primitive type needs a line in ``PRIMITIVES`` here, one in the Arrow types of ``rows/arrow_schema.py``, and tests.
Types are spelled as in table metadata, for example ``decimal(9, 2)``.
Source: specification, "Primitive Types" and appendixes A (Avro) and D (single-value serialization).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Primitive:
    """The facts about a type."""

    avro: Any
    width: int | None = None
    """Bytes of a value in the single-value serialization; ``None``: its values differ in length."""
    is_integer: bool = False
    """Whether its raw values are integers, and ordered as such."""
    per_second: int = 0
    """How many of its units make a second; 0 for types that do not count parts of seconds."""


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
"""Type that a date can be or become → how many of its units make a day."""
UNORDERED = frozenset({"variant", "unknown", "geometry", "geography"})
"""Types, without their parameters, whose values have no order."""


def decimal_of(iceberg_type: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type; ``None`` for other types."""
    match = _DECIMAL.fullmatch(iceberg_type)
    return (int(match[1]), int(match[2])) if match else None


def fixed_length(iceberg_type: str) -> int | None:
    """The bytes of a value of a ``fixed`` type; ``None`` for other types."""
    match = _FIXED.fullmatch(iceberg_type)
    return int(match[1]) if match else None


def is_primitive(iceberg_type: str) -> bool:
    """Whether this version of Icekeeper knows how values of the type are stored."""
    return iceberg_type in PRIMITIVES or decimal_of(iceberg_type) is not None or fixed_length(iceberg_type) is not None


def column_type(struct: Mapping[str, Any], field_id: int) -> str | None:
    """The primitive type of a column of a schema, also inside structs; ``None``: there is no such column."""
    for field in struct["fields"]:
        kind = field["type"]
        if int(field["id"]) == field_id:
            return kind if isinstance(kind, str) else None
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            found = column_type(kind, field_id)
            if found is not None:
                return found
    return None
