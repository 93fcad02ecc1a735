"""Reads and skips values in Avro's binary encoding (specification of Avro, "Binary encoding").

A reader gets the bytes of a block and where in them to begin, and returns the value and where it ends; a skipper
returns only that.  On damaged bytes both raise any exception, or end behind the block: whoever calls them must look.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

__all__ = [
    "PLAIN_READERS",
    "Reader",
    "Skipper",
    "array_reader",
    "empty_items_reader",
    "fixed_reader",
    "items_skipper",
    "keyed_bytes_skipper",
    "keyed_reader",
    "numbers_skipper",
    "optional_reader",
    "optional_skipper",
    "read_bytes",
    "read_long",
    "read_string",
    "record_reader",
    "require_possible",
    "skip_bytes",
    "skip_empty_items",
    "skip_long",
    "skip_null",
    "then",
]

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
Skipper: TypeAlias = Callable[[bytes, int], int]

_64_BITS = (1 << 64) - 1
# So many records of a block, and so many items that are passed over, may take no bytes at all.
_MOST_EMPTY = 4096
# And so many that are read, nulls and others: each of these becomes an object (rule 276).
_MOST_NULLS, _MOST_EMPTY_READ = 1024, 64


def require_possible(count: int, size: int) -> int:
    """The number of items, unless so many bytes cannot hold them: a damaged number would be counted to for years
    (rule 248).

    Raises:
        ValueError: they cannot.
    """
    if count > max(size, _MOST_EMPTY):
        raise ValueError(f"{count} items are said to lie in {size} bytes")
    return count


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """An int or long."""
    number = data[at]
    at += 1
    if number > 127:
        number &= 127
        shift = 7
        while True:
            more = data[at]
            at += 1
            number |= (more & 127) << shift
            if more < 128:
                break
            shift += 7
            if shift > 63:
                raise ValueError("a number has more than 64 bits")
        number &= _64_BITS
    return (number >> 1) ^ -(number & 1), at


def skip_long(data: bytes, at: int) -> int:
    """Where an int or long ends."""
    while data[at] > 127:
        at += 1
    return at + 1


def skip_null(data: bytes, at: int) -> int:
    """Null takes no bytes."""
    return at


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    length = data[at]
    if not length & 0x81:  # a number of one byte, and not negative
        return length >> 1, at + 1
    length, at = read_long(data, at)
    if length < 0:
        raise ValueError(f"a value has {length} bytes")
    return length, at


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes; fewer than there should be, where the data end within them."""
    length, at = _read_length(data, at)
    end = at + length
    return data[at:end], end


def read_string(data: bytes, at: int) -> tuple[str, int]:
    """A text."""
    length, at = _read_length(data, at)
    end = at + length
    return data[at:end].decode(), end


def skip_bytes(data: bytes, at: int) -> int:
    """Where bytes or a text end."""
    length, at = _read_length(data, at)
    return at + length


def _packed_reader(layout: str) -> Reader:
    packed = struct.Struct(layout)
    return lambda data, at: (packed.unpack_from(data, at)[0], at + packed.size)


PLAIN_READERS: Mapping[str, Reader] = {
    "null": lambda data, at: (None, at),
    "boolean": lambda data, at: (data[at] == 1, at + 1),
    "int": read_long,
    "long": read_long,
    "float": _packed_reader("<f"),
    "double": _packed_reader("<d"),
    "bytes": read_bytes,
    "string": read_string,
}
"""Readers of the types that have no parts."""


def fixed_reader(width: int) -> Reader:
    """Reads so many bytes."""
    return lambda data, at: (data[at : at + width], at + width)


def then(read: Reader, make: Callable[[Any], Any]) -> Reader:
    """Reads a value and makes another one of it."""

    def made(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return make(value), at

    return made


def record_reader(fields: Sequence[tuple[str | None, Any]]) -> Reader:
    """Reads a record as a dict; a field without a name is passed over by its skipper."""

    def record(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values = {}
        for name, read in fields:
            if name is None:
                at = read(data, at)
            else:
                values[name], at = read(data, at)
        return values, at

    return record


def optional_reader(branches: Sequence[Reader]) -> Reader:
    """Reads a value of a union."""

    def value(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = read_long(data, at)
        return branches[_natural(branch)](data, at)

    # Nearly every field of a manifest may be null, which comes first.
    if len(branches) != 2 or branches[0] is not PLAIN_READERS["null"]:
        return value
    present = branches[1]

    def value_or_null(data: bytes, at: int) -> tuple[Any, int]:
        branch = data[at]
        if branch == 0:
            return None, at + 1
        return present(data, at + 1) if branch == 2 else value(data, at)

    return value_or_null


def optional_skipper(branches: Sequence[Skipper]) -> Skipper:
    """Passes over a value of a union."""

    def skip(data: bytes, at: int) -> int:
        branch, at = read_long(data, at)
        return branches[_natural(branch)](data, at)

    if len(branches) != 2 or branches[0] is not skip_null:
        return skip
    present = branches[1]

    def skip_if_present(data: bytes, at: int) -> int:
        branch = data[at]
        if branch == 0:
            return at + 1
        return present(data, at + 1) if branch == 2 else skip(data, at)

    return skip_if_present


def _natural(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is no index")
    return number


def _block_items(data: bytes, at: int) -> tuple[int, int]:
    """How many items the next block of an array or map has; 0: it has ended.

    Raises:
        ValueError: more than the data can hold.
    """
    count = data[at]
    if not count & 0x81:
        return count >> 1, at + 1
    count, at = read_long(data, at)
    if count < 0:  # the block's size in bytes follows, for those who jump over it
        count, at = -count, skip_long(data, at)
    return require_possible(count, len(data) - at), at


def array_reader(item: Reader, most: int | None = None) -> Reader:
    """Reads the items of an array as a list; more than ``most`` are an error."""

    def items(data: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        count, at = _block_items(data, at)
        while count:
            if most is not None and len(values) + count > most:
                raise ValueError(f"an array has {len(values) + count} items, {most} may be")
            for _ in range(count):
                value, at = item(data, at)
                values.append(value)
            count, at = _block_items(data, at)
        return values, at

    return items


def keyed_reader(value: Reader) -> Reader:
    """Reads an array of pairs of an int or long and a value as a dict."""

    def pairs(data: bytes, at: int) -> tuple[dict[int, Any], int]:
        values = {}
        count, at = _block_items(data, at)
        while count:
            for _ in range(count):
                key, at = read_long(data, at)
                values[key], at = value(data, at)
            count, at = _block_items(data, at)
        return values, at

    return pairs


def empty_items_reader(item: Reader) -> Reader:
    """Reads the items of an array that take no bytes each, so that no number of bytes says how many there may be."""

    most = _MOST_NULLS if item is PLAIN_READERS["null"] else _MOST_EMPTY_READ

    def items(data: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        count, at = _block_items(data, at)
        while count:
            if len(values) + count > most:
                raise ValueError(f"an array has {len(values) + count} items that take no bytes")
            values += (item(data, at)[0] for _ in range(count))
            count, at = _block_items(data, at)
        return values, at

    return items


def skip_empty_items(data: bytes, at: int) -> int:
    """Passes over the items of an array that take no bytes each, without counting to their number."""
    count, at = _block_items(data, at)
    while count:
        count, at = _block_items(data, at)
    return at


def items_skipper(item: Skipper) -> Skipper:
    """Passes over the items of an array or map."""
    if item is skip_null:
        return skip_empty_items

    def skip(data: bytes, at: int) -> int:
        count, at = _block_items(data, at)
        while count:
            for _ in range(count):
                at = item(data, at)
            count, at = _block_items(data, at)
        return at

    return skip


def numbers_skipper(each: int) -> Skipper:
    """Passes over an array whose items are so many ints and longs each: a regular expression does so in one step."""

    def skip(data: bytes, at: int) -> int:
        count = data[at]
        if count and not count & 0x81:  # fewer than 64, as a number of one byte; most often there is one block
            found = _numbers(each * (count >> 1), b"\0")(data, at + 1)
            if found is not None:
                return found.end()
        items, at = _block_items(data, at)
        while items:
            found = _numbers(each * items)(data, at)
            if found is None:
                raise ValueError("an array of numbers ends too early")
            items, at = _block_items(data, found.end())
        return at

    return skip


@lru_cache(maxsize=1024)
def _numbers(count: int, then: bytes = b"") -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Finds the end of so many ints and longs, of ten bytes at most, without ever going back."""
    return re.compile(rb"(?:[\x80-\xff]{0,9}+[\x00-\x7f]){%d}+%b" % (count, then)).match


def keyed_bytes_skipper(data: bytes, at: int) -> int:
    """Passes over an array of pairs of an int or long and bytes."""
    count, at = _block_items(data, at)
    while count:
        for _ in range(count):
            if data[at] > 127:
                at += 1
                if data[at] > 127:
                    at = read_long(data, at - 1)[1] - 1  # which limits its bytes, as reading it later does
            length = data[at + 1]
            at = skip_bytes(data, at + 1) if length & 0x81 else at + 2 + (length >> 1)
        count = data[at]
        if count:
            count, at = _block_items(data, at)
        else:
            at += 1
    return at
