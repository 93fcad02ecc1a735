"""Entries are copied as bytes where they may be, and come out as if they had been decoded and encoded."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from deflate import deflate_compress
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.errors import MetadataUnreadable
from icekeeper.machine.resources import on_cores
from icekeeper.metadata import manifest_write as manifest_copy
from icekeeper.metadata.avro_files import open_avro, structure, write_avro
from icekeeper.metadata.avro_schemas import manifest_schema
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import decode_manifest
from icekeeper.metadata.manifest_write import (
    EncodedManifest,
    EntryCopier,
    ManifestAssembler,
    NewSnapshot,
    avro_long,
    encode_manifest,
    entry_blocks,
)
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile
from support.plans import data_file, table

SPEC = {
    "spec-id": 0,
    "fields": [
        {"field-id": 1000, "source-id": 1, "name": "price", "transform": "identity"},
        {"field-id": 1001, "source-id": 2, "name": "we ird", "transform": "identity"},
        {"field-id": 1002, "source-id": 3, "name": "gone", "transform": "void"},
        {"field-id": 1003, "source-id": 4, "name": "x", "transform": "identity"},
    ],
}
FIELDS = [
    {"id": 1, "name": "price", "required": False, "type": "decimal(9, 2)"},
    {"id": 2, "name": "s", "required": False, "type": "string"},
    {"id": 3, "name": "gone", "required": False, "type": "string"},
    {"id": 4, "name": "x", "required": False, "type": "double"},
]


def table_of(version: int, **changes: str) -> TableMetadata:
    fields = [{**field, "type": changes.get(str(field["name"]), field["type"])} for field in FIELDS]
    return table(version, schemas=[{"type": "struct", "schema-id": 0, "fields": fields}], **{"partition-specs": [SPEC]})


partitions = st.tuples(
    st.sampled_from([None, b"\x00", b"\x01\x00", b"\xff"]),
    st.sampled_from([None, "", "eu", "é"]),
    st.none(),
    st.sampled_from([None, -0.0, 0.0, float("nan"), 2.5]),
)
longs = st.sampled_from([0, 1, 63, 64, 8191, 8192, 2**31, 2**62])
# A row id is a first one and the records before it: their sum is a long, too.
row_counts = st.integers(0, 2**55)
maps = st.one_of(st.none(), st.dictionaries(st.integers(1, 300), longs, max_size=4))
bounds = st.one_of(st.none(), st.dictionaries(st.integers(1, 300), st.binary(max_size=70), max_size=4))


@st.composite
def entries(draw: st.DrawFn, version: int) -> ManifestEntry:
    status = draw(st.sampled_from(EntryStatus))
    explicit = status is not EntryStatus.ADDED or draw(st.booleans())
    numbers = longs.map(lambda number: number or 1) if version > 1 else st.just(0)
    more: dict[str, Any] = {}
    if version >= 3:
        more |= {"content_offset": draw(st.none() | longs), "content_size_in_bytes": draw(st.none() | longs)}
        if status is not EntryStatus.ADDED:
            more["first_row_id"] = draw(st.none() | row_counts)
    if version >= 2:
        more |= {
            "equality_ids": draw(st.sampled_from([None, (), (1, 2)])),
            "referenced_data_file": draw(st.sampled_from([None, "", "s3://b/ü.parquet"])),
        }
    file = data_file(
        draw(st.text(min_size=1, max_size=90)),
        draw(longs),
        draw(partitions),
        records=draw(row_counts),
        column_sizes=draw(maps),
        value_counts=draw(maps),
        null_value_counts=draw(maps),
        nan_value_counts=draw(maps),
        lower_bounds=draw(bounds),
        upper_bounds=draw(bounds),
        key_metadata=draw(st.sampled_from([None, b"", b"key"])),
        split_offsets=draw(st.sampled_from([None, (), (4, 2**33)])),
        sort_order_id=draw(st.none() | st.integers(0, 3)),
        **more,
    )
    return ManifestEntry(
        status,
        draw(longs) if explicit or version == 1 else None,
        draw(numbers) if explicit else None,
        draw(numbers) if explicit else None,
        file,
    )


@st.composite
def stored(draw: st.DrawFn) -> tuple[TableMetadata, EncodedManifest]:
    """A manifest of one format version, listed in a table of that or a later one."""
    version = draw(st.integers(1, 3))
    writer = table_of(version)
    content = draw(st.sampled_from(ManifestContent)) if version > 1 else ManifestContent.DATA
    encoded = encode_manifest(
        writer,
        spec_id=0,
        content=content,
        entries=draw(st.lists(entries(version), min_size=1, max_size=6)),
        path="m.avro",
        snapshot=NewSnapshot(77, 0 if version == 1 else 9),
    )
    reader = table_of(draw(st.integers(version, 3)), **draw(st.sampled_from([{}, {"price": "decimal(20, 2)"}])))
    first_row_id = (
        draw(st.none() | row_counts) if reader.format_version >= 3 and content is ManifestContent.DATA else None
    )
    return reader, replace(encoded, manifest=replace(encoded.manifest, first_row_id=first_row_id))


def expected(metadata: TableMetadata, manifest: EncodedManifest) -> list[ManifestEntry]:
    """Read, and written as an EXISTING entry of the table's version, and read again."""
    live = [e for e in decode_manifest(manifest.data, manifest.manifest, SPEC) if e.is_live]
    return [_in_version(replace(entry, status=EntryStatus.EXISTING), metadata.format_version) for entry in live]


def _in_version(entry: ManifestEntry, version: int) -> ManifestEntry:
    if version > 1:
        return entry
    return replace(entry, sequence_number=0, file_sequence_number=0)


def copied(metadata: TableMetadata, manifest: EncodedManifest) -> list[ManifestEntry]:
    assembler = ManifestAssembler(metadata, 0, manifest.manifest.content)
    blocks = entry_blocks(EntryCopier(metadata, 0).copy(manifest.data, manifest.manifest), 200)
    with on_cores(2):
        assert entry_blocks(EntryCopier(metadata, 0).copy(manifest.data, manifest.manifest), 200) == blocks
    if not blocks:
        return []
    put = assembler.assemble(blocks, "new.avro")
    assert put.manifest.existing_files_count == sum(block.files for block in blocks)
    return list(decode_manifest(put.data, put.manifest, SPEC))


@settings(max_examples=150)
@given(stored())
def test_a_copied_entry_is_the_entry_with_all_that_it_inherited(found: tuple[TableMetadata, EncodedManifest]) -> None:
    """Of every version into every later one; repr, because NaN is not itself."""
    metadata, manifest = found
    assert repr(copied(metadata, manifest)) == repr(expected(metadata, manifest))


def one(version: int = 3, *, first_row_id: int | None = 100, count: int = 3) -> EncodedManifest:
    files = [data_file(f"f{i}", 10, (b"\x01", "eu", None, 1.5), records=70) for i in range(count)]
    made = [ManifestEntry(EntryStatus.ADDED, None if version > 1 else 5, None, None, file) for file in files]
    encoded = encode_manifest(
        table_of(version),
        spec_id=0,
        content=ManifestContent.DATA,
        entries=made,
        path="m.avro",
        snapshot=NewSnapshot(77, 0 if version == 1 else 9),
    )
    return replace(encoded, manifest=replace(encoded.manifest, first_row_id=first_row_id))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_we_and_java_write_is_copied_without_being_decoded(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(*arguments: object) -> None:
        raise AssertionError("decoded")

    expected_entries = expected(table_of(version), one(version, first_row_id=None))
    monkeypatch.setattr(manifest_copy, "decode_manifest", decoded)
    assert repr(copied(table_of(version), one(version, first_row_id=None))) == repr(expected_entries)


def test_row_ids_that_were_inherited_become_explicit() -> None:
    assert [e.file.first_row_id for e in copied(table_of(3), one())] == [100, 170, 240]
    assert [e.file.first_row_id for e in copied(table_of(3), one(first_row_id=None))] == [None] * 3
    deletes = one()
    deletes = replace(deletes, manifest=replace(deletes.manifest, content=ManifestContent.DELETES))
    assert [e.file.first_row_id for e in copied(table_of(3), deletes)] == [None] * 3


def test_numbers_in_more_bytes_than_they_need_are_read_all_the_same() -> None:
    """Legal Avro: the entry is then decoded."""
    manifest = one(2, first_row_id=None, count=1)
    header = open_avro(manifest.data, "m").header
    (entry,) = decode_manifest(manifest.data, manifest.manifest, SPEC)
    block: Any = next(iter(fastavro.block_reader(io.BytesIO(manifest.data))))
    payload = block.bytes_.getvalue()
    assert payload[:2] == b"\x02\x00"  # status ADDED, no snapshot id
    empty = write_avro(json.loads(header["avro.schema"]), (), {k: v for k, v in header.items() if k[:5] != "avro."})
    padded = deflate_compress(b"\x82\x00" + payload[1:])
    data = empty + avro_long(1) + avro_long(len(padded)) + padded + empty[-16:]
    again = EncodedManifest(data, manifest.manifest)
    assert list(decode_manifest(data, manifest.manifest, SPEC)) == [entry]
    assert copied(table_of(2), again) == [replace(entry, status=EntryStatus.EXISTING)]


def test_an_entry_without_snapshot_is_no_entry() -> None:
    manifest = one()
    orphaned = ManifestFile(manifest_path="m.avro", manifest_length=1, partition_spec_id=0, added_snapshot_id=None)
    with pytest.raises(MetadataUnreadable, match=r"m\.avro holds an entry without snapshot id"):
        list(EntryCopier(table_of(3), 0).copy(manifest.data, replace(orphaned, sequence_number=9)))


def test_structure_is_what_decides_the_bytes() -> None:
    """Names, documentation and logical types do not; ids, order and widths do."""
    schema = manifest_schema(2, table_of(2).schemas_current_first, SPEC)
    renamed = json.loads(json.dumps(schema).replace('"we_x20ird"', '"other"').replace('"record_count"', '"rows"'))
    assert structure(renamed) == structure(schema)
    wider = manifest_schema(2, table_of(2, price="decimal(20, 2)").schemas_current_first, SPEC)
    assert structure(wider) != structure(schema)
    swapped = {**schema, "fields": [schema["fields"][1], schema["fields"][0], *schema["fields"][2:]]}
    assert structure(swapped) != structure(schema)
    assert structure(json.loads(json.dumps(schema).replace('"field-id": 103', '"field-id": 104'))) != structure(schema)
    twice = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "a", "type": {"type": "fixed", "name": "f", "size": 3}}, {"name": "b", "type": "f"}],
    }
    spelled = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": {"type": "fixed", "name": "f", "size": 3}},
            {"name": "b", "type": {"type": "fixed", "name": "g", "size": 3}},
        ],
    }
    assert structure(twice) == structure(spelled)


@pytest.mark.parametrize("value", [0, -1, 1, 63, -64, 64, 2**62, -(2**63), 2**63 - 1])
def test_longs_are_encoded_as_avro_does(value: int) -> None:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, "long", value)
    assert avro_long(value) == sink.getvalue()
