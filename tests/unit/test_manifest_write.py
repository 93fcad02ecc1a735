"""Written manifests: copied entries, explicit fields, sizes, and order."""

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

from icekeeper.commit import manifest_lanes
from icekeeper.commit.manifest_lanes import ManifestLanes
from icekeeper.errors import MetadataUnreadable
from icekeeper.machine.resources import on_cores
from icekeeper.metadata import manifest_write as manifest_copy
from icekeeper.metadata.avro_files import open_avro, structure, write_avro
from icekeeper.metadata.avro_schemas import avro_name, manifest_schema
from icekeeper.metadata.avro_values import avro_long
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import decode_identities, decode_manifest, decode_manifest_list
from icekeeper.metadata.manifest_write import (
    EncodedManifest,
    EntryCopier,
    ManifestAssembler,
    ManifestBuilder,
    encode_manifest,
    encode_manifest_list,
    entry_blocks,
)
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.operations.manifests.lanes import ManifestsOfTable, SplitTask, split_entries
from support.manifests import DRAWN_FIELDS, drawn_table, encoded, entries
from support.plans import data_file, table

# Entries are copied as bytes where possible; the result equals that of decoding and encoding.

SPEC: dict[str, Any] = {
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


def table_of(version: int, price: str = "decimal(9, 2)") -> TableMetadata:
    return drawn_table(version, [{**FIELDS[0], "type": price}, *FIELDS[1:]], SPEC["fields"])


@st.composite
def stored(draw: st.DrawFn) -> tuple[TableMetadata, EncodedManifest]:
    """A manifest in a table of the same or a later format version, whose decimals may be promoted."""
    version = draw(st.integers(1, 3))
    content = draw(st.sampled_from(ManifestContent)) if version > 1 else ManifestContent.DATA
    written = encoded(drawn_table(version), draw(entries(version)), content)
    wider = draw(st.sampled_from(["decimal(9,2)", "decimal(20,2)"]))
    fields = [{**field, "type": wider if field["type"] == "decimal(9,2)" else field["type"]} for field in DRAWN_FIELDS]
    reader = drawn_table(draw(st.integers(version, 3)), fields)
    has_row_ids = reader.format_version >= 3 and content is ManifestContent.DATA
    first_row_id = draw(st.none() | st.integers(0, 2**55)) if has_row_ids else None
    return reader, replace(written, manifest=replace(written.manifest, first_row_id=first_row_id))


def expected(metadata: TableMetadata, manifest: EncodedManifest) -> list[ManifestEntry]:
    """The entries after reading, writing as EXISTING in the table's format version, and reading again."""
    live = [e for e in decode_manifest(manifest.data, manifest.manifest, metadata.specs[0]) if e.is_live]
    numbers: dict[str, Any] = {"sequence_number": 0, "file_sequence_number": 0} if metadata.format_version == 1 else {}
    return [replace(entry, status=EntryStatus.EXISTING, **numbers) for entry in live]


def copied(metadata: TableMetadata, manifest: EncodedManifest) -> list[ManifestEntry]:
    assembler = ManifestAssembler(metadata, 0, manifest.manifest.content)
    blocks = entry_blocks(EntryCopier(metadata, 0).copy(manifest.data, manifest.manifest), 200)
    with on_cores(2):
        assert entry_blocks(EntryCopier(metadata, 0).copy(manifest.data, manifest.manifest), 200) == blocks
    if not blocks:
        return []
    put = assembler.assemble(blocks, "new.avro")
    assert put.manifest.existing_files_count == sum(block.files for block in blocks)
    return list(decode_manifest(put.data, put.manifest, metadata.specs[0]))


@settings(max_examples=60)
@given(stored())
def test_a_copied_entry_states_every_value_that_it_inherited(found: tuple[TableMetadata, EncodedManifest]) -> None:
    """From every format version into every later version; repr, because NaN does not equal itself."""
    metadata, manifest = found
    assert repr(copied(metadata, manifest)) == repr(expected(metadata, manifest))


def manifest_of(version: int = 3, *, first_row_id: int | None = 100, count: int = 3) -> EncodedManifest:
    files = [data_file(f"f{i}", 10, (b"\x01", "eu", None, 1.5), records=70) for i in range(count)]
    made = [ManifestEntry(EntryStatus.ADDED, None if version > 1 else 5, None, None, file) for file in files]
    written = encoded(table_of(version), made, ManifestContent.DATA)
    return replace(written, manifest=replace(written.manifest, first_row_id=first_row_id))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_entries_by_icekeeper_and_java_are_copied_without_decoding(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoded(*arguments: object) -> None:
        raise AssertionError("decoded")

    expected_entries = expected(table_of(version), manifest_of(version, first_row_id=None))
    monkeypatch.setattr(manifest_copy, "decode_manifest", decoded)
    assert repr(copied(table_of(version), manifest_of(version, first_row_id=None))) == repr(expected_entries)


def test_inherited_row_ids_become_explicit() -> None:
    assert [e.file.first_row_id for e in copied(table_of(3), manifest_of())] == [100, 170, 240]
    assert [e.file.first_row_id for e in copied(table_of(3), manifest_of(first_row_id=None))] == [None] * 3
    deletes = manifest_of()
    deletes = replace(deletes, manifest=replace(deletes.manifest, content=ManifestContent.DELETES))
    assert [e.file.first_row_id for e in copied(table_of(3), deletes)] == [None] * 3


def test_overlong_integers_are_read() -> None:
    """They are legal Avro; the copy decodes the entry."""
    manifest = manifest_of(2, first_row_id=None, count=1)
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


def test_an_entry_without_a_snapshot_id_is_refused() -> None:
    manifest = manifest_of()
    orphaned = ManifestFile(manifest_path="m.avro", manifest_length=1, partition_spec_id=0, added_snapshot_id=None)
    with pytest.raises(MetadataUnreadable, match=r"m\.avro has an entry without snapshot id"):
        list(EntryCopier(table_of(3), 0).copy(manifest.data, replace(orphaned, sequence_number=9)))


def test_schemas_of_equal_structure_encode_equally() -> None:
    """The structure has ids, order and widths, but no names, documentation or logical types."""
    schema = manifest_schema(2, table_of(2).schemas_current_first, SPEC)
    renamed = json.loads(json.dumps(schema).replace('"we_x20ird"', '"other"').replace('"record_count"', '"rows"'))
    assert structure(renamed) == structure(schema)
    wider = manifest_schema(2, table_of(2, "decimal(20, 2)").schemas_current_first, SPEC)
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
def test_longs_are_encoded_as_fastavro_encodes_them(value: int) -> None:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, "long", value)
    assert avro_long(value) == sink.getvalue()


# Entries of one partition share its sort position; partitions that only Python considers equal have separate positions.

PLACED_SPEC = {"spec-id": 0, "fields": [{"field-id": 1000, "source-id": 1, "name": "x", "transform": "identity"}]}
FIELD = {"id": 1, "name": "x", "required": False, "type": "double"}


def test_zero_and_minus_zero_have_separate_positions() -> None:
    schema = {"type": "struct", "schema-id": 0, "fields": [FIELD]}
    metadata = table(2, schemas=[schema], **{"partition-specs": [PLACED_SPEC]})
    values = (0.0, -0.0, 0.0, None)
    stored = encode_manifest(
        metadata,
        spec_id=0,
        content=ManifestContent.DATA,
        entries=[
            ManifestEntry(EntryStatus.EXISTING, 7, 1, 1, data_file(f"{number}", 1, (value,)))
            for number, value in enumerate(values)
        ],
        path="m.avro",
        snapshot_id=77,
        sequence_number=9,
    )
    task = SplitTask(ManifestsOfTable(metadata.document, 0, ManifestContent.DATA, {}), (stored.manifest,), (), 0)
    ((_, part),) = split_entries(task, lambda path: stored.data)
    assert not isinstance(part, str)
    places = part[0]
    order = sorted(range(len(values)), key=lambda number: (places[number], number))
    assert [values[number] for number in order] == [None, -0.0, 0.0, 0.0]
    assert order == [3, 1, 0, 2]
    assert places[0] is places[2]


# Manifests and manifest lists: entries state their ids explicitly, and errors name a damaged file.


def entry(status: EntryStatus, snapshot_id: int | None, number: int | None, file_number: int | None) -> ManifestEntry:
    return ManifestEntry(status, snapshot_id, number, file_number, data_file("s3://b/f.parquet", 1, records=1))


@pytest.mark.parametrize("status", [EntryStatus.EXISTING, EntryStatus.DELETED])
@pytest.mark.parametrize(("snapshot_id", "number"), [(None, 1), (1, None)])
def test_existing_and_deleted_entries_must_state_their_ids(
    status: EntryStatus, snapshot_id: int | None, number: int | None
) -> None:
    """If null, they would inherit the numbers of the wrong snapshot (rule: carry-entries-explicitly)."""
    with pytest.raises(ValueError, match="must state its ids explicitly"):
        encoded(drawn_table(2, spec=[]), [entry(status, snapshot_id, number, 1)], ManifestContent.DATA)


@pytest.mark.parametrize("status", [EntryStatus.EXISTING, EntryStatus.DELETED])
def test_a_missing_file_sequence_number_is_not_invented(status: EntryStatus) -> None:
    """Early v2 writers lost it; Java and PyIceberg read such entries, and no reader needs the number."""
    metadata = drawn_table(2, spec=[])
    lost = entry(status, 1, 1, None)
    written = encoded(metadata, [lost], ManifestContent.DATA)
    assert list(decode_manifest(written.data, written.manifest, metadata.specs[0])) == [lost]
    copied = list(EntryCopier(metadata, 0).copy(written.data, written.manifest))
    assert len(copied) == (status is EntryStatus.EXISTING)
    identities = dict(decode_identities(written.data, written.manifest))
    assert identities == ({lost.file.key: lost.identity} if status is EntryStatus.EXISTING else {})


def test_an_existing_entry_without_sequence_number_is_readable_only_in_a_manifest_from_v1() -> None:
    metadata = drawn_table(2, spec=[])
    schema = manifest_schema(2, metadata.schemas_current_first, metadata.specs[0])
    sink = io.BytesIO()
    file = {"content": 0, "file_path": "f", "file_format": "PARQUET", "partition": {}, "record_count": 1}
    record = {"status": 0, "snapshot_id": 1, "data_file": {**file, "file_size_in_bytes": 1}}
    fastavro.writer(sink, fastavro.parse_schema(schema), [record])
    manifest = encoded(metadata, [], ManifestContent.DATA).manifest
    with pytest.raises(MetadataUnreadable, match="EXISTING entry without sequence number"):
        list(decode_manifest(sink.getvalue(), manifest, metadata.specs[0]))
    from_v1 = replace(manifest, sequence_number=0)
    (found,) = decode_manifest(sink.getvalue(), from_v1, metadata.specs[0])
    assert (found.sequence_number, found.file_sequence_number) == (0, 0)
    assert list(decode_identities(sink.getvalue(), from_v1)) == [(found.file.key, found.identity)]


def test_v1_entries_have_the_block_size_that_v1_readers_require() -> None:
    written = encoded(drawn_table(1, spec=[]), [entry(EntryStatus.ADDED, 1, None, None)], ManifestContent.DATA)
    record: Any = next(fastavro.reader(io.BytesIO(written.data)))
    assert record["data_file"]["block_size_in_bytes"] == 64 * 1024 * 1024
    assert not {"sequence_number", "file_sequence_number"} & record.keys()
    assert not {"content", "equality_ids"} & record["data_file"].keys()


def test_a_decimal_of_a_narrower_type_keeps_its_value() -> None:
    """The column was promoted from decimal(4,2); older entries hold two bytes."""
    fields = [{"id": 1, "name": "d", "required": False, "type": "decimal(20,2)"}]
    spec = [{"name": "d", "transform": "identity", "source-id": 1, "field-id": 1000}]
    metadata = drawn_table(2, fields, spec)
    narrow = entry(EntryStatus.ADDED, 1, None, None)
    narrow = replace(narrow, file=replace(narrow.file, partition=(b"\xff\x38",)))
    written = encoded(metadata, [narrow], ManifestContent.DATA)
    (found,) = decode_manifest(written.data, written.manifest, metadata.specs[0])
    assert found.file.partition == (b"\xff\x38",)
    assert written.manifest.partitions is not None
    assert written.manifest.partitions[0].lower_bound == b"\xff\x38"


def test_a_partition_is_the_same_before_and_after_a_promotion() -> None:
    """After it, the decimal is stored wider.  If the partitions differed, a newer delete would miss the older file
    (rule: deletes-reach-one-partition, equality-keys-by-value)."""
    read = []
    for kind in ("decimal(9,2)", "decimal(9,2)", "decimal(12,2)"):
        fields = [{"id": i, "name": f"d{i}", "required": False, "type": kind} for i in (1, 2)]
        spec = [{"name": f"d{i}", "transform": "identity", "source-id": i, "field-id": 999 + i} for i in (1, 2)]
        metadata = drawn_table(2, fields, spec)
        made = entry(EntryStatus.ADDED, 1, None, None)
        made = replace(made, file=replace(made.file, partition=(b"\x01", b"\xff")))
        written = encoded(metadata, [made], ManifestContent.DATA)
        (found,) = decode_manifest(written.data, written.manifest, metadata.specs[0])
        read.append(found.file.partition)
    assert read == [(b"\x01", b"\xff")] * 3


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:50], lambda data: b"", lambda _: b"{}"])
def test_the_error_of_a_damaged_manifest_or_manifest_list_names_the_file(damage: Any) -> None:
    metadata = drawn_table(2, spec=[])
    made = [entry(EntryStatus.ADDED, 1, None, None)] * 100
    written = encoded(metadata, made, ManifestContent.DATA)
    with pytest.raises(MetadataUnreadable, match=r"s3://b/m\.avro"):
        list(decode_manifest(damage(written.data), written.manifest, metadata.specs[0]))
    listed = encode_manifest_list(
        2, [written.manifest] * 100, snapshot_id=1, parent_snapshot_id=None, sequence_number=7
    )
    with pytest.raises(MetadataUnreadable, match=r"s3://b/list\.avro"):
        decode_manifest_list(damage(listed), "s3://b/list.avro")


@pytest.mark.parametrize(
    ("name", "wanted"), [("plain", "plain"), ("we ird", "we_x20ird"), ("1x", "_1x"), ("a.b", "a_x2Eb")]
)
def test_avro_names_equal_those_of_java(name: str, wanted: str) -> None:
    assert avro_name(name) == wanted


# Which entries share a manifest.

SIZED_FIELDS = [
    {"id": 1, "name": "day", "required": False, "type": "date"},
    {"id": 2, "name": "key", "required": False, "type": "uuid"},
]
PARTS = [
    {"field-id": 1000 + i, "source-id": f["id"], "name": f"p{i}", "transform": "identity"}
    for i, f in enumerate(SIZED_FIELDS)
]
MORE: dict[str, Any] = {
    "schemas": [{"type": "struct", "schema-id": 0, "fields": SIZED_FIELDS}],
    "partition-specs": [{"spec-id": 0, "fields": PARTS}, {"spec-id": 1, "fields": PARTS[:1]}],
    "properties": {"commit.manifest.target-size-bytes": "2000"},
}
LOW, HIGH = bytes(16), b"\xff" * 16


def cut(spec_id: int, *partitions: tuple[Any, ...], **more: Any) -> list[list[str]]:
    """The files of each manifest, with entries of 1,000 bytes."""
    metadata, stored = table(**MORE | more), dict[str, bytes]()

    def store(builder: ManifestBuilder) -> ManifestFile:
        encoded = builder.encoded(f"m{len(stored)}", 1, 1)
        stored[encoded.manifest.manifest_path] = encoded.data
        return encoded.manifest

    lanes = ManifestLanes(metadata, {(spec_id, ManifestContent.DATA): len(partitions)}, 1000.0, store)
    for number, partition in enumerate(partitions):
        file = data_file(str(number), 1, partition)
        lanes.add(spec_id, ManifestContent.DATA, ManifestEntry(EntryStatus.ADDED, 1, None, None, file))
    return [
        [entry.file.file_path for entry in decode_manifest(stored[m.manifest_path], m, metadata.specs[spec_id])]
        for m in lanes.written()
    ]


def test_manifests_hold_the_entries_that_fit_the_target() -> None:
    assert cut(1, (1,), (2,), (None,), (1,), (1,)) == [["0", "1"], ["2", "3"], ["4"]]
    assert cut(1) == []


def test_the_number_of_manifests_in_a_commit_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_lanes, "_MOST_MANIFESTS", 10)
    assert len(cut(1, *[(1,)] * 20, properties={"commit.manifest.target-size-bytes": "1"})) == 10


def test_uuids_with_and_without_the_highest_bit_never_share_a_manifest() -> None:
    """Iceberg-Java orders them differently from other readers, so no common bounds are right for both."""
    assert cut(0, (1, LOW), (1, HIGH), (2, LOW), (2, HIGH), (3, None)) == [["0", "2"], ["4"], ["1", "3"]]


@pytest.mark.parametrize(("stored", "now"), [("string", "timestamptz"), ("fixed[16]", "decimal(9, 2)")])
def test_a_partition_value_of_the_wrong_type_is_refused(stored: str, now: str) -> None:
    """Another writer gave the partition field another type than its column has."""
    spec = [{"field-id": 1000, "source-id": 1, "name": "p", "transform": "identity"}]
    theirs, ours = (
        drawn_table(2, [{"id": 1, "name": "p", "required": False, "type": kind}], spec) for kind in (stored, now)
    )
    value = "x" if stored == "string" else b"\x7f" * 16
    entry = ManifestEntry(EntryStatus.ADDED, 1, None, None, data_file("s3://b/t/f", 9, (value,)))
    written = encoded(theirs, [entry], ManifestContent.DATA)
    with pytest.raises(
        MetadataUnreadable,
        match=r"^manifest s3://b/m\.avro has an entry with a value that does not have its column's type",
    ):
        list(EntryCopier(ours, 0).copy(written.data, written.manifest))
