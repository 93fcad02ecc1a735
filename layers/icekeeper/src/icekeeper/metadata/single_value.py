"""Iceberg's binary single-value serialization (specification, appendix D) of raw values.

A raw value is what Avro or Parquet stores: dates as days, times and timestamps as integers, decimals as an unscaled
integer or its big-endian bytes, uuids and fixed as bytes.
"""

from __future__ import annotations

import struct
from typing import Any

__all__ = [
    "UNITS_PER_DAY",
    "comparable",
    "decimal_unscaled",
    "decode",
    "encode",
    "is_utf8",
    "least_decimal",
    "truncated_lower",
    "truncated_upper",
]

_INT32 = frozenset({"int", "date"})
_INT64 = frozenset({"long", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_DAY_S = 86_400
UNITS_PER_DAY = {
    **dict.fromkeys(("timestamp", "timestamptz"), _DAY_S * 10**6),
    **dict.fromkeys(("timestamp_ns", "timestamptz_ns"), _DAY_S * 10**9),
}
"""Of each type of timestamp, which may have been a date: its values were days, of four bytes (rule 22)."""
_MAX_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def encode(iceberg_type: str, raw: Any) -> bytes:
    """The single-value bytes of a raw value of a primitive type."""
    if iceberg_type in _INT32:
        return struct.pack("<i", raw)
    if iceberg_type in _INT64:
        return struct.pack("<q", raw)
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
    """The raw value of single-value bytes; those of a promoted type may have their old width (rule 22).

    Raises:
        ValueError: the bytes are not a value of that type.
    """
    if iceberg_type in _INT32 | _INT64:
        if len(value) not in (4, 8):
            raise ValueError(f"{len(value)} bytes are no {iceberg_type}")
        units = UNITS_PER_DAY.get(iceberg_type, 1) if len(value) == 4 else 1
        return int.from_bytes(value, "little", signed=True) * units
    if iceberg_type in ("float", "double"):
        if len(value) not in (4, 8):
            raise ValueError(f"{len(value)} bytes are no {iceberg_type}")
        return struct.unpack("<f" if len(value) == 4 else "<d", value)[0]
    if iceberg_type == "boolean":
        return value != b"\x00"
    if iceberg_type == "uuid" and len(value) != 16:
        raise ValueError(f"{len(value)} bytes are no uuid")
    return value.decode() if iceberg_type == "string" else value


def comparable(iceberg_type: str, raw: Any) -> Any:
    """The raw value in a form that Python compares as Iceberg does (decimals as integers, -0.0 below 0.0)."""
    if iceberg_type.startswith("decimal"):
        return decimal_unscaled(raw)
    if iceberg_type in ("float", "double"):
        return raw, 0 if struct.pack("<d", raw)[-1] & 0x80 else 1
    if iceberg_type == "string":
        return raw.encode() if isinstance(raw, str) else bytes(raw)
    return raw


def is_utf8(value: bytes) -> bool:
    """Whether these bytes are UTF-8; some writers write text, and so bounds of text, that is none (rule 217)."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def decimal_unscaled(raw: int | bytes) -> int:
    """The unscaled integer of a decimal that is stored as an integer or as big-endian bytes."""
    return raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)


def least_decimal(raw: bytes | None) -> bytes | None:
    """A decimal in as few bytes as it needs, so that equal values become equal bytes, however wide they were."""
    return None if raw is None else _least_bytes(decimal_unscaled(raw))


def _least_bytes(unscaled: int) -> bytes:
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def truncated_lower(iceberg_type: str, value: bytes, length: int) -> bytes:
    """A lower bound cut to ``length`` characters (strings) or bytes (binary); other types stay whole."""
    if iceberg_type == "string":
        return value.decode()[:length].encode()
    return value[:length] if iceberg_type == "binary" else value


def truncated_upper(iceberg_type: str, value: bytes, length: int) -> bytes | None:
    """An upper bound cut as a lower one, then rounded up so that it is not below the value; ``None``: impossible.

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
