"""Manifests and manifest lists: entries say everything explicitly, and damage is named."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.avro_schemas import avro_name, manifest_schema
from icekeeper.metadata.manifest_read import (
    decode_identities,
    decode_manifest,
    decode_manifest_list,
)
from icekeeper.metadata.manifest_write import EntryCopier, encode_manifest_list
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry
from support.manifests import drawn_table, encoded


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
        encoded(drawn_table(2, spec=[]), [entry(status, snapshot_id, number, 1)], ManifestContent.DATA)


@pytest.mark.parametrize("status", [EntryStatus.EXISTING, EntryStatus.DELETED])
def test_a_file_sequence_number_that_was_lost_is_carried_over_as_lost(status: EntryStatus) -> None:
    """Writers of v2's early days lost it; Java and PyIceberg read such entries, and nobody needs the number."""
    metadata = drawn_table(2, spec=[])
    lost = entry(status, 1, 1, None)
    written = encoded(metadata, [lost], ManifestContent.DATA)
    assert list(decode_manifest(written.data, written.manifest, metadata.specs[0])) == [lost]
    copied = list(EntryCopier(metadata, 0).copy(written.data, written.manifest))
    assert len(copied) == (status is EntryStatus.EXISTING)
    identities = dict(decode_identities(written.data, written.manifest))
    assert identities == ({lost.file.key: lost.identity} if status is EntryStatus.EXISTING else {})


def test_an_existing_entry_without_numbers_cannot_be_read_in_v2_but_in_a_manifest_from_v1() -> None:
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


def test_decimals_of_a_narrower_type_are_widened() -> None:
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
    """Its decimal is stored wider then.  Told apart, a newer delete would miss the older file (rule 7, rule 10)."""
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
def test_damaged_files_name_themselves(damage: Any) -> None:
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
def test_names_as_java_makes_them(name: str, wanted: str) -> None:
    assert avro_name(name) == wanted
