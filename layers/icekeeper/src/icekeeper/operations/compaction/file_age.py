"""When data files were added (pure)."""

from __future__ import annotations

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import ManifestEntry

__all__ = ["added_ms", "age_of", "is_old_enough"]


def age_of(metadata: TableMetadata, entry: ManifestEntry) -> int:
    """The file sequence number, or the data sequence number where another writer lost it.

    v1 has neither: there it is the time of the snapshot that added the file, in epoch milliseconds.
    """
    if metadata.format_version > 1:
        number = entry.file_sequence_number
        return (entry.sequence_number if number is None else number) or 0
    return added_ms(metadata, entry) or 0


def added_ms(metadata: TableMetadata, entry: ManifestEntry) -> int | None:
    """The time of the snapshot that added the file, in epoch milliseconds; ``None``: it has expired."""
    snapshot = metadata.snapshots.get(entry.snapshot_id) if entry.snapshot_id is not None else None
    return None if snapshot is None else snapshot.timestamp_ms


def is_old_enough(metadata: TableMetadata, entry: ManifestEntry, limit_ms: int) -> bool:
    """Whether the file was added at ``limit_ms`` or before; a file whose snapshot has expired was."""
    at_ms = added_ms(metadata, entry)
    return at_ms is None or at_ms <= limit_ms
