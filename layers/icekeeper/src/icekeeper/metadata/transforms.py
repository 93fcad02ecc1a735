"""Iceberg's partition and sort transforms: names, source types, result types, order (pure).

A new transform needs its name here, its function in ``operations/compaction/terms/output_partition.py`` (values) and
``operations/compaction/work/sort_keys.py`` (columns), and tests.  Transforms are spelled as in table metadata:
``bucket[16]``, ``day``.
Source: specification, "Partition Transforms".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.types import FLOATS, TIMESTAMPS, UNITS_PER_DAY, UNORDERED, column_type

CALENDAR = ("year", "month", "day", "hour")
"""Transforms that count from 1970, in UTC."""
NUMBERED = ("bucket", "truncate")
KEEPS_ORDER = frozenset({"identity", "truncate", *CALENDAR})
"""Transforms, without their number, that keep the order of values."""
NO_BUCKETS = UNORDERED | FLOATS | {"boolean"}
"""Types, without their parameters, that ``bucket`` does not accept."""
MICROS_PER_DAY = 86_400_000_000
MICROS = {"day": MICROS_PER_DAY, "hour": MICROS_PER_DAY // 24}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONTHS = {"month": 1, "year": 12}
_RESULTS = {"bucket": "int", "year": "int", "month": "int", "hour": "int", "day": "date"}
_TRUNCATED = ("int", "long", "string", "binary", "decimal")


def parse_transform(transform: str) -> tuple[str, int | None]:
    """Name and number: ``bucket[16]`` → ``bucket``, 16; ``day`` → ``day``, ``None``."""
    match = re.fullmatch(r"(\w+)\[(\d+)\]", transform)
    return (match[1], int(match[2])) if match else (transform, None)


def is_known(transform: str) -> bool:
    """Whether this version of Icekeeper can apply the transform."""
    name, number = parse_transform(transform)
    return name in NUMBERED if number is not None else name in ("identity", "void", *CALENDAR)


def applies(transform: str, iceberg_type: str) -> bool:
    """Whether a transform other than ``void`` accepts columns of this type."""
    kind = re.split(r"[(\[]", iceberg_type)[0]
    name, _ = parse_transform(transform)
    if name == "void" or not is_known(transform):
        return False
    if name == "identity":
        return kind not in UNORDERED
    if name == "bucket":
        return kind not in NO_BUCKETS
    if name == "truncate":
        return kind in _TRUNCATED
    return kind in (TIMESTAMPS if name == "hour" else UNITS_PER_DAY)


def partition_type(table_schemas: Sequence[Mapping[str, Any]], field: Mapping[str, Any]) -> str:
    """The result type of a partition field.

    ``table_schemas`` has every schema of the table, the current schema first, because a field may partition by a
    column that the current schema no longer has.

    Raises:
        TableUnsupported: the transform is unknown, or its source column is in no schema.
    """
    transform = str(field["transform"])
    if not is_known(transform):
        raise TableUnsupported(f"partition transform {transform} is unknown; Icekeeper must not write this table")
    fixed = _RESULTS.get(parse_transform(transform)[0])
    if fixed is not None:
        return fixed
    for schema in table_schemas:
        found = column_type(schema, int(field["source-id"]))
        if found is not None:
            return found
    raise TableUnsupported(f"partition field {field['name']} refers to column {field['source-id']}, which is unknown")


def days_of(year: int, month: int) -> int:
    """Days from 1970-01-01 to the first of a month of any year; month 13 is the next January."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    # Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, so that leap days come last.
    year -= month <= 2
    shifted = month - 3 if month > 2 else month + 9
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * shifted + 2) // 5 - 719468


def span_of(transform: str, value: int) -> tuple[int, int]:
    """The first microsecond of unit ``value`` (year, month, day or hour) since 1970, and of the next unit."""
    if transform in MICROS:
        return value * MICROS[transform], (value + 1) * MICROS[transform]
    months = MONTHS[transform]
    return days_of(1970, value * months + 1) * MICROS_PER_DAY, days_of(1970, (value + 1) * months + 1) * MICROS_PER_DAY


def unit_of(transform: str, micros: int) -> int:
    """The unit (year, month, day or hour) since 1970 that contains a moment in microseconds since 1970."""
    if transform in MICROS:
        return micros // MICROS[transform]
    found = _EPOCH + timedelta(microseconds=micros)
    years = found.year - 1970
    return years if transform == "year" else years * 12 + found.month - 1


def floored(transform: str, micros: int) -> int:
    """The first microsecond of the unit that contains a moment."""
    return span_of(transform, unit_of(transform, micros))[0]
