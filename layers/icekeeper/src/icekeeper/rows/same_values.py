"""Tells whether values of a file's type are the same values in a table's type (pure) (rule 181).

Arrow casts far more than Iceberg promotes: text to the number that it spells, ``true`` to 1, a moment to its time of
day, a double to the nearest float.  Engines do not, or do otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyarrow import types

__all__ = ["has_same_values"]


def _is_text(kind: pa.DataType) -> bool:
    """Texts and bytes of any length: some writers do not say which of them they are."""
    return any(
        is_it(kind)
        for is_it in (
            *(types.is_string, types.is_large_string, types.is_string_view),
            *(types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary),
        )
    )


_FAMILIES: Mapping[str, Callable[[pa.DataType], bool]] = {
    "boolean": types.is_boolean,
    "integer": types.is_integer,
    "float": types.is_floating,
    "decimal": types.is_decimal,
    "text": _is_text,
    "date": types.is_date,
    "time": types.is_time,
    "timestamp": types.is_timestamp,
    "null": types.is_null,
}
# Besides their own: a date may have become a timestamp, and Avro and old writers give times as integers alone.
_MORE = {("integer", "date"), ("integer", "time"), ("integer", "timestamp"), ("date", "timestamp")}


def has_same_values(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a column of one Arrow type may be cast to that of a table; ``target`` is a primitive Iceberg type's.

    The cast itself still refuses single values, such as those out of range.
    """
    here, there = _family(_plain(source)), _family(_plain(target))
    if here == there == "float":
        return bool(source.bit_width <= target.bit_width)
    return here is not None and (here in (there, "null") or (here, there) in _MORE)


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if types.is_dictionary(kind) else kind


def _family(kind: pa.DataType) -> str | None:
    return next((name for name, is_of_it in _FAMILIES.items() if is_of_it(kind)), None)
