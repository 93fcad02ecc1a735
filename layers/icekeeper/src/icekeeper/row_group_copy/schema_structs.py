"""The Thrift structures of a Parquet schema (apache/parquet-format 2.12, ``parquet.thrift``).

Types that Iceberg columns do not have are left out (:mod:`.footer_structs` says what follows from that).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from icekeeper.row_group_copy.thrift_fields import BOOL, BYTES, EMPTY, I8, I32, Empty, describe, struct

__all__ = [
    "DecimalType",
    "IntType",
    "LogicalType",
    "SchemaElement",
    "TimeType",
    "TimeUnit",
]


@dataclass(slots=True)
class DecimalType:
    """Annotation of decimals."""

    scale: int = 0
    precision: int = 0
    thrift_spec: ClassVar[Any] = ()


describe(DecimalType, I32, I32)


@dataclass(slots=True)
class TimeUnit:
    """A union: exactly one is set."""

    millis: Empty | None = None
    micros: Empty | None = None
    nanos: Empty | None = None
    thrift_spec: ClassVar[Any] = ()


describe(TimeUnit, *[struct(Empty)] * 3)


@dataclass(slots=True)
class TimeType:
    """Annotation of times and timestamps."""

    is_adjusted_to_utc: bool = False
    unit: TimeUnit = field(default_factory=TimeUnit)
    thrift_spec: ClassVar[Any] = ()


describe(TimeType, BOOL, struct(TimeUnit))


@dataclass(slots=True)
class IntType:
    """Annotation of integers."""

    bit_width: int = 0
    is_signed: bool = False
    thrift_spec: ClassVar[Any] = ()


describe(IntType, I8, BOOL)


@dataclass(slots=True)
class LogicalType:
    """A union of those that Iceberg's types use: exactly one is set."""

    string: Empty | None = None
    map: Empty | None = None
    list: Empty | None = None
    decimal: DecimalType | None = None
    date: Empty | None = None
    time: TimeType | None = None
    timestamp: TimeType | None = None
    integer: IntType | None = None
    uuid: Empty | None = None
    thrift_spec: ClassVar[Any] = ()


_TIME = struct(TimeType)
describe(
    LogicalType,
    *(EMPTY, EMPTY, EMPTY, None, struct(DecimalType), EMPTY, _TIME, _TIME, None, struct(IntType)),
    *(None, None, None, EMPTY),
)


@dataclass(slots=True)
class SchemaElement:
    """A group or column of the schema, which is a list in depth-first order, the root first."""

    type: int | None = None
    type_length: int | None = None
    repetition_type: int | None = None
    name: bytes = b""
    num_children: int | None = None
    converted_type: int | None = None
    scale: int | None = None
    precision: int | None = None
    field_id: int | None = None
    logical_type: LogicalType | None = None
    thrift_spec: ClassVar[Any] = ()


describe(SchemaElement, I32, I32, I32, BYTES, I32, I32, I32, I32, I32, struct(LogicalType))
