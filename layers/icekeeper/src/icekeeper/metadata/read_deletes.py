"""Reads the delete files of a snapshot: what each of them reaches, and which stand elsewhere than their data file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from icekeeper.metadata.delete_scope import (
    DeleteIndex,
    DeleteIndexBuilder,
    is_unpartitioned,
    may_stand_elsewhere,
    named_file,
    partition_key,
)
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import LiveEntry, ManifestContent, ManifestFile

__all__ = ["delete_index", "deletes_standing_elsewhere"]


def delete_index(reader: TableReader, manifests: Sequence[ManifestFile]) -> DeleteIndex:
    """The index of the live delete files in some of the table's manifests; data manifests are skipped.

    Raises:
        MetadataUnreadable: a manifest is missing or damaged, or a data file has two deletion vectors.
    """
    builder = DeleteIndexBuilder()
    for manifest, entry in reader.live_entries(manifests, ManifestContent.DELETES):
        is_global = is_unpartitioned(reader.metadata.specs[manifest.partition_spec_id])
        builder.add(manifest.partition_spec_id, entry, is_unpartitioned=is_global)
    return builder.build()


def deletes_standing_elsewhere(reader: TableReader, manifests: Sequence[ManifestFile]) -> list[LiveEntry]:
    """The live deletes of a snapshot that name a live data file of another spec or partition (rule 234, platform 113).

    Data manifests are opened only where a delete names its file.

    Raises:
        MetadataUnreadable: a manifest is missing or damaged.
    """
    if not may_stand_elsewhere(reader.metadata):
        return []
    by_file: dict[str, list[LiveEntry]] = defaultdict(list)
    for live in reader.live_entries(manifests, ManifestContent.DELETES):
        if (path := named_file(live.entry.file)) is not None:
            by_file[path].append(live)
    if not by_file:
        return []
    found: list[LiveEntry] = []
    for manifest, entry in reader.live_entries(manifests, ManifestContent.DATA):
        for delete in by_file.get(entry.file.file_path, ()):
            home = partition_key(manifest.partition_spec_id, entry.file.partition)
            if partition_key(delete.manifest.partition_spec_id, delete.entry.file.partition) != home:
                found.append(delete)
    return found
