"""Reads the manifests that were added since the last pass, to learn in which folders the table has files.

A table may have files in another table's folder.  Whoever deletes there must know it, also when a pass over the guest
only expires snapshots or does nothing.  Up to where manifests were read is recorded, so that each is read only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestFile
from icekeeper.state.claims import TableClaims

__all__ = ["newest_marks", "read_new_manifests"]


def read_new_manifests(reader: TableReader, before: Iterable[TableClaims]) -> None:
    """Pass every file of the manifests that were added since ``before`` to the reader's ``on_live_file``.

    Raises:
        MetadataUnreadable: a manifest list or manifest is missing or damaged.
    """
    known = list(before)
    sequence_number = max((one.seen_sequence_number for one in known), default=-1)
    seen_ms = max((one.seen_ms for one in known), default=-1)
    snapshots = reader.metadata.snapshots
    new = [s for s in snapshots.values() if s.sequence_number > sequence_number or s.timestamp_ms > seen_ms]
    for _ in reader.live_keys(_new_manifests(reader, new, sequence_number)):
        pass


def newest_marks(metadata: TableMetadata) -> tuple[int, int]:
    """The sequence number and the time (epoch milliseconds) up to which the table's manifests are read by now."""
    return metadata.last_sequence_number, max((s.timestamp_ms for s in metadata.snapshots.values()), default=-1)


def _new_manifests(reader: TableReader, new: Sequence[Snapshot], sequence_number: int) -> Sequence[ManifestFile]:
    snapshots, ids = reader.metadata.snapshots, {snapshot.snapshot_id for snapshot in new}
    found: dict[str, ManifestFile] = {}
    for manifest in reader.manifests_of(new):
        adder = manifest.added_snapshot_id
        # Manifests of v1 have no sequence number; when one came whose snapshot is gone is not known.
        is_new_v1 = manifest.sequence_number == 0 and (adder in ids or adder not in snapshots)
        if manifest.may_have_live_files and (manifest.sequence_number > sequence_number or is_new_v1):
            found[manifest.manifest_path] = manifest
    return list(found.values())
