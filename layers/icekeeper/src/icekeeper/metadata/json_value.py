"""Parses column defaults of schemas: Iceberg's JSON single-value serialization of primitive values.

Source: specification, appendix D, "JSON single-value serialization".  Results are raw values, as Parquet stores them:
dates as days, times and timestamps as micro- or nanoseconds, decimals unscaled, uuids, fixed and binary as bytes.
"""

from __future__ import annotations

import datetime
import re
import uuid
from decimal import Context, Decimal
from typing import Any

from icekeeper.errors import TableUnsupported
from icekeeper.model import PartitionValue

__all__ = ["raw_from_json"]

_EPOCH = datetime.date(1970, 1, 1)
_NANOS = {"time": 1000, "timestamp": 1000, "timestamptz": 1000, "timestamp_ns": 1, "timestamptz_ns": 1}
"""Nanoseconds per stored unit."""
_MOMENT = re.compile(
    r"(?:(?P<date>[+-]?\d{4,}-\d\d-\d\d)T)?(?P<h>\d\d):(?P<m>\d\d)(?::(?P<s>\d\d)(?:\.(?P<frac>\d{1,9}))?)?"
    r"(?P<zone>Z|[+-]\d\d:\d\d)?"
)
_DECIMALS = Context(prec=76)


def raw_from_json(iceberg_type: str, value: Any) -> PartitionValue:
    """The raw value of a JSON value of a primitive type.

    Raises:
        TableUnsupported: it is not a value of that type.
    """
    try:
        return _raw(iceberg_type, value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise TableUnsupported(f"the default {value!r} is no value of type {iceberg_type}") from error


def _raw(iceberg_type: str, value: Any) -> PartitionValue:
    if iceberg_type in ("int", "long"):
        return _expect(value, int)
    if iceberg_type in ("float", "double"):
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
    if iceberg_type in _NANOS:
        return _moment(iceberg_type, value)
    if iceberg_type == "uuid":
        return uuid.UUID(value).bytes
    if iceberg_type == "binary" or iceberg_type.startswith("fixed"):
        return bytes.fromhex(value)
    if match := re.fullmatch(r"decimal\(\s*\d+\s*,\s*(\d+)\s*\)", iceberg_type):
        unscaled = Decimal(value).scaleb(int(match[1]), _DECIMALS)
        if unscaled != unscaled.to_integral_value():
            raise ValueError(value)
        return int(unscaled)
    raise ValueError(iceberg_type)


def _expect(value: Any, kind: type[int]) -> int:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ValueError(value)
    return value


def _moment(iceberg_type: str, text: str) -> int:
    """A time or timestamp in its stored unit; parsed here, because Python's types cannot hold nanoseconds."""
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
    return nanos // _NANOS[iceberg_type]
