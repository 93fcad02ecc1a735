"""Files whose rows cannot be read: no statistics are better than wrong ones (rule 23)."""

from __future__ import annotations

from dataclasses import replace
from struct import pack

import pytest

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.manifest_write import NewSnapshot, encode_manifest
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.operations.statistics.compute_statistics import appended_files, live_files
from support.listed_manifests import ListedManifests, path_of
from support.plans import data_file

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "at", "required": False, "type": "timestamp"}],
}
FAR_FROM_NOW = data_file(path_of("data/a"), 10, file_format="ORC", upper_bounds={1: pack("<q", 2**63 - 1)})


def manifest_of(table: ListedManifests, file: DataFile) -> ManifestFile:
    is_data = file.content is FileContent.DATA
    written = encode_manifest(
        table.metadata,
        spec_id=0,
        content=ManifestContent.DATA if is_data else ManifestContent.DELETES,
        entries=[ManifestEntry(EntryStatus.ADDED, 1, 1 if is_data else 2, 1, file)],
        path=path_of(f"metadata/m{len(table.objects)}.avro"),
        snapshot=NewSnapshot(1, 1),
    )
    table.objects[written.manifest.manifest_path] = written.data
    return written.manifest


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (data_file(path_of("data/a"), 10, key_metadata=b"key"), "is encrypted"),
        (data_file(path_of("data/a"), 10, file_format="LANCE"), "is LANCE, which is not read"),
        (FAR_FROM_NOW, "is ORC with timestamps before 1678 or after 2261"),
    ],
)
def test_an_unreadable_data_file_is_named(file: DataFile, why: str) -> None:
    table = ListedManifests(schemas=[SCHEMA])
    manifest = manifest_of(table, file)
    table.snapshot(1, manifest)
    with pytest.raises(TableUnsupported, match=f"data/a {why}"):
        live_files(table.reader, [manifest])
    with pytest.raises(TableUnsupported, match=f"data/a {why}"):
        appended_files(table.reader, list(table.metadata.snapshots.values()))


def test_an_encrypted_delete_file_is_named() -> None:
    table = ListedManifests()
    delete = replace(data_file(path_of("data/d"), 10), content=FileContent.EQUALITY_DELETES, equality_ids=(1,))
    manifests = [manifest_of(table, data_file(path_of("data/a"), 10)), manifest_of(table, delete)]
    assert len(live_files(table.reader, manifests)) == 1
    manifests[1] = manifest_of(table, replace(delete, key_metadata=b"key"))
    with pytest.raises(TableUnsupported, match=r"data/a needs delete file .*data/d, which is encrypted"):
        live_files(table.reader, manifests)
