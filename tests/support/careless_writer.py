"""Commits of another engine to a local table, entry by entry, in ways that Iceberg's own libraries would not write."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence

from icekeeper.metadata.manifest_write import NewSnapshot, encode_manifest, encode_manifest_list
from icekeeper.model import ManifestContent, ManifestEntry, ManifestFile
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable


class ForeignCommit:
    """One snapshot of format v2 on the newest head; manifests first, then :meth:`land`."""

    def __init__(self, table: MaintainedTable) -> None:
        self._table = table
        self._loaded = table.loaded
        self.metadata = self._loaded.metadata
        self.storage = Storage(self._loaded.io_properties)
        head = self.metadata.current_snapshot
        assert head is not None
        self._parent = head
        self.manifests = table.reader.manifests(head)
        """Of the head."""
        self.sequence_number = self.metadata.last_sequence_number + 1
        self.snapshot_id = uuid.uuid4().int >> 66

    def manifest(self, content: ManifestContent, spec_id: int, entries: Sequence[ManifestEntry]) -> ManifestFile:
        """A new manifest; what its ADDED entries leave out they inherit from this commit."""
        path = f"{self.metadata.metadata_directory}/foreign-{uuid.uuid4()}.avro"
        encoded = encode_manifest(
            self.metadata,
            spec_id=spec_id,
            content=content,
            entries=entries,
            path=path,
            snapshot=NewSnapshot(self.snapshot_id, self.sequence_number),
        )
        self.storage.write(path, encoded.data)
        return encoded.manifest

    def land(self, manifests: Sequence[ManifestFile], operation: str = "delete") -> None:
        """Make the snapshot that lists these."""
        path = f"{self.metadata.metadata_directory}/snap-{self.snapshot_id}.avro"
        encoded = encode_manifest_list(
            2,
            manifests,
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=self._parent.snapshot_id,
            sequence_number=self.sequence_number,
        )
        self.storage.write(path, encoded)
        snapshot = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": self._parent.snapshot_id,
            "sequence-number": self.sequence_number,
            "timestamp-ms": self.metadata.last_updated_ms + 1,
            "manifest-list": path,
            "summary": {"operation": operation},
            "schema-id": 0,
        }
        set_ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": self.snapshot_id}
        self._table.catalog.inner.commit(self._loaded, [], [{"action": "add-snapshot", "snapshot": snapshot}, set_ref])


def relist(table: MaintainedTable, change: Callable[[ManifestEntry], Iterable[ManifestEntry]]) -> None:
    """List every live entry anew, as what ``change`` makes of it: none, itself or several."""
    commit = ForeignCommit(table)
    listed = []
    for manifest, entries in table.reader.entries(commit.manifests):
        changed = [new for entry in entries if entry.is_live for new in change(entry)]
        if changed:
            listed.append(commit.manifest(manifest.content, manifest.partition_spec_id, changed))
    commit.land(listed, "replace")
