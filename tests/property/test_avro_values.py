"""Avro values of any schema read as with fastavro."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import fastavro
import pytest
from fastavro.schema import parse_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata import entry_columns as learned_entries
from icekeeper.metadata import manifest_read, manifest_write
from icekeeper.metadata.avro_files import strip_logical_types
from icekeeper.metadata.avro_values import AvroTypes, avro_long, keyed_reader, picking_reader, read_bytes, read_long
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.entry_columns import (
    LATE_FIELDS,
    METRIC_FIELDS,
    EntryReader,
    EntryStep,
    PatternUnknownError,
    Stretch,
    metric_of,
    sharpened,
    value_pattern,
)
from icekeeper.metadata.manifest_read import decode_identities, decode_live_files, decode_live_paths, decode_manifest
from icekeeper.metadata.manifest_write import EntryCopier
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile
from support.examples import examples
from support.hostile.avro import uncompressed
from support.manifests import drawn_table, encoded, entries

# Values of any schema, and damaged manifests, read as with fastavro; skipping a value ends at the same byte.

LONGS = st.integers(-(2**63), 2**63 - 1)
PRIMITIVES: Mapping[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=200),
    "string": st.text(st.characters(codec="utf-8"), max_size=200),
}


class Drawn:
    """Schemas with values; a schema may refer to a type by name."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._named: dict[str, st.SearchStrategy[Any]] = {}

    def pair(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        kinds = [*PRIMITIVES, "fixed", "enum", *self._named]
        kind = self._draw(st.sampled_from([*kinds, *(["array", "map", "record", "union", "pairs"] if depth else [])]))
        if kind in PRIMITIVES:
            return self._draw(st.sampled_from([kind, {"type": kind}])), PRIMITIVES[kind]
        if kind in self._named:
            return kind, self._named[kind]
        name = f"n{len(self._named)}"
        if kind == "fixed":
            self._named[name] = st.binary(min_size=3, max_size=3)
            return {"type": "fixed", "name": name, "size": 3}, self._named[name]
        if kind == "enum":
            self._named[name] = st.sampled_from(["a", "b"])
            return {"type": "enum", "name": name, "symbols": ["a", "b"]}, self._named[name]
        if kind == "union":
            schema, values = self.pair(0)
            if schema in ("null", {"type": "null"}):
                return schema, values
            return self._draw(st.permutations(["null", schema])), st.none() | values
        if kind == "pairs":
            value = self._draw(st.sampled_from(["int", "long", "bytes", "string"]))
            record = self._record({"key": ("int", PRIMITIVES["int"]), "value": (value, PRIMITIVES[value])})
            return {"type": "array", "items": record[0]}, st.lists(record[1], max_size=70)
        if kind == "record":
            return self._record({f"f{n}": self.pair(depth - 1) for n in range(self._draw(st.integers(0, 4)))})
        schema, values = self.pair(depth - 1)
        if kind == "array":
            return {"type": "array", "items": schema}, st.lists(values, max_size=70)
        return {"type": "map", "values": schema}, st.dictionaries(PRIMITIVES["string"], values, max_size=3)

    def _record(self, fields: Mapping[str, tuple[Any, Any]]) -> tuple[Any, st.SearchStrategy[Any]]:
        name = f"r{len(self._named)}"
        schema = {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, (t, _) in fields.items()]}
        self._named[name] = st.fixed_dictionaries({n: values for n, (_, values) in fields.items()})
        return schema, self._named[name]


@st.composite
def records(draw: st.DrawFn) -> tuple[Any, Any]:
    """A record schema and a value of it."""
    drawn = Drawn(draw)
    fields = [drawn.pair(2) for _ in range(draw(st.integers(1, 4)))]
    schema = {
        "type": "record",
        "name": "top",
        "fields": [{"name": f"t{n}", "type": s} for n, (s, _) in enumerate(fields)],
    }
    return schema, {f"t{n}": draw(values) for n, (_, values) in enumerate(fields)}


@settings(max_examples=examples(40))
@given(records())
def test_any_value_reads_as_with_fastavro(made: tuple[Any, Any]) -> None:
    parsed: Any = parse_schema(made[0])
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, parsed, made[1])
    data = sink.getvalue()
    types = AvroTypes(parsed)
    theirs = fastavro.schemaless_reader(io.BytesIO(data), parsed, None)
    assert types.reader(parsed)(b"#" + data, 1) == (theirs, len(data) + 1)
    assert types.skipper(parsed)(b"#" + data, 1) == len(data) + 1


def by_fastavro(data: bytes) -> list[tuple[Any, ...]]:
    """The entries of a manifest as fastavro reads them."""
    blocks: Any = fastavro.block_reader(io.BytesIO(data))
    schema = parse_schema(strip_logical_types(json.loads(blocks.metadata["avro.schema"])))
    found = []
    for block in blocks:
        for _ in range(block.num_records):
            record: Any = fastavro.schemaless_reader(block.bytes_, schema, None)
            file = record["data_file"]
            pairs = file["lower_bounds"]
            bounds = None if pairs is None else {pair["key"]: pair["value"] for pair in pairs}
            found.append(
                (record["status"], file["file_path"], file["file_size_in_bytes"], file["split_offsets"], bounds)
            )
    return found


def facts_of(entry: ManifestEntry) -> tuple[Any, ...]:
    file = entry.file
    offsets = None if file.split_offsets is None else list(file.split_offsets)
    return int(entry.status), file.file_path, file.file_size_in_bytes, offsets, file.lower_bounds


@settings(max_examples=examples(40))
@given(st.data())
def test_a_damaged_manifest_is_refused_or_reads_as_with_fastavro(data: st.DataObject) -> None:
    """A lazily read value fails when it is read (rule: damage-ends-in-a-named-error)."""
    made = data.draw(st.lists(entries(2), min_size=1, max_size=2).map(lambda lists: [e for es in lists for e in es]))
    metadata = drawn_table(2)
    written = encoded(metadata, made, ManifestContent.DATA)
    damaged = bytearray(uncompressed(written.data))
    start = damaged.index(b"avro.schema")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(max(start, len(damaged) - 600), len(damaged) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    broken = bytes(damaged)
    with suppress(MetadataUnreadable):
        found = list(decode_manifest(broken, written.manifest, metadata.specs[0]))
        for entry in found:
            repr(entry)  # reads all values
        assert [facts_of(entry) for entry in found] == by_fastavro(broken)
        live = [entry.file.key for entry in found if entry.status is not EntryStatus.DELETED]
        assert [(file.path, file.content_offset) for file in decode_live_files(broken, "m")] == live
        assert [key for key, _ in decode_identities(broken, written.manifest)] == live


# A learned expression reads the same as a walk from field to field, also from damaged entries
# (rule: damage-ends-in-a-named-error).


@contextmanager
def learning(lessons: int, sharp_from: int = 0) -> Iterator[None]:
    """Learn from every entry, at most ``lessons`` times, and start without learned expressions."""
    with (
        mock.patch.object(learned_entries, "_WALKED_FIRST", 0),
        mock.patch.object(learned_entries, "_NOTED_AT_ONCE", 1),
        mock.patch.object(learned_entries, "_MOST_LESSONS", lessons),
        mock.patch.object(learned_entries, "_SHARP_FROM", sharp_from),
    ):
        manifest_read._reader_of.cache_clear()
        manifest_write._reader_of.cache_clear()
        try:
            yield
        finally:
            manifest_read._reader_of.cache_clear()
            manifest_write._reader_of.cache_clear()


def all_that_is_read(data: bytes, manifest: ManifestFile, metadata: TableMetadata) -> list[Any]:
    """What each reader of manifests returns; "refused" if it refuses the manifest."""

    def outcome(found: Iterable[Any]) -> Any:
        try:
            return [repr(item) for item in found]
        except MetadataUnreadable:
            return "refused"

    spec, path = metadata.specs[0], manifest.manifest_path
    return [
        outcome(replace(entry, file=replace(entry.file)) for entry in decode_manifest(data, manifest, spec)),
        outcome(decode_live_files(data, path)),
        outcome(path for paths in decode_live_paths(data, path) for path in paths),
        outcome(decode_identities(data, manifest)),
        outcome(EntryCopier(metadata, 0).copy(data, manifest)),
    ]


@settings(max_examples=examples(8))
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_learned_expressions_read_the_same_as_a_walk(format_version: int, data: st.DataObject) -> None:
    made = data.draw(entries(format_version)) * 3
    metadata = drawn_table(format_version)
    written = encoded(metadata, made, ManifestContent.DATA)
    sound = uncompressed(written.data)
    whole = bytearray(sound)
    if data.draw(st.booleans()):
        header = len(uncompressed(encoded(metadata, [], ManifestContent.DATA).data))
        at = data.draw(st.integers(min(header, len(whole) - 1), len(whole) - 1))
        whole[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    # Expressions learned from the sound manifest must not make the damaged manifest readable.
    with learning(2, data.draw(st.integers(0, 3))):
        assert "refused" not in all_that_is_read(sound, written.manifest, metadata)
        learned = all_that_is_read(bytes(whole), written.manifest, metadata)
    with learning(0):
        assert learned == all_that_is_read(bytes(whole), written.manifest, metadata)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=90)
PAIRS = {"type": "record", "name": "k1", "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}]}
FIELDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("long", LONGS),
    (["null", "string"], st.none() | TEXTS),
    ("boolean", st.booleans()),
    ("double", st.floats(allow_nan=False)),
    ({"type": "fixed", "name": "f3", "size": 3}, st.binary(min_size=3, max_size=3)),
    (["null", {"type": "array", "items": ["null", "long"]}], st.none() | st.lists(st.none() | LONGS, max_size=70)),
    (
        {"type": "array", "items": PAIRS},
        st.lists(st.fixed_dictionaries({"key": st.integers(0, 999), "value": st.binary(max_size=70)}), max_size=70),
    ),
    ({"type": "map", "values": "long"}, st.dictionaries(TEXTS, LONGS, max_size=2)),
]
SCHEMA: Any = parse_schema(
    {"type": "record", "name": "top", "fields": [{"name": f"t{n}", "type": kind} for n, (kind, _) in enumerate(FIELDS)]}
)
TYPES = AvroTypes(SCHEMA)


@settings(max_examples=examples(100))
@given(st.data())
def test_picked_keys_read_as_among_all_pairs(data: st.DataObject) -> None:
    """Also from several blocks, with keys of more bytes than they need, and from damaged bytes."""
    blocks = []
    numbers = KEYS.map(lambda drawn: long_of(*drawn))
    texts = st.binary(max_size=70).map(lambda value: avro_long(len(value)) + value)
    read, values_of = data.draw(st.sampled_from([(read_bytes, texts), (read_long, numbers)]))
    for pairs in data.draw(st.lists(st.lists(st.tuples(numbers, values_of), min_size=1), max_size=2)):
        body = b"".join(key + value for key, value in pairs)
        head = avro_long(-len(pairs)) + avro_long(len(body)) if data.draw(st.booleans()) else avro_long(len(pairs))
        blocks.append(head + body)
    array = bytearray(b"".join(blocks) + b"\0" + data.draw(st.binary(max_size=3)))
    if data.draw(st.booleans()):
        array[data.draw(st.integers(0, len(array) - 1))] = data.draw(
            st.sampled_from([0, 1, 2, 0x80]) | st.integers(0, 255)
        )
    wanted = data.draw(st.frozensets(st.integers(0, 200), min_size=1, max_size=20))
    try:
        values, end = keyed_reader(read)(bytes(array), 0)
    except (IndexError, ValueError):
        with pytest.raises((IndexError, ValueError)):
            picking_reader(wanted, read)(bytes(array), 0)
        return
    assert picking_reader(wanted, read)(bytes(array), 0) == ({k: v for k, v in values.items() if k in wanted}, end)


KEYS = st.tuples(st.integers(0, 200), st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 3]))


def long_of(value: int, spare: int) -> bytes:
    """A number in so many bytes more than it needs."""
    *first, last = avro_long(value)
    return bytes([*first, last | 0x80, *[0x80] * (spare - 1), 0]) if spare else avro_long(value)


@settings(max_examples=examples(20))
@given(st.data())
def test_late_fields_read_alike_in_any_order(data: st.DataObject) -> None:
    metadata, made = drawn_table(2), data.draw(entries(2))
    written = encoded(metadata, made, ManifestContent.DATA)
    names = data.draw(st.permutations(sorted(LATE_FIELDS.values())))
    columns = data.draw(st.frozensets(st.integers(1, 9)))
    with learning(data.draw(st.sampled_from([0, 2]))):
        read = list(decode_manifest(written.data, written.manifest, metadata.specs[0]))
    for entry, own in zip(read, made, strict=True):
        for name in METRIC_FIELDS.values():
            picked, every = metric_of(entry.file, name, columns), getattr(own.file, name) or {}
            assert {c: picked.get(c) for c in columns} == {c: every.get(c) for c in columns}
        assert {name: getattr(entry.file, name) for name in names} == {n: getattr(own.file, n) for n in names}


@settings(max_examples=examples(100))
@given(st.data())
def test_a_pattern_matches_a_value_to_its_end_or_not_at_all(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(FIELDS))
    first, other = (as_bytes(kind, data.draw(values)) for _ in range(2))
    rest = data.draw(st.binary(max_size=5))
    try:
        pattern, end = value_pattern(TYPES, kind, first, 0)
    except PatternUnknownError:
        return
    assert end == len(first)
    find = re.compile(pattern, re.DOTALL).match
    own = find(first + rest)
    assert own is not None
    assert own.end() == len(first)
    found = find(other + rest)
    assert found is None or found.end() == len(other)
    # A truncated value never matches.
    assert all(find(first[:cut]) is None for cut in range(len(first)))
    # A sharper pattern matches the same, also if two values of a layout have different columns or lengths.
    damaged = bytearray(other)
    if other:
        damaged[data.draw(st.integers(0, len(other) - 1))] = data.draw(st.integers(0, 255))
    for examples_of in ([first], [first, other] if found is not None else [first, first]):
        sharp = re.compile(sharpened(pattern, examples_of), re.DOTALL).match
        for value in (first + rest, other + rest, bytes(damaged), first[:-1]):
            plain, same = find(value), sharp(value)
            assert (plain is None) == (same is None)
            assert plain is None or same is None or plain.end() == same.end()


def as_bytes(kind: Any, value: Any) -> bytes:
    schema: Any = parse_schema({"type": "record", "name": "one", "fields": [{"name": "v", "type": kind}]}, {})
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schema, {"v": value})
    return sink.getvalue()


def test_few_entries_are_read_without_learning() -> None:
    """A lesson takes as long as a walk over about a hundred entries."""
    steps = [EntryStep(slot, TYPES.reader("long"), "long", bytes.hex) for slot in range(2)]
    reader = EntryReader(steps, [None, None], TYPES)
    assert reader.read_block(b"\x02\x04" * 200, 200) == ([(1,) * 200, (2,) * 200], 400)
    assert reader.read_block(b"\x02\x04" * 100, 100) == ([(1,) * 50 + ("02",) * 50, (2,) * 50 + ("04",) * 50], 200)
    assert reader.read_block(b"\x02\x80\x02\x04\x06", 2) == ([["02", "04"], ["8002", "06"]], 5)
    # An entry with an unknown layout is walked; here its number has too many bytes.
    with pytest.raises(ValueError, match="64 bits"):
        reader.read_block(b"\x80" * 10 + b"\x01", 1)


ENTRIES = st.lists(st.sampled_from([b"\x02\x02x", b"\x06\x02y", b"\x02\x04zz", b"\x02\x06zzz"]), max_size=3)
DAMAGE = st.just(b"") | st.just(b"") | st.binary(max_size=3)


@settings(max_examples=examples(100))
@given(
    ENTRIES,
    ENTRIES,
    DAMAGE,
    st.sampled_from([0, 0, 0, 1, -1]),
    st.permutations([0, 1]),
    st.sampled_from([Stretch(2, 0, 0), Stretch(2, 0, 1), Stretch(2, 1, 1)]),
)
def test_a_block_reads_the_same_as_its_single_entries(
    before: list[bytes], behind: list[bytes], damage: bytes, more: int, slots: list[int], stretch: Stretch
) -> None:
    """The walk reads entries of an unknown layout (a text of three letters), damage and wrong counts."""
    kinds = [("long", lambda encoded: encoded[0] // 2), ("string", lambda encoded: encoded[1:].decode())]
    steps = [
        EntryStep(slot, TYPES.reader(kind), kind, decode) for slot, (kind, decode) in zip(slots, kinds, strict=True)
    ]
    data, count = b"".join([*before, damage, *behind]), max(0, len(before) + len(behind) + more)

    def one_by_one() -> tuple[list[Any], int]:
        rows, at = [], 0
        for _ in range(count):
            row, at = reader._read(data, at)
            rows.append(row)
        return rows, at

    def at_once() -> tuple[list[Any], int]:
        columns, end = reader.read_block(data, count)
        assert len(columns) == 3
        return [*zip(*columns, strict=True)], end

    def outcome(read: Any) -> Any:
        try:
            rows, end = read()
            return [[*row] for row in rows], end
        except Exception as error:
            return type(error)

    with learning(2):
        reader = EntryReader(steps, [None, None, b""], TYPES, stretch)
        for known in (b"\x02\x02x", b"\x02\x04zz"):
            reader.read_block(known, 1)
        assert outcome(at_once) == outcome(one_by_one)
