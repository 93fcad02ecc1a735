"""How many rows of data files delete files delete, as far as manifests tell (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from icekeeper.metadata.delete_scope import DeleteIndex, named_file
from icekeeper.model import DataFile, FileContent, FileKey, ManifestEntry, PartitionValue

__all__ = ["equality_spread", "known_deleted_rows"]


def equality_spread(
    index: DeleteIndex, needs: Mapping[FileKey, int], by_partition: Counter[tuple[PartitionValue, ...]]
) -> dict[FileKey, int]:
    """Over how many data files each equality delete is spread: those of its partition, or of the table.

    Not only over those that need it still: once all others are rewritten, the last one would be taken for full of
    deleted rows.
    """
    total = by_partition.total()
    return {
        entry.file.key: max(
            needs[entry.file.key], by_partition[entry.file.partition] if entry.file.partition else total
        )
        for entry in index.entries
        if entry.file.content is FileContent.EQUALITY_DELETES
    }


def known_deleted_rows(file: DataFile, deletes: Iterable[ManifestEntry]) -> int:
    """How many rows of a data file are surely deleted: by deletion vectors and position deletes of this file alone."""
    vectors = [e.file for e in deletes if e.file.content_offset is not None]
    only_this = vectors or [e.file for e in deletes if named_file(e.file) == file.file_path]
    return min(file.record_count, sum(delete.record_count for delete in only_this))
