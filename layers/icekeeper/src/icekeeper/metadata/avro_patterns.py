"""Describes encoded values as regular expressions, which find where a value ends in one step of the interpreter.

An expression is made of a value that was seen, and matches the values that are laid out as it: the branches of unions,
the lengths of texts and the numbers of items, which say where everything ends, stand in it literally.  So it matches
nothing but what a reader of the schema would pass over as well, and of two that differ no value matches both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from icekeeper.metadata.avro_types import AvroTypes
from icekeeper.metadata.avro_values import read_long

__all__ = ["PatternUnknownError", "alternatives", "value_pattern"]

# An int or long, of ten bytes at most, as whoever reads them demands; never gone back into.
_NUMBER = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_NUMBERS = frozenset({"int", "long", "enum"})
_TEXTS = frozenset({"string", "bytes"})
_WIDTHS = {"boolean": 1, "float": 4, "double": 8}
# Longer texts have lengths of three bytes and more; no path is so long.
_LONGEST_TEXT = 8191
# Lengths of one byte; numbers and truncated texts, as bounds are, come first.
_SHORT = sorted(range(64), key=lambda length: (length not in (8, 4, 16), length))
_SHORT_TEXT = b"(?>%b)" % b"|".join(re.escape(bytes([2 * length])) + b".{%d}" % length for length in _SHORT)


class PatternUnknownError(Exception):
    """The value is laid out in a way that is not described here, as arrays of several blocks are."""


def alternatives(patterns: Iterable[bytes]) -> bytes:
    """Matches what any of these matches."""
    return b"(?>%b)" % b"|".join(patterns)


def value_pattern(types: AvroTypes, schema: Any, data: bytes, at: int) -> tuple[bytes, int]:
    """The expression for values laid out as the one that begins here, and where this one ends.

    Raises:
        PatternUnknownError: there is none.
        Exception: the data are damaged.
    """
    schema = types.defined(schema)
    if isinstance(schema, list):
        branch, after = read_long(data, at)
        if not 0 <= branch < len(schema):
            raise PatternUnknownError
        inner, end = value_pattern(types, schema[branch], data, after)
        return re.escape(data[at:after]) + inner, end
    kind = schema["type"]
    if kind == "record":
        parts = []
        for field in schema["fields"]:
            part, at = value_pattern(types, field["type"], data, at)
            parts.append(part)
        return b"".join(parts), at
    if kind in _TEXTS:
        length, after = read_long(data, at)
        if not 0 <= length <= _LONGEST_TEXT:
            raise PatternUnknownError
        return re.escape(data[at:after]) + b".{%d}" % length, after + length
    if kind == "array":
        return _array_pattern(types, schema, data, at)
    return _any_value(types, schema), types.skipper(schema)(data, at)


def _array_pattern(types: AvroTypes, schema: Any, data: bytes, at: int) -> tuple[bytes, int]:
    """For arrays of as many items in one block."""
    count, after = read_long(data, at)
    if count == 0:
        return re.escape(data[at:after]), after
    end = types.skipper(schema)(data, at)
    pattern = b"%b(?:%b){%d}+\x00" % (re.escape(data[at:after]), _any_value(types, schema["items"]), count)
    if count < 0 or not re.compile(pattern, re.DOTALL).fullmatch(data, at, end):
        raise PatternUnknownError
    return pattern, end


def _any_value(types: AvroTypes, schema: Any) -> bytes:
    """Matches every value of a type, texts only below 64 bytes."""
    schema = types.defined(schema)
    if isinstance(schema, list):
        if len(schema) > 64:
            raise PatternUnknownError
        return alternatives(re.escape(bytes([2 * i])) + _any_value(types, part) for i, part in enumerate(schema))
    kind = schema["type"]
    if kind == "null":
        return b""
    if kind in _NUMBERS:
        return _NUMBER
    if kind in _WIDTHS or kind == "fixed":
        return b".{%d}" % (_WIDTHS[kind] if kind in _WIDTHS else int(schema["size"]))
    if kind in _TEXTS:
        return _SHORT_TEXT
    if kind == "record":
        return b"".join(_any_value(types, field["type"]) for field in schema["fields"])
    raise PatternUnknownError
