"""How much memory rows take as Arrow has them, as far as types and sizes tell (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from icekeeper.errors import TableUnsupported
from icekeeper.rows.arrow_schema import arrow_type

__all__ = ["likely_row_bytes", "value_bytes"]

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
