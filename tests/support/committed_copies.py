"""Commits a file in the place of all data files of a table, as compaction commits its outputs."""

from __future__ import annotations

from icekeeper.commit.snapshot import FileReplacement, SnapshotWriter
from icekeeper.model import DataFile
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable
from support.v3 import live


def replace_all(table: MaintainedTable, file: DataFile) -> None:
    """Commit ``file``; nobody checks that it holds the same rows."""
    loaded, reader = table.loaded, table.reader
    head = loaded.metadata.current_snapshot
    assert head is not None
    found = live(table)
    storage = Storage(loaded.io_properties)
    writer = SnapshotWriter(loaded.metadata, reader, storage.write, lambda paths: None, "main", "a copy", 0)
    newest = max(entry.sequence_number or 0 for _, entry in found)
    prepared = writer.replace_files(
        FileReplacement(frozenset(entry.file.key for _, entry in found), ((0, file),), newest),
        reader.manifests(head),
        {manifest for manifest, _ in found},
    )
    table.catalog.inner.commit(loaded, prepared.requirements, prepared.updates)
