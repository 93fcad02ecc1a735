"""Reads and skips values in Avro's binary encoding, by the types of a writer's schema.

A *reader* gets a block's bytes and a position, and returns the value and the position after it.  A *skipper* returns
only the position.  For damaged bytes both may raise any exception, or return a position after the end of the block,
which callers check.
Source: Apache Avro specification, "Binary encoding".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeAlias

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
Skipper: TypeAlias = Callable[[bytes, int], int]

_64_BITS = (1 << 64) - 1
# The most records of a block, or skipped items of an array, that take no bytes.
_MOST_EMPTY = 4096
# The same for items that are read, nulls and other items: each becomes an object (rule: bound-foreign-bytes).
_MOST_NULLS, _MOST_EMPTY_READ = 1024, 64
# Of a schema: nested types, and fields of a record that take no bytes.
_MOST_LEVELS, _MOST_EMPTY_FIELDS = 64, 64


def require_possible(count: int, size: int) -> int:
    """``count`` itself, after a check that ``size`` bytes can contain so many items.

    Without this check, a loop over a damaged count could take years (rule: damage-ends-in-a-named-error).

    Raises:
        ValueError: ``size`` bytes cannot contain so many items.
    """
    if count > max(size, _MOST_EMPTY):
        raise ValueError(f"{size} bytes cannot contain {count} items")
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


def avro_long(value: int) -> bytes:
    """An Avro int or long: zig-zag, in as few groups of seven bits as possible."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def skip_long(data: bytes, at: int) -> int:
    """Skips an int or long."""
    while data[at] > 127:
        at += 1
    return at + 1


def skip_null(data: bytes, at: int) -> int:
    """Null takes no bytes."""
    return at


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    length = data[at]
    if not length & 0x81:  # a single byte, and not negative
        return length >> 1, at + 1
    length, at = read_long(data, at)
    if length < 0:
        raise ValueError(f"a value has {length} bytes")
    return length, at


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes; fewer than their length says if the data end too early."""
    length, at = _read_length(data, at)
    end = at + length
    return data[at:end], end


def read_string(data: bytes, at: int) -> tuple[str, int]:
    """A text."""
    length, at = _read_length(data, at)
    end = at + length
    return data[at:end].decode(), end


def _skip_bytes(data: bytes, at: int) -> int:
    """Skips bytes or a text."""
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


def then(read: Reader, make: Callable[[Any], Any]) -> Reader:
    """Reads a value and converts it with ``make``."""

    def made(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return make(value), at

    return made


def _record_reader(fields: Sequence[tuple[str | None, Any]]) -> Reader:
    """Reads a record as a dict; a field without a name has a skipper."""

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

    # The fast path: nearly every field of a manifest is a union of null and a type.
    if len(branches) != 2 or branches[0] is not PLAIN_READERS["null"]:
        return value
    present = branches[1]

    def value_or_null(data: bytes, at: int) -> tuple[Any, int]:
        branch = data[at]
        if branch == 0:
            return None, at + 1
        return present(data, at + 1) if branch == 2 else value(data, at)

    return value_or_null


def _optional_skipper(branches: Sequence[Skipper]) -> Skipper:
    """Skips a value of a union."""

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
        raise ValueError(f"{number} is not an index")
    return number


def _block_items(data: bytes, at: int) -> tuple[int, int]:
    """The number of items in the next block of an array or map; 0: there are no more blocks.

    Raises:
        ValueError: the data cannot contain so many items.
    """
    count = data[at]
    if not count & 0x81:
        return count >> 1, at + 1
    count, at = read_long(data, at)
    if count < 0:  # then the block's size in bytes follows
        count, at = -count, skip_long(data, at)
    return require_possible(count, len(data) - at), at


def array_reader(item: Reader, most: int | None = None) -> Reader:
    """Reads an array as a list; more than ``most`` items are an error."""

    def items(data: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        count, at = _block_items(data, at)
        while count:
            if most is not None and len(values) + count > most:
                raise ValueError(f"an array has {len(values) + count} items, at most {most} are allowed")
            for _ in range(count):
                value, at = item(data, at)
                values.append(value)
            count, at = _block_items(data, at)
        return values, at

    return items


def keyed_reader(value: Reader) -> Reader:
    """Reads an array of (int or long, value) pairs as a dict."""

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


def _items_skipper(item: Skipper) -> Skipper:
    """Skips an array or map."""
    has_bytes = item is not skip_null

    def skip(data: bytes, at: int) -> int:
        count, at = _block_items(data, at)
        while count:
            if has_bytes:  # otherwise the loop could take years
                for _ in range(count):
                    at = item(data, at)
            count, at = _block_items(data, at)
        return at

    return skip


def _numbers_skipper(each: int) -> Skipper:
    """Skips an array whose items are ``each`` ints and longs, in a single match of a regular expression."""

    def skip(data: bytes, at: int) -> int:
        count = data[at]
        if count and not count & 0x81:  # fewer than 64 items; usually there is one block
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


ANY_LONG = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
"""Matches an int or long of at most ten bytes, as readers require; possessive, so that no match backtracks into it."""
# Lengths that take one byte; the lengths of numbers and truncated texts, which bounds have, come first.
_SHORT = sorted(range(64), key=lambda length: (length not in (8, 4, 16), length))
SHORT_BYTES = b"(?>%b)" % b"|".join(re.escape(bytes([2 * length])) + b".{%d}+" % length for length in _SHORT)
"""Matches bytes or a text of less than 64 bytes."""


@lru_cache(maxsize=1024)
def _numbers(count: int, then: bytes = b"") -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Matches ``count`` ints and longs."""
    return re.compile(b"(?:%b){%d}+%b" % (ANY_LONG, count, then)).match


# Making the expression takes as long as a few hundred steps.
_WORTH_EXPRESSION = 16


@lru_cache(maxsize=256)
def _short_pairs(count: int) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Matches ``count`` pairs of a number and less than 64 bytes, and the end of their array."""
    return re.compile(b"(?:%b%b){%d}+\0" % (ANY_LONG, SHORT_BYTES, count), re.DOTALL).match


def _skip_keyed_bytes(data: bytes, at: int) -> int:
    """Skips an array of (int or long, bytes) pairs."""
    count, at = _block_items(data, at)
    if count >= _WORTH_EXPRESSION and (found := _short_pairs(count)(data, at)) is not None:
        return found.end()
    while count:
        for _ in range(count):
            if data[at] > 127:
                at += 1
                if data[at] > 127:
                    at = read_long(data, at - 1)[1] - 1  # limits the length of the number, like a reader
            length = data[at + 1]
            at = _skip_bytes(data, at + 1) if length & 0x81 else at + 2 + (length >> 1)
        count = data[at]
        if count:
            count, at = _block_items(data, at)
        else:
            at += 1
    return at


# Most numbers have a single encoding; this does not match the others.
_LEAST_LONG = rb"(?>[\x80-\xff]{1,9}+[\x01-\x7f]|[\x00-\x7f])"


@lru_cache(maxsize=256)
def _plain_pairs(value: bytes, count: int) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Matches ``count`` pairs of a number and a value, and the end of their array, if all keys take as few bytes as
    possible."""
    return re.compile(b"(?:%b%b){%d}+\0" % (_LEAST_LONG, value, count), re.DOTALL).match


def picking_reader(keys: Collection[int], read: Reader) -> Reader:
    """Reads the pairs of these keys (at least one) of an array of (int or long, value) pairs as a dict, in a third of
    the time that all pairs take; ``read`` reads the values: numbers or bytes."""
    has_numbers = read is read_long
    value = ANY_LONG if has_numbers else SHORT_BYTES
    decode = (lambda encoded: read_long(encoded, 0)[0]) if has_numbers else itemgetter(slice(1, None))
    known = {avro_long(key): key for key in keys}
    own = b"(?>%b)" % b"|".join(map(re.escape, known))
    # Each match is a run of other pairs and a wanted pair, or the rest of the array, so no match begins inside a pair.
    pick = re.compile(b"(?:(?!%b)%b%b)*+(?:(%b)(%b)|\0)" % (own, ANY_LONG, value, own, value), re.DOTALL).findall
    read_all = keyed_reader(read)

    def picked(data: bytes, at: int) -> tuple[dict[int, Any], int]:
        count, begin = _block_items(data, at)
        if count and (found := _plain_pairs(value, count)(data, begin)) is not None:
            end = found.end()
            return {known[key]: decode(encoded) for key, encoded in pick(data, begin, end) if key}, end
        values, end = read_all(data, at)
        return {key: value for key, value in values.items() if key in keys}, end

    return picked


AS_LONG = frozenset({"int", "long", "enum"})
"""Types that are stored as a long."""
AS_BYTES = frozenset({"string", "bytes"})
"""Types that are stored as a length and bytes."""
_WIDTHS: Mapping[str, int] = {"boolean": 1, "float": 4, "double": 8}
_KINDS = AS_LONG | AS_BYTES | _WIDTHS.keys() | {"null", "fixed", "array", "map", "record"}


def width_of(schema: Mapping[str, Any]) -> int | None:
    """The width of values of a type in bytes; ``None``: it varies."""
    return int(schema["size"]) if schema["type"] == "fixed" else _WIDTHS.get(schema["type"])


class AvroTypes:
    """A schema, whose types may refer to each other by name, and readers and skippers for its types.

    They are built once per schema.  An unknown type raises KeyError.  Logical types are ignored.

    fastavro interprets the schema for each field and decodes all fields, byte by byte from a stream.  These readers
    take a third of the time (platform: manifest-decoder-speed).
    """

    def __init__(self, schema: Any, most_items: int | None = None) -> None:
        """``schema``: as parsed by fastavro; ``most_items``: the most items of an array or map."""
        self.schema: Mapping[str, Any] = schema
        self._named: Mapping[str, Any] = schema["__named_schemas"]
        self._most_items = most_items
        self._readers: dict[str, Reader] = {}
        self._skippers: dict[str, Skipper] = {}

    def reader(self, schema: Any) -> Reader:
        """A reader for values of a type; records become dicts."""
        schema = self.defined(schema)
        if isinstance(schema, list):
            return optional_reader([self.reader(branch) for branch in schema])
        kind = schema["type"]
        if kind == "record":
            name = str(schema["name"])
            if name not in self._readers:
                # A recursive type looks up its own reader when it is called.
                self._readers[name] = lambda data, at: self._readers[name](data, at)
                fields = [(str(field["name"]), self.reader(field["type"])) for field in schema["fields"]]
                self._readers[name] = _record_reader(fields)
            return self._readers[name]
        if kind in PLAIN_READERS:
            return PLAIN_READERS[kind]
        if kind == "fixed":
            width = schema["size"]
            return lambda data, at: (data[at : at + width], at + width)
        if kind == "enum":
            symbols = dict(enumerate(schema["symbols"]))
            return then(read_long, symbols.__getitem__)
        if kind == "array":
            item = self.reader(schema["items"])
            if self.skipper(schema["items"]) is not skip_null:
                return array_reader(item, self._most_items)
            # Only a limit bounds the number of items that take no bytes.
            return array_reader(item, _MOST_NULLS if item is PLAIN_READERS["null"] else _MOST_EMPTY_READ)
        if kind == "map":
            return then(array_reader(_pair_reader(self.reader(schema["values"])), self._most_items), dict)
        raise KeyError(kind)

    def fields_reader(self, names: Mapping[str, str]) -> Reader:
        """A reader for some fields of the schema's records; ``names``: name in the file → name in the result."""
        fields: list[tuple[str | None, Any]] = []
        for field in self.schema["fields"]:
            if field["name"] in names:
                fields.append((names[field["name"]], self.reader(field["type"])))
            elif (skip := self.skipper(field["type"])) is not skip_null:
                fields.append((None, skip))
        return _record_reader(fields)

    def skipper(self, schema: Any) -> Skipper:
        """A skipper for values of a type."""
        schema = self.defined(schema)
        if isinstance(schema, list):
            return _optional_skipper([self.skipper(branch) for branch in schema])
        kind = schema["type"]
        if kind == "record":
            name = str(schema["name"])
            if name not in self._skippers:
                self._skippers[name] = lambda data, at: self._skippers[name](data, at)
                self._skippers[name] = _record_skipper([self.skipper(field["type"]) for field in schema["fields"]])
            return self._skippers[name]
        if kind in AS_LONG:
            return skip_long
        if kind in AS_BYTES:
            return _skip_bytes
        if kind == "null":
            return skip_null
        if (width := width_of(schema)) is not None:
            return (lambda data, at: at + width) if width else skip_null
        if kind == "array":
            return self._array_skipper(schema["items"])
        if kind == "map":
            value = self.skipper(schema["values"])
            return _items_skipper(lambda data, at: value(data, _skip_bytes(data, at)))
        raise KeyError(kind)

    def _array_skipper(self, items: Any) -> Skipper:
        item = self.defined(items)
        is_record = isinstance(item, dict) and item["type"] == "record"
        parts = [self.defined(part) for part in ((f["type"] for f in item["fields"]) if is_record else [items])]
        kinds = ["union" if isinstance(part, list) else str(part["type"]) for part in parts]
        if kinds and AS_LONG.issuperset(kinds):
            return _numbers_skipper(len(kinds))
        if len(kinds) == 2 and kinds[0] in AS_LONG and kinds[1] in AS_BYTES:
            return _skip_keyed_bytes
        return _items_skipper(self.skipper(items))

    def defined(self, schema: Any) -> Any:
        """The definition of a type, or the branches of a union."""
        while True:
            kind = schema["type"] if isinstance(schema, dict) else schema
            if isinstance(kind, str):
                if kind in _KINDS:
                    return schema if isinstance(schema, dict) else {"type": kind}
                return self._named[kind]
            if isinstance(kind, list):
                return kind
            schema = kind


def _pair_reader(value: Reader) -> Reader:
    def pair(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = read_string(data, at)
        found, at = value(data, at)
        return (key, found), at

    return pair


def _record_skipper(fields: Sequence[Skipper]) -> Skipper:
    fields = [field for field in fields if field is not skip_null]
    if not fields:
        return skip_null

    def skip(data: bytes, at: int) -> int:
        for field in fields:
            at = field(data, at)
        return at

    return skip


def require_bounded(schema: Any, most_parts: int) -> None:
    """Check that a schema has few parts and levels (rule: bound-foreign-bytes).

    A type that is named twice counts twice, because its values are read twice.  A recursive reference counts once.

    ``schema`` has the full names of types.

    Raises:
        ValueError: it has too many parts or levels, a fixed type has no size, a name is not text, or a record has many
            fields that take no bytes.
    """
    parts, levels, _ = _measured(schema, {})
    if parts > most_parts:
        raise ValueError(
            f"its schema has {'more than ' * (parts > 2**63)}{min(parts, 2**63)} parts, "
            f"at most {most_parts} are allowed"
        )
    if levels > _MOST_LEVELS:
        raise ValueError(f"its schema has {levels} levels, at most {_MOST_LEVELS} are allowed")


def _measured(schema: Any, named: dict[str, tuple[int, int, bool]]) -> tuple[int, int, bool]:
    """The parts and levels of a type, and whether its values take no bytes."""
    if isinstance(schema, str):
        return named.get(schema, (1, 1, schema == "null"))
    if isinstance(schema, list):
        return *_together([_measured(part, named) for part in schema])[:2], False
    kind = schema["type"]
    name = schema["name"] if kind in ("record", "fixed", "enum") else None
    if name is not None:
        named[name] = 1, 1, False
    if kind == "record":
        for field in schema["fields"]:
            if field.get("field-id") is not None:
                int(field["field-id"])  # it must be a number
            if not isinstance(field["name"], str):
                raise ValueError("a field of its schema has a name that is not text")
        found = _together([_measured(field["type"], named) for field in schema["fields"]])
    elif kind in ("array", "map"):
        found = *_together([_measured(schema["items" if kind == "array" else "values"], named)])[:2], False
    elif kind == "fixed":
        size = schema["size"]
        if not isinstance(size, int) or not 0 <= size < 2**31:
            raise ValueError(f"its type {name} has no size")
        found = 1, 1, size == 0
    else:
        found = (1, 1, False) if kind == "enum" else _measured(kind, named)
    if name is not None:
        named[name] = found
    return found


def _together(inner: Sequence[tuple[int, int, bool]]) -> tuple[int, int, bool]:
    empty = sum(is_empty for _, _, is_empty in inner)
    if empty > _MOST_EMPTY_FIELDS:
        raise ValueError(f"its schema has a record with {empty} fields that take no bytes")
    return 1 + sum(p for p, _, _ in inner), 1 + max((levels for _, levels, _ in inner), default=0), empty == len(inner)
