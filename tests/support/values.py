"""Random values of every Iceberg type, including uuids."""

from __future__ import annotations

import datetime
import decimal
import itertools
import random
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from support.model.oracle import Row

# Random values of every Iceberg type, from domains so small that keys repeat.

_MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)
# ORC cannot store the last second before 1970: Java's writer shifts it by a second.
_BEFORE_EPOCH = datetime.datetime(1969, 12, 31, 23, 59, 58, 999999)
_MOMENTS = (_MOMENT, _BEFORE_EPOCH, datetime.datetime(1970, 1, 1), datetime.datetime(2024, 3, 1, 23))

DOMAINS: Mapping[str, Sequence[Any]] = {
    "boolean": (True, False),
    "int": (-(2**31), -1, 0, 7, 2**31 - 1),
    "long": (-(2**40), -1, 0, 7, 2**31 - 1, 2**40),
    "float": (1.5, -0.0, 0.0, float("nan"), float("-inf"), 7.0),
    "double": (1.5, -0.0, 0.0, float("nan"), float("inf"), 0.1),
    "string": ("", "a", "ab", "b", "fünfzehn Zeichen 😀 und mehr", "0123456789abcde\U0010ffff and on"),
    "date": (datetime.date(2024, 2, 29), datetime.date(1969, 12, 31), datetime.date(2024, 3, 1)),
    "time": (datetime.time(0), datetime.time(23, 59, 59, 999999), datetime.time(7, 30)),
    "timestamp": _MOMENTS,
    "timestamptz": tuple(moment.replace(tzinfo=datetime.UTC) for moment in _MOMENTS),
    # Nanoseconds since 1970, because Python has no type for them.
    "timestamp_ns": (-1_000_000_001, 0, 1_709_209_815_123_456_789),
    "timestamptz_ns": (-1_000_000_001, 0, 1_709_209_815_123_456_789),
    "decimal(9, 2)": tuple(decimal.Decimal(n).scaleb(-2) for n in (-350, 0, 1, 999999999)),
    "decimal(12, 2)": tuple(decimal.Decimal(n).scaleb(-2) for n in (-350, 0, 1, 10**11)),
    "decimal(20, 3)": tuple(decimal.Decimal(n).scaleb(-3) for n in (-(10**19), 0, 1)),
    # Both halves have both signs: readers disagree on the order of these uuids.
    "uuid": tuple(uuid.UUID(int=n) for n in (0, 1 << 63, (3 << 125) + 7, 7 << 125, (7 << 125) + (1 << 63), 2**128 - 1)),
    "fixed[3]": (b"\x00\x00\x00", b"\xff\xff\xff", b"abc"),
    "binary": (b"", b"\x00", b"\xff" * 20),
}
_PROMOTED = {"int": "long", "float": "double", "decimal(9, 2)": "decimal(12, 2)"}
"""Type → the type to which its columns may be promoted (specification, "Schema Evolution")."""
_NULL_SHARE = 0.2


def promoted(kind: Any) -> str | None:
    """The wider type to which a column may be promoted, if any."""
    return _PROMOTED.get(kind) if isinstance(kind, str) else None


def random_row(schema: Mapping[str, Any], chance: random.Random) -> Row:
    """A row by field id; only optional fields are null."""
    return {str(f["id"]): random_value(f["type"], chance, required=f["required"]) for f in schema["fields"]}


def random_value(kind: Any, chance: random.Random, *, required: bool) -> Any:
    """A random value of a type."""
    if not required and chance.random() < _NULL_SHARE:
        return None
    if isinstance(kind, str):
        return chance.choice(DOMAINS[kind])
    if kind["type"] == "struct":
        return random_row(kind, chance)
    length = chance.randrange(3)
    if kind["type"] == "list":
        return [random_value(kind["element"], chance, required=kind["element-required"]) for _ in range(length)]
    keys = chance.sample(DOMAINS[kind["key"]], length)
    return [(key, random_value(kind["value"], chance, required=kind["value-required"])) for key in keys]


def fits(kind: str, value: Any) -> bool:
    """Whether a value of a promoted column also fits its older type."""
    if kind == "int":
        return -(2**31) <= int(value) < 2**31
    if kind == "float":
        return bool(value != 0.1)
    return kind != "decimal(9, 2)" or bool(abs(value) < 10**7)


# The two orders of uuids that readers use, and uuids on which they differ.


def _signed(value: bytes) -> tuple[int, int]:
    """The order of ``java.util.UUID.compareTo``, which Iceberg-Java up to 1.10 uses."""
    most, least = struct.unpack(">qq", value)
    return most, least


ORDERS: tuple[Callable[[bytes], Any], ...] = (_signed, bytes)
"""The order of Java, and the order of the specification, PyIceberg and DuckDB: unsigned bytes."""

_NUMBERS = (0, 1, 2, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**63 + 1, 2**63 + 2**62, 2**64 - 2, 2**64 - 1)
AWKWARD_UUIDS = tuple(struct.pack(">QQ", *pair) for pair in itertools.product(_NUMBERS, repeat=2))
"""Uuids with halves of both signs, at and beside the ends of their ranges."""

uuid_values = st.sampled_from(AWKWARD_UUIDS) | st.binary(min_size=16, max_size=16)
