"""Values of any schema, and damaged manifests, are read as fastavro reads them, and passed over to the same end."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from unittest import mock

import fastavro
from fastavro.schema import parse_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata import avro_files
from icekeeper.metadata.avro_files import strip_logical_types
from icekeeper.metadata.avro_values import AvroTypes
from icekeeper.metadata.manifest_read import decode_identities, decode_live_files, decode_manifest
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry
from support.examples import examples
from support.manifests import drawn_table, encoded, entries

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
    """Schemas that may refer to types by name, each with values."""

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


@settings(max_examples=examples(60))
@given(records())
def test_any_value_is_read_as_fastavro_reads_it(made: tuple[Any, Any]) -> None:
    parsed: Any = parse_schema(made[0])
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, parsed, made[1])
    data = sink.getvalue()
    types = AvroTypes(parsed["__named_schemas"])
    theirs = fastavro.schemaless_reader(io.BytesIO(data), parsed, None)
    assert types.reader(parsed)(b"#" + data, 1) == (theirs, len(data) + 1)
    assert types.skipper(parsed)(b"#" + data, 1) == len(data) + 1


def by_fastavro(data: bytes) -> list[tuple[Any, ...]]:
    """What fastavro reads of the entries of a manifest."""
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


def told(entry: ManifestEntry) -> tuple[Any, ...]:
    file = entry.file
    offsets = None if file.split_offsets is None else list(file.split_offsets)
    return int(entry.status), file.file_path, file.file_size_in_bytes, offsets, file.lower_bounds


@settings(max_examples=examples(60))
@given(st.data())
def test_a_damaged_manifest_is_refused_or_read_as_fastavro_reads_it(data: st.DataObject) -> None:
    """What is read only when it is asked for is damaged then, or never (rule 132)."""
    made = data.draw(st.lists(entries(2), min_size=1, max_size=2).map(lambda lists: [e for one in lists for e in one]))
    metadata = drawn_table(2)
    with mock.patch.object(avro_files, "_CODEC", "null"):
        written = encoded(metadata, made, ManifestContent.DATA)
    damaged = bytearray(written.data)
    start = damaged.index(b"avro.schema")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(max(start, len(damaged) - 600), len(damaged) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    broken = bytes(damaged)
    with suppress(MetadataUnreadable):
        found = list(decode_manifest(broken, written.manifest, metadata.specs[0]))
        for entry in found:
            repr(entry)  # asks for everything
        assert [told(entry) for entry in found] == by_fastavro(broken)
        live = [entry.file.key for entry in found if entry.status is not EntryStatus.DELETED]
        assert [(file.path, file.content_offset) for file in decode_live_files(broken, "m")] == live
        assert [key for key, _ in decode_identities(broken, written.manifest)] == live
