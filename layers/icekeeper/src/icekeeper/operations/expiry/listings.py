"""Lists the manifests of snapshots from their manifest lists, without opening a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icekeeper.metadata.document import Snapshot
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestFile

__all__ = ["INLINE_SPEC", "listed_manifests"]

# Stands for the spec of a manifest that a v1 snapshot lists inline: only the manifest itself says which it is.
INLINE_SPEC = -1


def listed_manifests(
    reader: TableReader, snapshots: Iterable[Snapshot]
) -> Iterator[tuple[Snapshot, int, Sequence[ManifestFile]]]:
    """Each snapshot with its list's size and its manifests; of manifests listed inline (v1) only the path is known.

    Raises:
        MetadataUnreadable: a manifest list is missing or damaged.
    """
    with_list = []
    for snapshot in snapshots:
        if snapshot.manifest_list is not None:
            with_list.append(snapshot)
            continue
        inline = [
            ManifestFile(manifest_path=path, manifest_length=0, partition_spec_id=INLINE_SPEC, added_snapshot_id=None)
            for path in snapshot.inline_manifests
        ]
        yield snapshot, 0, inline
    yield from reader.manifest_lists(with_list)
