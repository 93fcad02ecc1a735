"""Makes readers and skippers for the types of a writer's schema, once per schema.

Values stay as they are stored: logical types are ignored.  fastavro decodes each field anew by the schema, byte by byte
out of a stream, also those that nobody asks for; what is made here takes a third of its time (platform 49).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icekeeper.metadata.avro_values import (
    PLAIN_READERS,
    Reader,
    Skipper,
    array_reader,
    empty_items_reader,
    fixed_reader,
    items_skipper,
    keyed_bytes_skipper,
    numbers_skipper,
    optional_reader,
    optional_skipper,
    read_long,
    read_string,
    record_reader,
    skip_bytes,
    skip_long,
    skip_null,
    then,
)

__all__ = ["AvroTypes", "require_bounded"]

_NUMBERS = frozenset({"int", "long", "enum"})
_TEXTS = frozenset({"string", "bytes"})
_KINDS = _NUMBERS | _TEXTS | {"null", "boolean", "float", "double", "fixed", "array", "map", "record"}
_WIDTHS: Mapping[str, int] = {"boolean": 1, "float": 4, "double": 8}


_MOST_LEVELS = 64
_MOST_EMPTY_FIELDS = 64


class AvroTypes:
    """The types of one schema, which may refer to each other by name."""

    def __init__(self, named: Mapping[str, Any], most_items: int | None = None) -> None:
        """``named``: full name → definition; ``most_items``: so many of one array or map are read, and no more."""
        self._named = named
        self._most_items = most_items
        self._readers: dict[str, Reader] = {}
        self._skippers: dict[str, Skipper] = {}

    def reader(self, schema: Any) -> Reader:
        """Reads values of a type; records become dicts.

        Raises:
            KeyError: the type is unknown.
        """
        schema = self.defined(schema)
        if isinstance(schema, list):
            return optional_reader([self.reader(branch) for branch in schema])
        if schema["type"] != "record":
            return self._reader(schema)
        name = str(schema["name"])
        if name not in self._readers:
            # What refers to the type from within it looks it up when it is called.
            self._readers[name] = lambda data, at: self._readers[name](data, at)
            fields = [(str(field["name"]), self.reader(field["type"])) for field in schema["fields"]]
            self._readers[name] = record_reader(fields)
        return self._readers[name]

    def fields_reader(self, record: Mapping[str, Any], names: Mapping[str, str]) -> Reader:
        """Reads these fields of a record, each under the name that it is given; what else it has is passed over.

        Raises:
            KeyError: a type is unknown.
        """
        fields: list[tuple[str | None, Any]] = []
        for field in record["fields"]:
            if field["name"] in names:
                fields.append((names[field["name"]], self.reader(field["type"])))
            elif (skip := self.skipper(field["type"])) is not skip_null:
                fields.append((None, skip))
        return record_reader(fields)

    def skipper(self, schema: Any) -> Skipper:
        """Passes over values of a type.

        Raises:
            KeyError: the type is unknown.
        """
        schema = self.defined(schema)
        if isinstance(schema, list):
            return optional_skipper([self.skipper(branch) for branch in schema])
        if schema["type"] != "record":
            return self._skipper(schema)
        name = str(schema["name"])
        if name not in self._skippers:
            self._skippers[name] = lambda data, at: self._skippers[name](data, at)
            self._skippers[name] = _record_skipper([self.skipper(field["type"]) for field in schema["fields"]])
        return self._skippers[name]

    def defined(self, schema: Any) -> Any:
        """The definition of a type, or the branches of a union.

        Raises:
            KeyError: the type is unknown.
        """
        while True:
            kind = schema["type"] if isinstance(schema, dict) else schema
            if isinstance(kind, str):
                if kind in _KINDS:
                    return schema if isinstance(schema, dict) else {"type": kind}
                return self._named[kind]
            if isinstance(kind, list):
                return kind
            schema = kind

    def _reader(self, schema: Mapping[str, Any]) -> Reader:
        kind = schema["type"]
        if kind in PLAIN_READERS:
            return PLAIN_READERS[kind]
        if kind == "fixed":
            return fixed_reader(schema["size"])
        if kind == "enum":
            symbols = dict(enumerate(schema["symbols"]))
            return then(read_long, symbols.__getitem__)
        if kind == "array":
            item = self.reader(schema["items"])
            return (
                empty_items_reader(item)
                if self.skipper(schema["items"]) is skip_null
                else array_reader(item, self._most_items)
            )
        if kind == "map":
            value = self.reader(schema["values"])
            return then(array_reader(_pair_reader(value), self._most_items), dict)
        raise KeyError(kind)

    def _skipper(self, schema: Mapping[str, Any]) -> Skipper:
        kind = schema["type"]
        if kind in _NUMBERS:
            return skip_long
        if kind in _TEXTS:
            return skip_bytes
        if kind == "null":
            return skip_null
        if kind in _WIDTHS or kind == "fixed":
            width = _WIDTHS[kind] if kind in _WIDTHS else int(schema["size"])
            return (lambda data, at: at + width) if width else skip_null
        if kind == "array":
            return self._array_skipper(schema["items"])
        if kind == "map":
            value = self.skipper(schema["values"])
            return items_skipper(lambda data, at: value(data, skip_bytes(data, at)))
        raise KeyError(kind)

    def _array_skipper(self, items: Any) -> Skipper:
        item = self.defined(items)
        is_record = isinstance(item, dict) and item["type"] == "record"
        parts = [self.defined(part) for part in ((f["type"] for f in item["fields"]) if is_record else [items])]
        kinds = ["union" if isinstance(part, list) else str(part["type"]) for part in parts]
        if kinds and _NUMBERS.issuperset(kinds):
            return numbers_skipper(len(kinds))
        if len(kinds) == 2 and kinds[0] in _NUMBERS and kinds[1] in _TEXTS:
            return keyed_bytes_skipper
        return items_skipper(self.skipper(items))


def _pair_reader(value: Reader) -> Reader:
    def pair(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = read_string(data, at)
        found, at = value(data, at)
        return (key, found), at

    return pair


def _record_skipper(fields: Sequence[Skipper]) -> Skipper:
    """Passes over these fields; those that take no bytes are not even looked at."""
    fields = [field for field in fields if field is not skip_null]
    if not fields:
        return skip_null

    def skip(data: bytes, at: int) -> int:
        for field in fields:
            at = field(data, at)
        return at

    return skip


def require_bounded(schema: Any, most_parts: int) -> None:
    """Check that a schema, written out, has few parts and levels: a type that is named twice counts twice, as its
    values do (rule 276).

    ``schema`` has the full names of types.  What a type has of itself counts once: its values take bytes.

    Raises:
        ValueError: it has more, a fixed type has no size, or a record has many fields that take no bytes.
    """
    parts, levels, _ = _measured(schema, {})
    if parts > most_parts:
        raise ValueError(
            f"its schema has {'more than ' * (parts > 2**63)}{min(parts, 2**63)} parts, {most_parts} may be"
        )
    if levels > _MOST_LEVELS:
        raise ValueError(f"its schema has {levels} levels, {_MOST_LEVELS} may be")


def _measured(schema: Any, named: dict[str, tuple[int, int, bool]]) -> tuple[int, int, bool]:
    """How many parts a type has, over how many levels, and whether its values take no bytes."""
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
            int(field.get("field-id") or 0)  # who looks for a field by its id relies on numbers
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
