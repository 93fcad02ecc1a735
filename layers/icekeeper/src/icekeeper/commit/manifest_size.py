"""How large manifests are and should be, and which entries share one manifest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_blocks import ManifestAssembler
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.partition_summaries import split_by_section
from icekeeper.model import ManifestContent, ManifestEntry, ManifestFile

__all__ = ["MANIFEST_TARGET_BYTES", "bytes_per_entry", "manifest_header_bytes", "manifest_target_bytes", "portions"]

# Java's TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
MANIFEST_TARGET_BYTES = 8 * 1024 * 1024
_MOST_MANIFESTS = 10_000
_LARGEST_TARGET_BYTES = 128 * 1024 * 1024


def manifest_target_bytes(metadata: TableMetadata, total_bytes: float) -> int:
    """``commit.manifest.target-size-bytes``, within what whoever maintains the table can bear (rule 261).

    Entries of ``total_bytes`` never become more than 10,000 manifests by it, each of which every pass asks for, and a
    manifest, which is put together in memory, aims at 128 MB at most.
    """
    asked = metadata.property_int("commit.manifest.target-size-bytes", MANIFEST_TARGET_BYTES)
    return min(max(1, asked, math.ceil(total_bytes / _MOST_MANIFESTS)), _LARGEST_TARGET_BYTES)


def manifest_header_bytes(metadata: TableMetadata, spec_id: int, content: ManifestContent) -> int:
    """The bytes of a manifest before its first entry: its schemas, above all.

    Raises:
        TableUnsupported: manifests of that spec cannot be written.
    """
    return ManifestAssembler(metadata, spec_id, content).header_bytes


def bytes_per_entry(manifests: Iterable[ManifestFile]) -> float:
    """Observed size of one encoded entry, headers included; 1 kB where nothing is known."""
    manifests = list(manifests)
    entries = sum(
        (m.added_files_count or 0) + (m.existing_files_count or 0) + (m.deleted_files_count or 0) for m in manifests
    )
    return max(1.0, sum(m.manifest_length for m in manifests) / entries) if entries else 1024.0


def portions(
    metadata: TableMetadata, spec_id: int, entries: Sequence[ManifestEntry], entry_bytes: float
) -> Iterator[Sequence[ManifestEntry]]:
    """The entries of one spec, portioned for manifests: up to the target size each, so that summaries can prune.

    Raises:
        TableUnsupported: a partition transform is unknown.
    """
    most = max(1, int(manifest_target_bytes(metadata, len(entries) * entry_bytes) / entry_bytes))
    for found in split_by_section(partition_types(metadata, spec_id), entries, lambda entry: entry.file.partition):
        for start in range(0, len(found), most):
            yield found[start : start + most]
