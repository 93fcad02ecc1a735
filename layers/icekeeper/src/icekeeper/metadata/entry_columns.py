"""Reads chosen fields of manifest entries as flat lists of values, fast, and leaves the rest encoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import accumulate, repeat
from typing import Any, TypeAlias

from icekeeper.metadata.avro_files import WriterSchema, is_field, record_of, structure
from icekeeper.metadata.avro_values import (
    PLAIN_READERS,
    AvroTypes,
    Reader,
    Skipper,
    array_reader,
    keyed_reader,
    optional_reader,
    read_long,
    then,
)
from icekeeper.model import DataFile

# Describes encoded values as regular expressions, which find where a value ends in one step of the interpreter.
#
# An expression is made of a value that was seen, and matches the values that are laid out as it: the branches of
# unions, the lengths of texts and the numbers of items, which say where everything ends, stand in it literally.  So it
# matches nothing but what a reader of the schema would pass over as well, and of two that differ no value matches both.

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


# Reads manifest entries by a regular expression that is learned from the entries before.
#
# Nearly all entries of a manifest are laid out alike: the same columns have metrics, paths have a few lengths.  Where
# an entry is laid out as ones that were seen, one match finds all its fields, several times faster than a walk from
# field to field (platform: regex-reads-manifests); any other one is walked, as all are that are damaged, and may be
# learned (rule: check-entries-kept-as-bytes).

# Learning takes as long as walking some hundred entries; most tables have no more.
_WALKED_FIRST = 200
_NOTED_AT_ONCE = 50
_MOST_LESSONS = 8
# Of one field: texts have a layout for each length, arrays for each number of items, and theirs are long.
_MOST_LAYOUTS = 64
_MOST_BYTES = 8_000
# Of all fields: an expression takes a second to make for each MB, and of unknown fields there may be thousands.
_MOST_PATTERN_BYTES = 256 * 1024
# The entries of a block that are matched at once are copies of all of it; writers make blocks of 16 to 64 KB.
_MOST_BLOCK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EntryStep:
    """A field of an entry or of its data file, or a place between two; steps follow the order of encoding."""

    slot: int
    """Where its value belongs; -1: nobody asked for it."""
    walk: Any
    """Reads the field where somebody asked for it, else passes over it."""
    kind: Any = None
    """The field's type; ``None``: a place, whose position somebody asked for."""
    decode: Callable[[bytes], Any] | None = None
    """Makes the value of its encoded bytes, where somebody asked for a field."""


class EntryReader:
    """Reads entries of one schema as lists of values; threads may share it: at worst they learn the same twice."""

    def __init__(self, steps: Sequence[EntryStep], empty: list[Any], types: AvroTypes) -> None:
        """``empty``: the values of an entry that has none of the fields; two or more are asked for."""
        self._steps, self._empty, self._types = tuple(steps), empty, types
        self._walks = [(step.slot, step.walk) for step in steps]
        wanted = [step for step in steps if step.slot >= 0]
        self._values = [(step.slot, step.decode) for step in wanted if step.decode is not None]
        # The first group is the whole entry.
        self._groups = [number for number, step in enumerate(wanted, start=2) if step.decode is not None]
        self._places = [(step.slot, number) for number, step in enumerate(wanted, start=2) if step.decode is None]
        ends = [step.slot if step.decode is None else -1 for step in (steps[0], steps[-1])]
        self._begin_slot, self._end_slot = ends
        self._has_inner_places = any(slot not in ends for slot, _ in self._places)
        self._layouts: list[dict[bytes, None]] = [{} for _ in steps]
        self._walked = self._noted = self._lessons = 0
        self._has_news = False
        self._pattern: re.Pattern[bytes] | None = None

    def read(self, data: bytes, at: int) -> tuple[list[Any], int]:
        """An entry, and where it ends."""
        found = None if self._pattern is None else self._pattern.match(data, at)
        if found is None or found[1] is None:
            return self._walk(data, at)
        values = self._empty.copy()
        for (slot, decode), encoded in zip(self._values, found.group(*self._groups), strict=True):
            values[slot] = decode(encoded)
        for slot, group in self._places:
            values[slot] = found.start(group)
        return values, found.end()

    def read_block(self, data: bytes, count: int) -> tuple[list[Sequence[Any]], int]:
        """So many entries that stand at the beginning of a block, and where the last one ends."""
        found = self._matches(data, count)
        if found:
            return self._rows(found), len(data)
        rows: list[Sequence[Any]] = []
        at = 0
        for _ in range(count):
            values, at = self.read(data, at)
            rows.append(values)
        return rows, at

    def _matches(self, data: bytes, count: int) -> list[tuple[bytes, ...]] | None:
        """So many entries, each before its fields, as bytes, if they fill the block and are laid out as ones before."""
        if self._pattern is None or self._has_inner_places or len(data) > _MOST_BLOCK_BYTES:
            return None
        found = self._pattern.findall(data)
        # The rest after an entry that is laid out in another way counts as one of no bytes.
        fill_it = len(found) == count and sum(len(entry[0]) for entry in found) == len(data)
        return found if fill_it else None

    def _rows(self, found: Sequence[tuple[bytes, ...]]) -> list[Sequence[Any]]:
        """The values of entries that fill a block, of each the whole before its fields."""
        whole, *fields = zip(*found, strict=True)
        columns: list[Iterable[Any]] = [repeat(value) for value in self._empty]
        for (slot, decode), group in zip(self._values, self._groups, strict=True):
            columns[slot] = map(decode, fields[group - 2])
        ends = [*accumulate(map(len, whole))]
        if self._begin_slot >= 0:
            columns[self._begin_slot] = [0, *ends[:-1]]
        if self._end_slot >= 0:
            columns[self._end_slot] = ends
        return [*zip(*columns, strict=False)]  # what is repeated has no end

    def _walk(self, data: bytes, at: int) -> tuple[list[Any], int]:
        values, begin = self._empty.copy(), at
        for slot, step in self._walks:
            if slot < 0:
                at = step(data, at)
            else:
                values[slot], at = step(data, at)
        self._walked += 1
        if self._walked > _WALKED_FIRST and self._lessons < _MOST_LESSONS:
            self._note(data, begin)
        return values, at

    def _note(self, data: bytes, at: int) -> None:
        """Take note of how an entry that was walked is laid out; every so often, an expression is made of the notes."""
        self._noted += 1
        # What cannot be described is walked.
        with suppress(Exception):
            for step, layouts in zip(self._steps, self._layouts, strict=True):
                if step.kind is not None:
                    layout, at = value_pattern(self._types, step.kind, data, at)
                    if layout not in layouts and _has_room(layouts):
                        layouts[layout] = None
                        self._has_news = True
            if self._has_news and self._noted >= _NOTED_AT_ONCE:
                self._learn()

    def _learn(self) -> None:
        """Make an expression of the layouts of every field, after an entry that could be described to its end."""
        self._noted, self._has_news = 0, False
        self._lessons += 1
        parts = []
        for step, layouts in zip(self._steps, self._layouts, strict=True):
            part = b"" if step.kind is None else alternatives(tuple(layouts))
            parts.append(part if step.slot < 0 else b"(%b)" % part)
        if sum(map(len, parts)) > _MOST_PATTERN_BYTES:
            self._lessons, self._pattern = _MOST_LESSONS, None
            return
        # An entry, or what begins in another way to its very end: nobody looks for entries within it.
        self._pattern = re.compile(b"(%b)|.+" % b"".join(parts), re.DOTALL)


def _has_room(layouts: Collection[bytes]) -> bool:
    return len(layouts) < _MOST_LAYOUTS and sum(map(len, layouts)) < _MOST_BYTES


# A file as a manifest stores it: what is long, such as metrics of columns, stays bytes until somebody asks for it.
#
# It is most of a manifest, and most plans look at none of it.

METRIC_FIELDS = {
    108: "column_sizes",
    109: "value_counts",
    110: "null_value_counts",
    137: "nan_value_counts",
    125: "lower_bounds",
    128: "upper_bounds",
}
_INTEGERS = ("int", "long")
LATE_FIELDS = METRIC_FIELDS | {132: "split_offsets"}
"""The fields of a data file that are read when they are asked for."""


Layout: TypeAlias = tuple[tuple[int | None, Any], ...]
"""The ids and types of some fields: values of equal layouts are encoded alike."""


def layout_of(fields: Sequence[Mapping[str, Any]]) -> Layout:
    """The layout of these fields of a data file."""
    return tuple((field.get("field-id"), structure(field["type"])) for field in fields)


@dataclass(frozen=True, slots=True)
class LateReader:
    """Reads late fields out of a stretch of an encoded data file."""

    readers: Mapping[str, Reader]
    """Name → reads one field of a stretch that begins at its begin."""
    layout: Layout
    """Of its stretches."""

    @classmethod
    def of(cls, types: AvroTypes, stretch: Sequence[Mapping[str, Any]]) -> LateReader | None:
        """For a stretch of these fields; ``None``: a late one is no array of numbers, or of pairs of numbers or bytes.

        Such arrays can be read whenever they could be passed over, so no damage is found later on
        (rule: check-entries-kept-as-bytes).
        """
        readers: dict[str, Reader] = {}
        before: list[Skipper] = []
        for field in stretch:
            name = next((name for i, name in LATE_FIELDS.items() if is_field(field, i, name)), None)
            if name is not None:
                read = _late_reader(types, field["type"], is_metric=name != "split_offsets")
                if read is None:
                    return None
                readers[name] = _after(tuple(before), read)
            before.append(types.skipper(field["type"]))
        return cls(readers, layout_of(stretch))

    def read(self, name: str, stretch: bytes) -> Any:
        """One field; ``None``: the file has none."""
        read = self.readers.get(name)
        return None if read is None else read(stretch, 0)[0]


def _after(before: Sequence[Skipper], read: Reader) -> Reader:
    def value(data: bytes, at: int) -> tuple[Any, int]:
        for skip in before:
            at = skip(data, at)
        return read(data, at)

    return value


def _late_reader(types: AvroTypes, kind: Any, *, is_metric: bool) -> Reader | None:
    defined = types.defined(kind)
    if isinstance(defined, list):
        if len(defined) != 2 or types.defined(defined[0]) != {"type": "null"}:
            return None
        present = _late_reader(types, defined[1], is_metric=is_metric)
        return None if present is None else optional_reader([PLAIN_READERS["null"], present])
    if defined["type"] != "array":
        return None
    item = types.defined(defined["items"])
    if isinstance(item, list):
        return None
    if not is_metric:
        return then(array_reader(PLAIN_READERS[item["type"]]), tuple) if item["type"] in _INTEGERS else None
    if item["type"] != "record" or [f["name"] for f in item["fields"]] != ["key", "value"]:
        return None
    key, value = (types.defined(field["type"]) for field in item["fields"])
    kinds = [None if isinstance(part, list) else part["type"] for part in (key, value)]
    if kinds[0] not in _INTEGERS or kinds[1] not in (*_INTEGERS, "bytes"):
        return None
    return keyed_reader(PLAIN_READERS[kinds[1]])


class StoredFile(DataFile):
    """A data or delete file that reads its late fields out of its manifest's bytes, each when it is first asked for.

    It equals a ``DataFile`` of the same fields, and becomes one when it is copied with changes or sent to a worker.
    """

    __slots__ = ("_known", "_reader", "_stretch")
    _known: dict[str, Any] | None
    """Late fields that were asked for: deletes are compared with file after file."""
    _reader: LateReader
    _stretch: bytes

    def __new__(cls, **values: Any) -> Any:
        """Whoever makes one by all its fields (``dataclasses.replace``) gets a ``DataFile``."""
        return DataFile(**values)

    @classmethod
    def of(cls, values: Sequence[Any], reader: LateReader, stretch: bytes) -> StoredFile:
        """``values`` are those of all other fields, in the order of ``STORED``."""
        file: StoredFile = object.__new__(cls)
        for put, value in zip(_PUT, values, strict=True):
            put(file, value)
        _put_known(file, None)
        _put_reader(file, reader)
        _put_stretch(file, stretch)
        return file

    def stretch(self, layout: Layout) -> bytes | None:
        """Its late fields encoded; ``None``: they are laid out otherwise."""
        return self._stretch if self._reader.layout == layout else None

    def plain(self) -> DataFile:
        """The same with all its fields at hand."""
        return replace(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredFile):
            return self.plain() == other.plain()
        return self.plain() == other if isinstance(other, DataFile) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.plain())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _data_file, ({field.name: getattr(self, field.name) for field in fields(DataFile)},)


def _data_file(values: Mapping[str, Any]) -> DataFile:
    return DataFile(**values)


def _late(name: str) -> property:
    def value(file: StoredFile) -> Any:
        known = file._known
        if known is None:
            known = {}
            _put_known(file, known)
        if name not in known:
            known[name] = file._reader.read(name, file._stretch)
        return known[name]

    return property(value)


for _name in LATE_FIELDS.values():
    setattr(StoredFile, _name, _late(_name))

STORED = tuple(field.name for field in fields(DataFile) if field.name not in LATE_FIELDS.values())
"""The fields of a file that are at hand, in the order of ``StoredFile.of``."""
# What a frozen dataclass sets one by one with a call by name takes half as long through its slots.
_PUT = tuple(getattr(DataFile, name).__set__ for name in STORED)
_put_known, _put_reader, _put_stretch = (getattr(StoredFile, name).__set__ for name in StoredFile.__slots__)


# Reads chosen fields of manifest entries as flat lists of values; all other fields are passed over.
#
# Fields are found by Avro ``field-id``, or by name where a writer left the ids out.  What is made here for a schema is
# used for every manifest that has it.

ENTRY_FIELDS = {0: "status", 1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number"}
FILE_FIELDS = {
    134: "content",
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    131: "key_metadata",
    135: "equality_ids",
    140: "sort_order_id",
    142: "first_row_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}
SPAN = (-1, -2)
"""In place of ids of an entry's fields: where the entry begins and ends."""
LATE = (-3, -4)
"""In place of ids of a file's fields: where the stretch with its late fields begins and ends."""

NUMBER = frozenset({"int", "long"})
TEXT = frozenset({"string", "enum"})
BYTES = frozenset({"bytes"})
"""Avro's types of numbers, texts and bytes of Iceberg's."""
_TYPES = {100: TEXT, 101: TEXT, 143: TEXT, 131: BYTES, 102: frozenset({"record"}), 135: frozenset({"array"})}
"""Avro's types of fields that are no numbers."""
_ANY = frozenset({"array", "map"})
_REQUIRED = frozenset({0, 100, 101, 103, 104})

# Their values repeat from entry to entry, and are longer to make than to find among those that are known.
_REPEATED = frozenset({1, 101, 102})
# Their values are each entry's own, or lists, which nobody else shall have.
_OWN = frozenset({100, 103, 104, 135, *LATE_FIELDS})
_MOST_INTERNED = 4096


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """How to read chosen fields of the entries of manifests that have one schema."""

    reader: EntryReader
    """Reads an entry as a list: the value of each field in the order asked for, ``None`` where there is none."""
    missing: frozenset[int]
    """Ids of fields asked for that such manifests do not have."""
    late: LateReader | None
    """Reads the late fields, where they are encoded as the specification says."""


def entry_columns(
    written: WriterSchema,
    entry: Sequence[int],
    file: Sequence[int],
    partition: Callable[[Mapping[str, Any]], Any] | None = None,
) -> EntryColumns:
    """How to read these fields of entries and of their data files, by id.

    ``partition`` makes what is wanted of a partition record.

    Raises:
        LookupError: there is no data file in an entry.
    """
    schema, types = written.schema, written.types
    slots = {field_id: slot for slot, field_id in enumerate((*entry, *file))}
    steps: list[EntryStep] = []
    found: set[int] = set()

    def field_step(field: Mapping[str, Any], names: Mapping[int, str]) -> EntryStep:
        kind = field["type"]
        for field_id, name in names.items():
            if field_id in slots and is_field(field, field_id, name):
                found.add(field_id)
                return _wanted_step(types, kind, slots[field_id], field_id, partition)
        return EntryStep(-1, types.skipper(kind), kind)

    record = record_of(schema, 2, "data_file")
    late = [i for i, f in enumerate(record["fields"]) if any(is_field(f, *one) for one in LATE_FIELDS.items())]
    for field in schema["fields"]:
        if not is_field(field, 2, "data_file"):
            steps.append(field_step(field, ENTRY_FIELDS))
            continue
        if types.defined(field["type"]) != types.defined(record):
            steps.append(EntryStep(-1, *_present(types, field["type"])))
        for number, part in enumerate(record["fields"]):
            if late and number == late[0] and LATE[0] in slots:
                steps.append(EntryStep(slots[LATE[0]], _position))
            steps.append(field_step(part, FILE_FIELDS | LATE_FIELDS))
            if late and number == late[-1] and LATE[1] in slots:
                steps.append(EntryStep(slots[LATE[1]], _position))
    if SPAN[0] in slots:
        steps = [EntryStep(slots[SPAN[0]], _position), *steps, EntryStep(slots[SPAN[1]], _position)]
    between = record["fields"][late[0] : late[-1] + 1] if late else []
    missing = frozenset(field_id for field_id in slots if field_id >= 0) - found
    empty = [0 if field_id in LATE else None for field_id in slots]
    return EntryColumns(EntryReader(steps, empty, types), missing, LateReader.of(types, between))


def _position(data: bytes, at: int) -> tuple[int, int]:
    return at, at


def _present(types: AvroTypes, union: Any) -> tuple[Skipper, Any]:
    """Passes over the branch of a record that may be null (BigQuery's ``data_file``), and demands that it is not.

    The second is the type of what is passed over: one byte.
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
        return EntryStep(slot, read, kind, lambda encoded: read(encoded, 0)[0])
    known = _Known(read, partition if field_id == 102 else None)
    if field_id not in _REPEATED:
        return EntryStep(slot, read, kind, known.__getitem__)
    skip = types.skipper(kind)

    def value(data: bytes, at: int) -> tuple[Any, int]:
        end = skip(data, at)
        return known[data[at:end]], end

    return EntryStep(slot, value, kind, known.__getitem__)


def require_type(types: AvroTypes, kind: Any, name: str, wanted: Collection[str]) -> None:
    """Check that a field's values are nulls or of a wanted type; those of ``equality_ids`` are numbers.

    Raises:
        LookupError: they may be others.
    """
    defined = types.defined(kind)
    branches = [types.defined(branch) for branch in (defined if isinstance(defined, list) else [defined])]
    found = {"union" if isinstance(branch, list) else branch["type"] for branch in branches} - {"null"}
    if name == "equality_ids" and found == {"array"}:
        items = types.defined(next(branch for branch in branches if branch["type"] == "array")["items"])
        found = {"array"} if not isinstance(items, list) and items["type"] in NUMBER else {"array of others"}
    if not found.issubset(wanted):
        raise LookupError(f"has the type {' or '.join(sorted(found))} for {name}; it is not Iceberg's")


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("an entry lacks what every entry has")
    return value


def _path(encoded: bytes) -> str:
    """A text whose length has one byte or two, as those that are learned have."""
    return encoded[1 if encoded[0] < 128 else 2 :].decode()


class _Known(dict[bytes, Any]):
    """Values that repeat, as one object for equal bytes; ``make``: what is made of each."""

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
