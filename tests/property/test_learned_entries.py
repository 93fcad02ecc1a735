"""What is read by a learned expression is what a walk from field to field reads, of damaged entries too (rule 173)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import fastavro
import pytest
from fastavro.schema import parse_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata import avro_files, manifest_read
from icekeeper.metadata import entry_columns as learned_entries
from icekeeper.metadata import manifest_write as manifest_copy
from icekeeper.metadata.avro_values import AvroTypes
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.entry_columns import EntryReader, EntryStep, PatternUnknownError, value_pattern
from icekeeper.metadata.manifest_read import decode_identities, decode_live_files, decode_live_paths, decode_manifest
from icekeeper.metadata.manifest_write import EntryCopier
from icekeeper.model import ManifestContent, ManifestFile
from support.examples import examples
from support.manifests import drawn_table, encoded, entries

LAYOUTS = (
    manifest_read._entry_layout,
    manifest_read._live_layout,
    manifest_read._path_layout,
    manifest_read._identity_layout,
    manifest_copy._layout,
)


@contextmanager
def learning(lessons: int) -> Iterator[None]:
    """Each entry is learned from, so many times at most, and nothing that was learned before is known."""
    with (
        mock.patch.object(learned_entries, "_WALKED_FIRST", 0),
        mock.patch.object(learned_entries, "_NOTED_AT_ONCE", 1),
        mock.patch.object(learned_entries, "_MOST_LESSONS", lessons),
    ):
        for layout in LAYOUTS:
            layout.cache_clear()
        try:
            yield
        finally:
            for layout in LAYOUTS:
                layout.cache_clear()


def all_that_is_read(data: bytes, manifest: ManifestFile, metadata: TableMetadata) -> list[Any]:
    """By everyone who reads manifests, and whether they refuse it."""

    def told(found: Iterable[Any]) -> Any:
        try:
            return [repr(one) for one in found]
        except MetadataUnreadable:
            return "refused"

    spec, path = metadata.specs[0], manifest.manifest_path
    return [
        told(replace(entry, file=replace(entry.file)) for entry in decode_manifest(data, manifest, spec)),
        told(decode_live_files(data, path)),
        told(path for paths in decode_live_paths(data, path) for path in paths),
        told(decode_identities(data, manifest)),
        told(EntryCopier(metadata, 0).copy(data, manifest)),
    ]


@settings(max_examples=examples(8))
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_learned_entries_read_as_walked_ones(format_version: int, data: st.DataObject) -> None:
    made = data.draw(entries(format_version)) * 3
    metadata = drawn_table(format_version)
    with mock.patch.object(avro_files, "_CODEC", "null"):
        written = encoded(metadata, made, ManifestContent.DATA)
    whole = bytearray(written.data)
    if data.draw(st.booleans()):
        header = len(encoded(metadata, [], ManifestContent.DATA).data)
        at = data.draw(st.integers(min(header, len(whole) - 1), len(whole) - 1))
        whole[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    # What is learned of a manifest that is whole must not make one readable that is not.
    with learning(2):
        all_that_is_read(written.data, written.manifest, metadata)
        learned = all_that_is_read(bytes(whole), written.manifest, metadata)
    with learning(0):
        assert learned == all_that_is_read(bytes(whole), written.manifest, metadata)


LONGS = st.integers(-(2**63), 2**63 - 1)
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
TYPES = AvroTypes(SCHEMA["__named_schemas"])


@settings(max_examples=examples(100))
@given(st.data())
def test_a_pattern_matches_a_value_to_its_end_or_not_at_all(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(FIELDS))
    first, other = (as_bytes(kind, data.draw(values)) for _ in range(2))
    behind = data.draw(st.binary(max_size=5))
    try:
        pattern, end = value_pattern(TYPES, kind, first, 0)
    except PatternUnknownError:
        return
    assert end == len(first)
    find = re.compile(pattern, re.DOTALL).match
    own = find(first + behind)
    assert own is not None
    assert own.end() == len(first)
    found = find(other + behind)
    assert found is None or found.end() == len(other)
    # Cut off anywhere, nothing is found but what ends there or before.
    assert all(find(first[:cut]) is None for cut in range(len(first)))


def as_bytes(kind: Any, value: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schema_of(kind), {"v": value})
    return sink.getvalue()


def schema_of(kind: Any) -> Any:
    return parse_schema({"type": "record", "name": "one", "fields": [{"name": "v", "type": kind}]}, {})


def test_nothing_is_learned_of_few_entries() -> None:
    """A lesson takes as long as walking some hundred entries."""
    steps = [EntryStep(slot, TYPES.reader("long"), "long", bytes.hex) for slot in range(2)]
    reader = EntryReader(steps, [None, None], TYPES)
    before = [reader.read(b"\x02\x04", 0)[0] for _ in range(200)]
    after = [reader.read(b"\x02\x04", 0)[0] for _ in range(100)]
    assert before == [[1, 2]] * 200
    assert after == [[1, 2]] * 50 + [["02", "04"]] * 50
    assert reader.read_block(b"\x02\x80\x02\x04\x06", 2) == ([("02", "8002"), ("04", "06")], 5)
    # Of one that is laid out in no way that was seen, here with a number of more bytes than there may be:
    with pytest.raises(ValueError, match="64 bits"):
        reader.read(b"\x80" * 10 + b"\x01", 0)


ENTRIES = st.lists(st.sampled_from([b"\x02\x02x", b"\x06\x02y", b"\x02\x04zz", b"\x02\x06zzz"]), max_size=3)
DAMAGE = st.just(b"") | st.just(b"") | st.binary(max_size=3)


@settings(max_examples=examples(150))
@given(ENTRIES, ENTRIES, DAMAGE, st.sampled_from([0, 0, 0, 1, -1]), st.permutations([0, 1]), st.integers(0, 2))
def test_a_block_is_read_as_its_entries_are_one_by_one(
    before: list[bytes], behind: list[bytes], damage: bytes, more: int, slots: list[int], place: int
) -> None:
    """Entries of a layout that was not seen (a text of three letters), damage and wrong counts are for the walk."""
    kinds = [("long", lambda encoded: encoded[0] // 2), ("string", lambda encoded: encoded[1:].decode())]
    steps = [
        EntryStep(slot, TYPES.reader(kind), kind, decode) for slot, (kind, decode) in zip(slots, kinds, strict=True)
    ]
    steps.insert(place, EntryStep(2, lambda data, at: (at, at)))
    data, count = b"".join([*before, damage, *behind]), max(0, len(before) + len(behind) + more)

    def one_by_one() -> tuple[list[Any], int]:
        rows, at = [], 0
        for _ in range(count):
            row, at = reader.read(data, at)
            rows.append(row)
        return rows, at

    def told(read: Any) -> Any:
        try:
            rows, end = read()
            return [[*row] for row in rows], end
        except Exception as error:
            return type(error)

    with learning(2):
        reader = EntryReader(steps, [None, None, None], TYPES)
        for known in (b"\x02\x02x", b"\x02\x04zz"):
            reader.read(known, 0)
        assert told(lambda: reader.read_block(data, count)) == told(one_by_one)
