"""Reads the delete files of a snapshot into an index of the data files that they apply to."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.metadata.delete_scope import DeleteIndex, DeleteIndexBuilder, is_unpartitioned
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestContent, ManifestFile

__all__ = ["delete_index"]


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
