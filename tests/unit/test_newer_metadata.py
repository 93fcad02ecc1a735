"""Metadata files that the store holds and the catalog does not show."""

from __future__ import annotations

import os
from pathlib import Path

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import render_document
from icekeeper.model import TableName
from icekeeper.pass_context.metadata_listing import newer_metadata
from icekeeper.storage.storage import Storage
from support.tables import new_document

STORAGE = Storage({})


def write(folder: Path, name: str, at_s: int) -> str:
    """A metadata file that says its own name, as old as told."""
    path = folder / "metadata" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render_document(TableMetadata(new_document(folder.as_uri(), 2, properties={"name": name}))))
    os.utime(path, (at_s, at_s))
    return path.as_uri()


def table(folder: Path, current: str, *log: str) -> LoadedTable:
    entries = [{"timestamp-ms": 1, "metadata-file": path} for path in log]
    document = new_document(folder.as_uri(), 2, **{"metadata-log": entries})
    return LoadedTable(TableName(("ns",), "t"), TableMetadata(document), current, current, {})


def names(found: LoadedTable) -> set[str]:
    return {metadata.properties["name"] for metadata in newer_metadata(STORAGE, found)}


def test_what_is_unknown_and_not_older_than_the_current_file_is_read(tmp_path: Path) -> None:
    logged = write(tmp_path, "00001-b.metadata.json", 2_000)
    current = write(tmp_path, "00002-c.metadata.json", 3_000)
    write(tmp_path, "00000-a.metadata.json", 1_000)
    write(tmp_path, "00003-d.metadata.json", 3_000)
    write(tmp_path, "00004-e.metadata.json", 4_000)
    (tmp_path / "metadata" / "00005-f.metadata.json").write_bytes(b"{torn")
    (tmp_path / "metadata" / "00005-f.avro").write_bytes(b"no metadata file")
    assert names(table(tmp_path, current, logged)) == {"00003-d.metadata.json", "00004-e.metadata.json"}


def test_where_the_current_file_lies_elsewhere_only_the_youngest_are_read(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path, f"{number:05d}-a.metadata.json", 1_000 + number)
    found = names(table(tmp_path, "file:///elsewhere/00040-x.metadata.json"))
    assert found == {f"{number:05d}-a.metadata.json" for number in range(24, 40)}


def test_a_table_without_a_metadata_folder_has_none(tmp_path: Path) -> None:
    assert names(table(tmp_path, (tmp_path / "metadata/00000-a.metadata.json").as_uri())) == set()
