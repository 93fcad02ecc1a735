"""Manifests and manifest lists: what is written reads back, says everything explicitly, and has Java's schema."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from icekeeper.commit.row_ids import assign_row_ids
from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.avro_schemas import avro_name, manifest_list_schema, manifest_schema
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.manifest_copy import EntryCopier
from icekeeper.metadata.manifest_read import (
    decode_identities,
    decode_live_files,
    decode_manifest,
    decode_manifest_list,
)
from icekeeper.metadata.manifest_write import EncodedManifest, NewSnapshot, encode_manifest, encode_manifest_list
from icekeeper.metadata.partition_summaries import split_by_section
from icekeeper.metadata.single_value import least_decimal
from icekeeper.model import DataFile, EntryStatus, FileContent, LiveFile, ManifestContent, ManifestEntry
from support.iceberg_java import IcebergJava
from support.tables import new_document

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**40)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def fixed(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


# Column name, type, raw values: every type that partitions, two of each that Avro names, names that Avro forbids.
COLUMNS: Sequence[tuple[str, str, st.SearchStrategy[Any]]] = (
    ("plain", "boolean", st.booleans()),
    ("we ird", "int", INTS),
    ("1x", "long", LONGS),
    ("a.b", "float", st.floats(width=32)),
    ("ünï", "double", st.floats()),
    ("😀", "date", INTS),
    ("_", "time", st.integers(0, 86_399_999_999)),
    ("x-y", "timestamp", LONGS),
    ("tz", "timestamptz", LONGS),
    ("text", "string", TEXTS),
    ("raw", "binary", st.binary(max_size=20)),
    ("key", "uuid", fixed(16)),
    ("key2", "uuid", fixed(16)),
    ("code", "fixed[3]", fixed(3)),
    ("code2", "fixed[3]", fixed(3)),
    ("price", "decimal(9,2)", fixed(4)),
    ("price2", "decimal(9,2)", fixed(4)),
    ("huge", "decimal(38,10)", fixed(16)),
)
FIELDS = [{"id": i, "name": n, "required": False, "type": t} for i, (n, t, _) in enumerate(COLUMNS, start=1)]
SPEC = [
    {"name": name, "transform": "identity", "source-id": i, "field-id": 999 + i}
    for i, (name, _, _) in enumerate(COLUMNS, start=1)
]
PARTITIONS = st.tuples(*(st.none() | values for _, _, values in COLUMNS))


def table(format_version: int, fields: Sequence[Mapping[str, Any]] = FIELDS, spec: Any = SPEC) -> TableMetadata:
    schema = {"type": "struct", "schema-id": 0, "fields": list(fields)}
    specs = [{"spec-id": 0, "fields": spec}]
    return TableMetadata(
        new_document("s3://b/t", format_version, schemas=[schema], partition_specs=specs)
        | {
            "partition-specs": specs,
        }
    )


def mapped(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Mapping[int, Any] | None]:
    return st.none() | st.dictionaries(st.integers(1, 200), values, max_size=4)


def files(format_version: int) -> st.SearchStrategy[DataFile]:
    modern = format_version > 1
    listed = st.none() | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3).map(tuple)
    return st.builds(
        DataFile,
        content=st.sampled_from(FileContent) if modern else st.just(FileContent.DATA),
        file_path=st.text(st.characters(codec="utf-8"), min_size=1),
        file_format=st.sampled_from(["PARQUET", "AVRO", "ORC"]),
        partition=PARTITIONS,
        record_count=COUNTS,
        file_size_in_bytes=COUNTS,
        column_sizes=mapped(COUNTS),
        value_counts=mapped(COUNTS),
        null_value_counts=mapped(COUNTS),
        nan_value_counts=mapped(COUNTS),
        lower_bounds=mapped(st.binary()),
        upper_bounds=mapped(st.binary()),
        key_metadata=st.none() | st.binary(),
        split_offsets=listed,
        equality_ids=listed if modern else st.none(),
        sort_order_id=st.none() | st.integers(0, 5),
        referenced_data_file=st.none() | TEXTS if modern else st.none(),
        first_row_id=st.none() | COUNTS if format_version > 2 else st.none(),
        content_offset=st.none() | COUNTS if format_version > 2 else st.none(),
        content_size_in_bytes=st.none() | COUNTS if format_version > 2 else st.none(),
    )


@st.composite
def entries(draw: st.DrawFn, format_version: int) -> list[ManifestEntry]:
    made = []
    numbers = st.integers(0, 1000) if format_version > 1 else st.just(0)
    for file in draw(st.lists(files(format_version), max_size=3)):
        status = draw(st.sampled_from(EntryStatus))
        added = status is EntryStatus.ADDED
        made.append(
            ManifestEntry(
                status,
                draw(st.none() | LONGS) if added and format_version > 1 else draw(LONGS),
                draw(st.none() | numbers) if added else draw(numbers),
                None if added else draw(numbers),
                file,
            )
        )
    return made


def encoded(metadata: TableMetadata, made: Sequence[ManifestEntry], content: ManifestContent) -> EncodedManifest:
    number = 0 if metadata.format_version == 1 else 7
    return encode_manifest(
        metadata, spec_id=0, content=content, entries=made, path="s3://b/m.avro", snapshot=NewSnapshot(42, number)
    )


def bits(values: Sequence[Any]) -> list[Any]:
    """NaN equal to NaN, -0.0 not equal to 0.0."""
    return [struct.pack("<d", value) if isinstance(value, float) else value for value in values]


def stored(partition: Sequence[Any]) -> list[Any]:
    """Decimals in as few bytes as they need."""
    return [
        least_decimal(value) if kind.startswith("decimal") else value
        for value, (_, kind, _) in zip(partition, COLUMNS, strict=True)
    ]


@settings(max_examples=60)
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_what_is_written_reads_back(format_version: int, data: st.DataObject) -> None:
    """With everything that a null would have inherited filled in (rule 3)."""
    made = data.draw(entries(format_version))
    content = data.draw(st.sampled_from(ManifestContent)) if format_version > 1 else ManifestContent.DATA
    metadata = table(format_version)
    written = encoded(metadata, made, content)
    found = list(decode_manifest(written.data, written.manifest, metadata.specs[0]))
    assert len(found) == len(made)
    number = written.manifest.sequence_number
    for before, after in zip(made, found, strict=True):
        assert after.status is before.status
        assert after.snapshot_id == (42 if before.snapshot_id is None else before.snapshot_id)
        assert after.sequence_number == (number if before.sequence_number is None else before.sequence_number)
        inherited = number if before.file_sequence_number is None else before.file_sequence_number
        assert after.file_sequence_number == inherited
        assert bits(after.file.partition) == bits(stored(before.file.partition))
        # An ADDED entry's row ids are the commit's to give (rule 19).
        row_id = None if before.status is EntryStatus.ADDED else before.file.first_row_id
        assert replace(after.file, partition=()) == replace(before.file, partition=(), first_row_id=row_id)
    live = [
        LiveFile(*entry.file.key, entry.file.file_size_in_bytes, entry.snapshot_id) for entry in made if entry.is_live
    ]
    assert list(decode_live_files(written.data, "s3://b/m.avro")) == live


@settings(max_examples=60)
@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_the_manifest_list_entry_adds_up(format_version: int, data: st.DataObject) -> None:
    """Counts per status, the least sequence number, and summaries over every entry, deleted ones too (rule 35)."""
    kinds = [kind for _, kind, _ in COLUMNS]
    made = next(
        iter(split_by_section(kinds, data.draw(entries(format_version)), lambda entry: entry.file.partition)), []
    )
    written = encoded(table(format_version), made, ManifestContent.DATA)
    manifest = written.manifest
    assert manifest.manifest_length == len(written.data)
    for status, file_count, rows in (
        (EntryStatus.ADDED, manifest.added_files_count, manifest.added_rows_count),
        (EntryStatus.EXISTING, manifest.existing_files_count, manifest.existing_rows_count),
        (EntryStatus.DELETED, manifest.deleted_files_count, manifest.deleted_rows_count),
    ):
        counts = [entry.file.record_count for entry in made if entry.status is status]
        assert (file_count, rows) == (len(counts), sum(counts))
    number = manifest.sequence_number
    least = [number if e.sequence_number is None else e.sequence_number for e in made if e.is_live]
    assert manifest.min_sequence_number == min(least, default=number)
    schema = Schema.model_validate({"type": "struct", "fields": FIELDS})
    assert manifest.partitions is not None
    for index, (summary, (_, kind, _)) in enumerate(zip(manifest.partitions, COLUMNS, strict=True)):
        values = [entry.file.partition[index] for entry in made]
        nans = [value for value in values if isinstance(value, float) and value != value]
        rest = [value for value in values if value is not None and value == value]
        assert summary.contains_null == (None in values)
        assert summary.contains_nan == bool(nans)
        assert (summary.lower_bound is None) == (summary.upper_bound is None) == (not rest)
        if summary.lower_bound is not None and summary.upper_bound is not None:
            field = schema.fields[index].field_type
            assert isinstance(field, PrimitiveType)
            low, high = (plain(from_bytes(field, bound)) for bound in (summary.lower_bound, summary.upper_bound))
            raw = [readable(kind, value) for value in rest]
            if kind == "uuid":  # wider, so that they hold in Java's order too: tests/property/test_uuid_order.py
                assert low <= min(raw) <= max(raw) <= high
            else:
                assert (low, high) == (min(raw), max(raw))


def readable(kind: str, value: Any) -> Any:
    """A raw partition value as PyIceberg decodes a bound of it."""
    if kind.startswith("decimal"):
        return int.from_bytes(value, "big", signed=True)
    return value.encode() if kind == "string" else value


def plain(value: Any) -> Any:
    if hasattr(value, "as_tuple"):
        sign, digits, _ = value.as_tuple()
        return (-1 if sign else 1) * int("".join(map(str, digits)))
    if isinstance(value, str):
        return value.encode()
    return value.bytes if hasattr(value, "bytes") else value


@given(st.data())
@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_manifest_lists_read_back(format_version: int, data: st.DataObject) -> None:
    made = [
        replace(encoded(table(format_version), data.draw(entries(format_version)), content).manifest, key_metadata=key)
        for content in (ManifestContent.DATA, *([ManifestContent.DELETES] if format_version > 1 else []))
        for key in (None, b"key")
    ]
    if format_version > 2:
        made[0] = replace(made[0], first_row_id=12)
    written = encode_manifest_list(
        format_version,
        made,
        snapshot_id=42,
        parent_snapshot_id=None,
        sequence_number=made[0].sequence_number,
        first_row_id=7 if format_version > 2 else None,
    )
    assert decode_manifest_list(written, "s3://b/list.avro") == made


def entry(status: EntryStatus, snapshot_id: int | None, number: int | None, file_number: int | None) -> ManifestEntry:
    file = DataFile(
        content=FileContent.DATA,
        file_path="s3://b/f.parquet",
        file_format="PARQUET",
        partition=(),
        record_count=1,
        file_size_in_bytes=1,
    )
    return ManifestEntry(status, snapshot_id, number, file_number, file)


@pytest.mark.parametrize("status", [EntryStatus.EXISTING, EntryStatus.DELETED])
@pytest.mark.parametrize(("snapshot_id", "number"), [(None, 1), (1, None)])
def test_existing_and_deleted_entries_must_say_it_all(
    status: EntryStatus, snapshot_id: int | None, number: int | None
) -> None:
    """Written null, they would inherit the numbers of the wrong snapshot (rule 3)."""
    with pytest.raises(ValueError, match="must carry its ids explicitly"):
        encoded(table(2, spec=[]), [entry(status, snapshot_id, number, 1)], ManifestContent.DATA)


@pytest.mark.parametrize("status", [EntryStatus.EXISTING, EntryStatus.DELETED])
def test_a_file_sequence_number_that_was_lost_is_carried_over_as_lost(status: EntryStatus) -> None:
    """Writers of v2's early days lost it; Java and PyIceberg read such entries, and nobody needs the number."""
    metadata = table(2, spec=[])
    lost = entry(status, 1, 1, None)
    written = encoded(metadata, [lost], ManifestContent.DATA)
    assert list(decode_manifest(written.data, written.manifest, metadata.specs[0])) == [lost]
    copied = list(EntryCopier(metadata, 0).copy(written.data, written.manifest))
    assert len(copied) == (status is EntryStatus.EXISTING)
    identities = dict(decode_identities(written.data, written.manifest))
    assert identities == ({lost.file.key: lost.identity} if status is EntryStatus.EXISTING else {})


def test_an_existing_entry_without_numbers_cannot_be_read_in_v2_but_in_a_manifest_from_v1() -> None:
    metadata = table(2, spec=[])
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
    written = encoded(table(1, spec=[]), [entry(EntryStatus.ADDED, 1, None, None)], ManifestContent.DATA)
    record: Any = next(fastavro.reader(io.BytesIO(written.data)))
    assert record["data_file"]["block_size_in_bytes"] == 64 * 1024 * 1024
    assert not {"sequence_number", "file_sequence_number"} & record.keys()
    assert not {"content", "equality_ids"} & record["data_file"].keys()


def test_decimals_of_a_narrower_type_are_widened() -> None:
    """The column was promoted from decimal(4,2); older entries hold two bytes."""
    fields = [{"id": 1, "name": "d", "required": False, "type": "decimal(20,2)"}]
    spec = [{"name": "d", "transform": "identity", "source-id": 1, "field-id": 1000}]
    metadata = table(2, fields, spec)
    narrow = entry(EntryStatus.ADDED, 1, None, None)
    narrow = replace(narrow, file=replace(narrow.file, partition=(b"\xff\x38",)))
    written = encoded(metadata, [narrow], ManifestContent.DATA)
    (found,) = decode_manifest(written.data, written.manifest, metadata.specs[0])
    assert found.file.partition == (b"\xff\x38",)
    assert written.manifest.partitions is not None
    assert written.manifest.partitions[0].lower_bound == b"\xff\x38"


def test_a_partition_is_the_same_before_and_after_a_promotion() -> None:
    """Its decimal is stored wider then.  Told apart, a newer delete would miss the older file (rule 7, rule 10)."""
    read = []
    for kind in ("decimal(9,2)", "decimal(9,2)", "decimal(12,2)"):
        fields = [{"id": i, "name": f"d{i}", "required": False, "type": kind} for i in (1, 2)]
        spec = [{"name": f"d{i}", "transform": "identity", "source-id": i, "field-id": 999 + i} for i in (1, 2)]
        metadata = table(2, fields, spec)
        made = entry(EntryStatus.ADDED, 1, None, None)
        made = replace(made, file=replace(made.file, partition=(b"\x01", b"\xff")))
        written = encoded(metadata, [made], ManifestContent.DATA)
        (found,) = decode_manifest(written.data, written.manifest, metadata.specs[0])
        read.append(found.file.partition)
    assert read == [(b"\x01", b"\xff")] * 3


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:50], lambda data: b"", lambda _: b"{}"])
def test_damaged_files_name_themselves(damage: Any) -> None:
    metadata = table(2, spec=[])
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
def test_names_as_java_makes_them(name: str, wanted: str) -> None:
    assert avro_name(name) == wanted


# What Iceberg-Java can partition by through Spark SQL, odd names among it.
JAVA_TABLE = """
    CREATE TABLE java.db.{name} (
        id BIGINT NOT NULL, flag BOOLEAN, `we ird` INT, `1x` DECIMAL(9,2), `a-b` DECIMAL(9,2), huge DECIMAL(38,10),
        day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, text STRING, raw BINARY, f FLOAT, d DOUBLE
    ) USING iceberg
    PARTITIONED BY (flag, `we ird`, `1x`, `a-b`, huge, day, local, text, raw, f, d,
                    bucket(4, id), truncate(3, text), days(at))
    TBLPROPERTIES ('format-version' = '{version}')
"""
JAVA_ROW = """
    INSERT INTO java.db.{name} VALUES (1, true, 1, 1.5, 2.5, 3.5, DATE '2024-02-29', TIMESTAMP '2024-02-29 12:00:00Z',
        TIMESTAMP_NTZ '2024-02-29 12:00:00', 'text', X'00ff', CAST('NaN' AS FLOAT), -0.0D)
"""


@pytest.mark.parametrize("version", [1, 2, 3])
def test_our_avro_schemas_are_javas_field_for_field(version: int, iceberg_java: IcebergJava) -> None:
    """Names, ids, types, defaults, order: only the documentation strings are left out."""
    name = f"avro_v{version}"
    iceberg_java.session.sql(JAVA_TABLE.format(name=name, version=version))
    iceberg_java.session.sql(JAVA_ROW.format(name=name))
    warehouse = iceberg_java.session.conf.get("spark.sql.catalog.java.warehouse")
    path = Path(str(warehouse)) / "db" / name / "metadata" / "v2.metadata.json"
    metadata = parse_document(path.read_bytes(), str(path))
    snapshot = metadata.current_snapshot
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    list_data = Path(snapshot.manifest_list.removeprefix("file:")).read_bytes()
    assert without_doc(avro_schema(list_data)) == without_doc(manifest_list_schema(version))
    (manifest,) = decode_manifest_list(list_data, snapshot.manifest_list)
    data = Path(manifest.manifest_path.removeprefix("file:")).read_bytes()
    spec = metadata.specs[metadata.default_spec_id]
    ours = manifest_schema(version, metadata.schemas_current_first, spec)
    assert without_doc(avro_schema(data)) == without_doc(ours)

    # The same manifest written by us: the same values, bounds of partitions included.
    (read,) = decode_manifest(data, manifest, spec)
    again = encode_manifest(
        metadata,
        spec_id=spec["spec-id"],
        content=ManifestContent.DATA,
        entries=[replace(read, sequence_number=None, file_sequence_number=None)],
        path=manifest.manifest_path,
        snapshot=NewSnapshot(snapshot.snapshot_id, snapshot.sequence_number),
    )
    assert records(again.data) == records(data)
    ((ours_listed,), _) = assign_row_ids([again.manifest], 0) if version > 2 else ((again.manifest,), 0)
    assert replace(ours_listed, manifest_length=0) == replace(manifest, manifest_length=0)

    # The same manifest list: the same header, row ids included.
    listed = encode_manifest_list(
        version,
        [manifest],
        snapshot_id=snapshot.snapshot_id,
        parent_snapshot_id=None,
        sequence_number=snapshot.sequence_number,
        first_row_id=0,
    )
    assert records(listed) == records(list_data)
    assert header(listed) == header(list_data)


def avro_schema(data: bytes) -> Any:
    return json.loads(fastavro.reader(io.BytesIO(data)).metadata["avro.schema"])


def header(data: bytes) -> dict[str, str]:
    """What Iceberg says of the file, whatever Avro says."""
    found = fastavro.reader(io.BytesIO(data)).metadata
    return {key: value for key, value in found.items() if not key.startswith("avro.") and key != "iceberg.schema"}


def without_doc(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_doc(value) for key, value in schema.items() if key != "doc"}
    return [without_doc(part) for part in schema] if isinstance(schema, list) else schema


def records(data: bytes) -> list[Any]:
    return [json.loads(json.dumps(record, default=repr)) for record in fastavro.reader(io.BytesIO(data))]
