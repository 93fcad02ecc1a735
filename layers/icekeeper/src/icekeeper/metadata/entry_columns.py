"""Reads chosen fields of manifest entries column by column, fast, and leaves the rest encoded (pure).

Fields are found by Avro ``field-id``, or by name if a writer omitted the ids.  *Late fields*, such as column metrics,
make up most of a manifest, and most plans never read them: a ``StoredFile`` keeps their bytes and decodes each on
demand.  Entries with the layout of earlier entries are read by a regular expression.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import repeat, starmap
from typing import Any, TypeAlias, TypeVar

from icekeeper.metadata.avro_files import is_field, record_of, structure
from icekeeper.metadata.avro_schemas import manifest_schema
from icekeeper.metadata.avro_values import (
    ANY_LONG,
    AS_BYTES,
    AS_LONG,
    PLAIN_READERS,
    SHORT_BYTES,
    AvroTypes,
    Reader,
    Skipper,
    array_reader,
    keyed_reader,
    optional_reader,
    picking_reader,
    read_long,
    then,
    width_of,
)
from icekeeper.model import DataFile

METRIC_FIELDS = {
    108: "column_sizes",
    109: "value_counts",
    110: "null_value_counts",
    137: "nan_value_counts",
    125: "lower_bounds",
    128: "upper_bounds",
}
LATE_FIELDS = METRIC_FIELDS | {132: "split_offsets"}
"""The fields of a data file that are decoded on demand."""
# Ids and names of all other fields, as Icekeeper writes them.
_SCHEMA = manifest_schema(3, (), {"fields": ()})
ENTRY_FIELDS = {field["field-id"]: field["name"] for field in _SCHEMA["fields"] if field["name"] != "data_file"}
FILE_FIELDS = {
    field["field-id"]: field["name"]
    for field in record_of(_SCHEMA, 2, "data_file")["fields"]
    if field["field-id"] not in LATE_FIELDS
}

Layout: TypeAlias = tuple[tuple[int | None, Any], ...]
"""The ids and types of some fields.  Fields of equal layouts have equal encodings."""


def layout_of(fields: Sequence[Mapping[str, Any]]) -> Layout:
    """The layout of these fields of a data file."""
    return tuple((field.get("field-id"), structure(field["type"])) for field in fields)


LateFields: TypeAlias = Mapping[str, tuple[int, Reader]]
"""The name of a late field → its place in the stretch, and its reader."""


@dataclass(slots=True)
class LateReader:
    """Reads late fields out of a *stretch*: the bytes of a data file from its first late field to its last."""

    readers: Callable[[frozenset[int]], LateFields]
    """Readers that decode only the metrics of these columns; without columns, all metrics."""
    skippers: Sequence[Skipper]
    """Of all fields of the stretch, in order."""
    layout: Layout
    learned: bytes = b""
    """An expression for stretches, with an empty group where a field begins or the last one ends."""

    @classmethod
    def of(cls, types: AvroTypes, stretch: Sequence[Mapping[str, Any]]) -> LateReader | None:
        """A reader, or ``None`` unless each late field is an array of numbers, or of pairs of a number and a number or
        bytes.

        If such an array can be skipped, it can also be decoded, so no damage is found only later
        (rule: damage-ends-in-a-named-error).
        """
        if _late_fields(types, stretch) is None:
            return None
        readers: Any = lru_cache(maxsize=16)(partial(_late_fields, types, stretch))
        return cls(readers, [types.skipper(field["type"]) for field in stretch], layout_of(stretch))

    def starts(self, stretch: bytes) -> Sequence[int]:
        """Where each field of the stretch begins, and where the stretch ends."""
        if self.learned and (found := re.fullmatch(self.learned, stretch, re.DOTALL)) is not None:
            return [found.start(group) for group in range(1, len(self.skippers) + 2)]
        at = 0
        return [at, *(at := skip(stretch, at) for skip in self.skippers)]


def _late_fields(
    types: AvroTypes, stretch: Sequence[Mapping[str, Any]], picked: Collection[int] = ()
) -> LateFields | None:
    found: dict[str, tuple[int, Reader]] = {}
    for place, field in enumerate(stretch):
        name = next((name for i, name in LATE_FIELDS.items() if is_field(field, i, name)), None)
        if name is not None:
            if (read := _late_reader(types, field["type"], picked, is_metric=name != "split_offsets")) is None:
                return None
            found[name] = place, read
    return found


def _late_reader(types: AvroTypes, kind: Any, picked: Collection[int], *, is_metric: bool) -> Reader | None:
    defined = types.defined(kind)
    if isinstance(defined, list):
        if len(defined) != 2 or types.defined(defined[0]) != {"type": "null"}:
            return None
        present = _late_reader(types, defined[1], picked, is_metric=is_metric)
        return None if present is None else optional_reader([PLAIN_READERS["null"], present])
    if defined["type"] != "array":
        return None
    item = types.defined(defined["items"])
    if isinstance(item, list):
        return None
    if not is_metric:
        return then(array_reader(PLAIN_READERS[item["type"]]), tuple) if item["type"] in NUMBER else None
    if item["type"] != "record" or [f["name"] for f in item["fields"]] != ["key", "value"]:
        return None
    key, value = (types.defined(field["type"]) for field in item["fields"])
    kinds = [None if isinstance(part, list) else part["type"] for part in (key, value)]
    if kinds[0] not in NUMBER or kinds[1] not in NUMBER | BYTES:
        return None
    read = PLAIN_READERS[kinds[1]]
    return picking_reader(picked, read) if picked else keyed_reader(read)


class StoredFile(DataFile):
    """A data or delete file that decodes each late field on first use.

    It equals a ``DataFile`` of the same fields.  Pickling, or copying it with changes, makes a ``DataFile``.
    """

    __slots__ = ("_known", "_reader", "_stretch")
    _known: tuple[dict[tuple[str, frozenset[int]], Any], Sequence[int]] | None
    """Late fields that were decoded, because deletes are compared with many files; and where fields begin."""
    _reader: LateReader
    _stretch: bytes

    def __new__(cls, **values: Any) -> Any:
        """``dataclasses.replace`` makes a ``DataFile``."""
        return DataFile(**values)

    @classmethod
    def of(cls, columns: Sequence[Sequence[Any]], reader: LateReader, stretches: Sequence[bytes]) -> list[StoredFile]:
        """Files with these late fields (``stretches``); ``columns``: their other fields in the order of ``STORED``."""
        values = [*columns, repeat(None), repeat(reader), stretches]
        return made(cls, len(stretches), zip(_PUT, values, strict=True))

    def stretch(self, layout: Layout) -> bytes | None:
        """The encoded late fields; ``None``: they have another layout."""
        return self._stretch if self._reader.layout == layout else None

    def late(self, name: str, columns: frozenset[int] = frozenset()) -> Any:
        """The value of a late field; see :func:`metric_of` for ``columns``."""
        known, starts = self._begun()
        if (name, columns) not in known:
            place, read = self._reader.readers(columns).get(name, (0, None))
            known[name, columns] = None if read is None else read(self._stretch, starts[place])[0]
        return known[name, columns]

    def _begun(self) -> tuple[dict[tuple[str, frozenset[int]], Any], Sequence[int]]:
        known = self._known
        if known is None:
            known = {}, self._reader.starts(self._stretch)
            _put_known(self, known)
        return known

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredFile):
            return replace(self) == replace(other)
        return replace(self) == other if isinstance(other, DataFile) else NotImplemented

    def __hash__(self) -> int:
        return hash(replace(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return partial(DataFile, **{field.name: getattr(self, field.name) for field in fields(DataFile)}), ()


for _name in LATE_FIELDS.values():
    setattr(StoredFile, _name, property(partial(StoredFile.late, name=_name)))

STORED = tuple(field.name for field in fields(DataFile) if field.name not in LATE_FIELDS.values())
"""The fields of a file that are decoded at once, in the order of ``StoredFile.of``."""
_PUT = tuple(
    getattr(of, name).__set__
    for of, names in ((DataFile, STORED), (StoredFile, StoredFile.__slots__))
    for name in names
)
_put_known = _PUT[len(STORED)]
_T = TypeVar("_T")


def metric_of(file: DataFile, name: str, columns: frozenset[int]) -> Mapping[int, Any]:
    """A metric of at least these columns, or of all: an entry may have metrics of hundreds."""
    found = file.late(name, columns) if isinstance(file, StoredFile) else getattr(file, name)
    return found or {}


def made(kind: type[_T], count: int, fields: Iterable[tuple[Callable[[_T, Any], None], Iterable[Any]]]) -> list[_T]:
    """Objects whose slots are set column by column, several times faster than by a frozen dataclass's ``__init__``."""
    objects: list[_T] = [*map(object.__new__, repeat(kind, count))]
    for put, values in fields:
        deque(map(put, objects, values), maxlen=0)
    return objects


LATE, WHOLE = -1, -2
"""Used in place of a field id of a file, one of them: the bytes of its late fields as a stretch, or of all fields."""

NUMBER = frozenset({"int", "long"})
TEXT = frozenset({"string", "enum"})
BYTES = frozenset({"bytes"})
"""The Avro types in which numbers, texts and bytes may be stored."""
_TYPES = {100: TEXT, 101: TEXT, 143: TEXT, 131: BYTES, 102: frozenset({"record"}), 135: frozenset({"array"})}
"""The Avro types of fields that are not numbers."""
_ANY = frozenset({"array", "map"})
_REQUIRED = frozenset({0, 100, 101, 103, 104})

# The values of these fields repeat from entry to entry; finding a value among known values is faster than decoding it.
_REPEATED = frozenset({1, 101, 102})
# The values of these fields differ from entry to entry, or are lists, which must not be shared.
_OWN = frozenset({100, 103, 104, 135, *LATE_FIELDS})
_MOST_INTERNED = 4096


def entry_columns(
    types: AvroTypes,
    entry: Sequence[int],
    file: Sequence[int],
    partition: Callable[[Mapping[str, Any]], Any] | None = None,
) -> EntryReader:
    """A reader of these fields of entries and of their data files, by id; ``partition`` converts partition records.

    Raises:
        LookupError: the entries have no data file, or a field occurs twice or has another type than in the
            specification.
    """
    slots = {field_id: slot for slot, field_id in enumerate((*entry, *file))}
    steps: list[EntryStep] = []
    stretch: Stretch | None = None
    found: set[int] = set()

    def field_step(field: Mapping[str, Any], names: Mapping[int, str]) -> EntryStep:
        kind = field["type"]
        for field_id, name in names.items():
            if field_id in slots and is_field(field, field_id, name):
                if field_id in found:
                    raise LookupError(f"has two fields {name}; it is not an Iceberg manifest")
                found.add(field_id)
                return _wanted_step(types, kind, slots[field_id], field_id, partition)
        return EntryStep(-1, types.skipper(kind), kind)

    if sum(is_field(field, 2, "data_file") for field in types.schema["fields"]) > 1:
        raise LookupError("has two fields data_file; it is not an Iceberg manifest")
    record = record_of(types.schema, 2, "data_file")
    late = [i for i, f in enumerate(record["fields"]) if any(is_field(f, *known) for known in LATE_FIELDS.items())]
    for field in types.schema["fields"]:
        if not is_field(field, 2, "data_file"):
            steps.append(field_step(field, ENTRY_FIELDS))
            continue
        if types.defined(field["type"]) != types.defined(record):
            steps.append(EntryStep(-1, *_present(types, field["type"])))
        if late and LATE in slots:
            stretch = Stretch(slots[LATE], len(steps) + late[0], len(steps) + late[-1])
        if WHOLE in slots:
            stretch = Stretch(slots[WHOLE], len(steps), len(steps) + len(record["fields"]) - 1)
        steps += [field_step(part, FILE_FIELDS | LATE_FIELDS) for part in record["fields"]]
    between = record["fields"][late[0] : late[-1] + 1] if late else []
    missing = frozenset(field_id for field_id in slots if field_id >= 0) - found
    empty = [b"" if field_id == LATE else None for field_id in slots]
    return EntryReader(steps, empty, types, stretch, missing, LateReader.of(types, between))


def _position(data: bytes, at: int) -> tuple[int, int]:
    return at, at


def _present(types: AvroTypes, union: Any) -> tuple[Skipper, Any]:
    """Skips the union branch of a nullable record (BigQuery's ``data_file``), which must not be null.

    The second result is the type of the skipped byte.
    """
    branches = [types.defined(branch) for branch in types.defined(union)]
    wanted = next(i for i, b in enumerate(branches) if isinstance(b, dict) and b["type"] == "record")

    def skip(data: bytes, at: int) -> int:
        if data[at] != 2 * wanted:
            raise ValueError("an entry has no data file")
        return at + 1

    return skip, [{"type": "null"}] * len(branches)


def _wanted_step(
    types: AvroTypes, kind: Any, slot: int, field_id: int, partition: Callable[[Mapping[str, Any]], Any] | None
) -> EntryStep:
    wanted = _ANY if field_id in LATE_FIELDS else _TYPES.get(field_id, NUMBER)
    require_type(types, kind, (ENTRY_FIELDS | FILE_FIELDS | LATE_FIELDS)[field_id], wanted)
    read = types.reader(kind)
    if field_id in _REQUIRED and isinstance(types.defined(kind), list):
        read = then(read, _not_null)
    if field_id == 100 and types.defined(kind) == {"type": "string"}:
        return EntryStep(slot, read, kind, _path)
    if field_id in _OWN:
        plain = types.defined(kind) in ({"type": "int"}, {"type": "long"})
        return EntryStep(slot, read, kind, _number if plain else lambda encoded: read(encoded, 0)[0])
    known = _Known(read, partition if field_id == 102 else None)
    if field_id not in _REPEATED:
        return EntryStep(slot, read, kind, known.__getitem__)
    skip = types.skipper(kind)

    def value(data: bytes, at: int) -> tuple[Any, int]:
        end = skip(data, at)
        return known[data[at:end]], end

    return EntryStep(slot, value, kind, known.__getitem__)


def require_type(types: AvroTypes, kind: Any, name: str, wanted: Collection[str]) -> None:
    """Check that a field's values are nulls or of a wanted type, and that ``equality_ids`` are numbers.

    Raises:
        LookupError: the field allows other values.
    """
    defined = types.defined(kind)
    branches = [types.defined(branch) for branch in (defined if isinstance(defined, list) else [defined])]
    found = {"union" if isinstance(branch, list) else branch["type"] for branch in branches} - {"null"}
    if name == "equality_ids" and found == {"array"}:
        items = types.defined(next(branch for branch in branches if branch["type"] == "array")["items"])
        found = {"array"} if not isinstance(items, list) and items["type"] in NUMBER else {"array of others"}
    if not found.issubset(wanted):
        raise LookupError(f"has the type {' or '.join(sorted(found))} for {name}; Iceberg's manifests do not")


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("an entry lacks a required value")
    return value


def _path(encoded: bytes) -> str:
    """A text whose length takes one or two bytes, as in all learned layouts."""
    return encoded[1 if encoded[0] < 128 else 2 :].decode()


def _number(encoded: bytes) -> int:
    """An int or long, whose last byte is known."""
    if len(encoded) > 9:  # it may have more than 64 bits
        return read_long(encoded, 0)[0]
    number = 0
    for byte in reversed(encoded):
        number = number << 7 | byte & 127
    return number >> 1 ^ -(number & 1)


class _Known(dict[bytes, Any]):
    """Decoded values by their bytes, for values that repeat; ``make`` converts each."""

    def __init__(self, read: Reader, make: Callable[[Any], Any] | None) -> None:
        super().__init__()
        self._read, self._make = read, make

    def __missing__(self, encoded: bytes) -> Any:
        value, _ = self._read(encoded, 0)
        if self._make is not None:
            value = self._make(value)
        if len(self) >= _MOST_INTERNED:
            self.clear()
        self[encoded] = value
        return value


# Reading entries by a regular expression that is learned from earlier entries.
#
# Nearly all entries of a manifest have the same layout: the same columns have metrics, and paths have few different
# lengths.  Then a single match finds all fields, several times faster than a walk from field to field
# (platform: manifest-decoder-speed).  Entries of other layouts, and damaged entries, are walked
# (rule: damage-ends-in-a-named-error).

# Learning takes as long as walking a few hundred entries, and most tables have no more entries.
_WALKED_FIRST = 200
_NOTED_AT_ONCE = 50
_MOST_LESSONS = 8
# Per field: texts have a layout for each length, arrays have a long layout for each number of items.
_MOST_LAYOUTS = 64
_MOST_BYTES = 8_000
# For all fields: compiling takes a second per MB, and there may be thousands of unknown fields.
_MOST_PATTERN_BYTES = 256 * 1024
# From so many entries on, sharper expressions save more time than compiling them takes.
_SHARP_FROM = 5_000
_MOST_EXAMPLES, _MOST_SHARP_BYTES = 20, 24 * 1024
# Matching a whole block at once copies it; writers make blocks of 16 to 64 KB.
_MOST_BLOCK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EntryStep:
    """A field of an entry or of its data file; steps are in the order of encoding."""

    slot: int
    """The index of its value in the result; -1: the field is skipped."""
    walk: Any
    """A ``Reader`` if the field is wanted, else a ``Skipper``."""
    kind: Any
    """The field's type."""
    decode: Callable[[bytes], Any] = bytes
    """Decodes a wanted field from its bytes."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps whose bytes are also wanted, together as a single value."""

    slot: int
    first: int
    last: int


class EntryReader:
    """Reads entries of a schema as values or columns of values; threads may share it."""

    def __init__(
        self,
        steps: Sequence[EntryStep],
        empty: list[Any],
        types: AvroTypes,
        stretch: Stretch | None = None,
        missing: frozenset[int] = frozenset(),
        late: LateReader | None = None,
    ) -> None:
        """``empty``: the values (at least two) of an entry without any of the fields.

        ``missing``: the ids of wanted fields that the manifests do not have.
        ``late``: ``None`` if the late fields are not encoded as in the specification.
        """
        self.missing, self.late = missing, late
        self._steps, self._empty, self._types, self._stretch = tuple(steps), empty, types, stretch
        self._values: list[tuple[int, Callable[[bytes], Any]]] = []
        for number, step in enumerate(steps):
            if stretch is not None and number == stretch.first:
                self._values.append((stretch.slot, bytes))
            if step.slot >= 0:
                self._values.append((step.slot, step.decode))
        self._walks = [(step.slot, step.walk) for step in steps]
        if stretch is not None:  # a slot for its beginning, and a further slot for its end
            self._walks.insert(stretch.last + 1, (len(empty), _position))
            self._walks.insert(stretch.first, (stretch.slot, _position))
        self._groups = range(1, 1 + len(self._values))
        self._layouts: list[dict[bytes, list[bytes]]] = [{} for _ in steps]
        """The layouts of each step, with examples."""
        self._walked = self._noted = self._lessons = self._matched = 0
        self._has_news = False
        self._pattern: re.Pattern[bytes] | None = None

    def read_block(self, data: bytes, count: int) -> tuple[Sequence[Sequence[Any]], int]:
        """The values of the first ``count`` entries of a block, slot by slot, and the position after them."""
        if self._pattern is not None and len(data) <= _MOST_BLOCK_BYTES:
            found = self._pattern.findall(data)
            # From an entry of another layout on, the rest of the block matches as a single entry.
            if found and len(found) == count and not found[-1][-1]:
                self._matched += count
                if self._matched - count < _SHARP_FROM <= self._matched:
                    self._learn()
                return self._columns(found), len(data)
        rows: list[Sequence[Any]] = []
        at = 0
        for _ in range(count):
            values, at = self._read(data, at)
            rows.append(values)
        return [*zip(*rows, strict=True)] or [()] * len(self._empty), at

    def _read(self, data: bytes, at: int) -> tuple[list[Any], int]:
        """An entry, and the position after it."""
        found = None if self._pattern is None else self._pattern.match(data, at)
        if found is None or found[self._groups.stop]:
            return self._walk(data, at)
        values = self._empty.copy()
        for (slot, decode), encoded in zip(self._values, found.group(*self._groups), strict=True):
            values[slot] = decode(encoded)
        return values, found.end()

    def _columns(self, found: Sequence[tuple[bytes, ...]]) -> list[Sequence[Any]]:
        """The values of entries; ``found`` has the bytes of the fields of each, and of a rest, which is empty."""
        *fields, _ = zip(*found, strict=True)
        columns: list[Sequence[Any]] = [[value] * len(found) for value in self._empty]
        for (slot, decode), encoded in zip(self._values, fields, strict=True):
            if decode is _path:  # without a call per path
                columns[slot] = [text[1 if text[0] < 128 else 2 :].decode() for text in encoded]
            else:
                columns[slot] = encoded if decode is bytes else [*map(decode, encoded)]
        return columns

    def _walk(self, data: bytes, at: int) -> tuple[list[Any], int]:
        values, begin = [*self._empty, None], at
        for slot, step in self._walks:
            if slot < 0:
                at = step(data, at)
            else:
                values[slot], at = step(data, at)
        ends = values.pop()
        if (stretch := self._stretch) is not None:
            values[stretch.slot] = data[values[stretch.slot] : ends]
        self._walked += 1
        if self._walked > _WALKED_FIRST and self._lessons < _MOST_LESSONS:
            self._note(data, begin)
        return values, at

    def _note(self, data: bytes, at: int) -> None:
        """Note the layout of an entry that was walked; at intervals, make an expression of the noted layouts."""
        self._noted += 1
        # Entries that no pattern describes are always walked.
        with suppress(Exception):
            for step, layouts in zip(self._steps, self._layouts, strict=True):
                begin = at
                layout, at = value_pattern(self._types, step.kind, data, at)
                if layout not in layouts and len(layouts) < _MOST_LAYOUTS and sum(map(len, layouts)) < _MOST_BYTES:
                    layouts[layout] = []
                    self._has_news = True
                examples = layouts.get(layout)
                if examples is not None and len(examples) < _MOST_EXAMPLES:
                    examples.append(data[begin:at])
            if self._has_news and self._noted >= _NOTED_AT_ONCE:
                self._learn()

    def _learn(self) -> None:
        self._noted, self._has_news = 0, False
        self._lessons += 1
        parts = []
        for layouts in self._layouts:
            part = alternatives(starmap(sharpened, layouts.items()) if self._matched >= _SHARP_FROM else layouts)
            if len(part) > _MOST_SHARP_BYTES:
                part = alternatives(layouts)
            parts.append(part)
        if sum(map(len, parts)) > _MOST_PATTERN_BYTES:
            self._lessons = _MOST_LESSONS
            return
        groups = [part if step.slot < 0 else b"(%b)" % part for step, part in zip(self._steps, parts, strict=True)]
        if self._stretch is not None:
            first, last = self._stretch.first, self._stretch.last
            groups[first], groups[last] = b"(" + groups[first], groups[last] + b")"
            if self.late is not None:
                self.late.learned = b"()%b()" % b"()".join(parts[first : last + 1])
        # Matches an entry of a known layout, or the whole rest, so that no match begins inside an entry.
        self._pattern = re.compile(b"%b|(.+)" % b"".join(groups), re.DOTALL)


# Encoded values as regular expressions.
#
# An expression is made from a value and matches all values of its layout.  It contains the bytes that decide where a
# value ends: branches of unions, lengths of texts, numbers of items.  So it matches only bytes that a reader of the
# schema would also accept, and no value matches two different expressions.
# The length of a longer text takes three bytes or more; no path is so long.
_LONGEST_TEXT = 8191


class PatternUnknownError(Exception):
    """No expression describes the value, for example an array of several blocks."""


def alternatives(patterns: Iterable[bytes]) -> bytes:
    """Matches the first of these patterns that matches."""
    return b"(?>%b)" % b"|".join(patterns)


def value_pattern(types: AvroTypes, schema: Any, data: bytes, at: int) -> tuple[bytes, int]:
    """The expression for the layout of the value at ``at``, and the position after the value.

    Raises:
        PatternUnknownError: no expression describes it.
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
    if kind in AS_BYTES:
        length, after = read_long(data, at)
        if not 0 <= length <= _LONGEST_TEXT:
            raise PatternUnknownError
        return re.escape(data[at:after]) + b".{%d}" % length, after + length
    if kind == "array":
        return _array_pattern(types, schema, data, at)
    return _any_value(types, schema), types.skipper(schema)(data, at)


def _array_pattern(types: AvroTypes, schema: Any, data: bytes, at: int) -> tuple[bytes, int]:
    """For arrays of a single block with the same number of items."""
    count, after = read_long(data, at)
    if count == 0:
        return re.escape(data[at:after]), after
    end = types.skipper(schema)(data, at)
    pattern = b"%b(?:%b){%d}+\x00" % (re.escape(data[at:after]), _any_value(types, schema["items"]), count)
    if count < 0 or not re.compile(pattern, re.DOTALL).fullmatch(data, at, end):
        raise PatternUnknownError
    return pattern, end


# An array of pairs of a number and a number or a few bytes.
_PAIRS = b"|".join(re.escape(ANY_LONG + value) for value in (ANY_LONG, SHORT_BYTES))
_PAIRS_LAYOUT = re.compile(rb"(.*?)\(\?:(%b)\)\{(\d+)\}\+\x00" % _PAIRS, re.DOTALL)


def sharpened(layout: bytes, examples: Sequence[bytes]) -> bytes:
    """An expression for the same values, which takes half the time for column metrics of the columns, and for bounds of
    the lengths, that all examples share."""
    found = _PAIRS_LAYOUT.fullmatch(layout)
    if found is None:
        return layout
    head, pair, count = found.groups()
    has_bytes = pair != ANY_LONG * 2
    split = re.compile(b"(%b)(%b)" % (ANY_LONG, pair[len(ANY_LONG) :]), re.DOTALL).findall
    start = re.compile(head, re.DOTALL).match
    pairs = [split(example, found.end(), len(example) - 1) for example in examples if (found := start(example))]
    parts = []
    for column in zip(*pairs, strict=True):
        # The first byte of bytes is their length.
        known = {(key, value[:1], len(value) - 1) if has_bytes else (key, b"", 0) for key, value in column}
        key, length, size = next(iter(known))
        value = b".{%d}+" % size if has_bytes else ANY_LONG
        parts.append(re.escape(key + length) + value if len(known) == 1 else pair)
    return b"%b(?>%b|(?:%b){%b}+)\x00" % (head, b"".join(parts), pair, count)


def _any_value(types: AvroTypes, schema: Any) -> bytes:
    """Matches every value of a type, but only texts of less than 64 bytes."""
    schema = types.defined(schema)
    if isinstance(schema, list):
        if len(schema) > 64:
            raise PatternUnknownError
        return alternatives(re.escape(bytes([2 * i])) + _any_value(types, part) for i, part in enumerate(schema))
    kind = schema["type"]
    if kind == "null":
        return b""
    if kind in AS_LONG:
        return ANY_LONG
    if (width := width_of(schema)) is not None:
        return b".{%d}" % width
    if kind in AS_BYTES:
        return SHORT_BYTES
    if kind == "record":
        return b"".join(_any_value(types, field["type"]) for field in schema["fields"])
    raise PatternUnknownError
