"""How large manifests are, and how large they should be."""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_blocks import ManifestAssembler
from icekeeper.model import ManifestContent, ManifestFile

__all__ = ["MANIFEST_TARGET_BYTES", "bytes_per_entry", "manifest_header_bytes", "manifest_target_bytes"]

# Java's TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
MANIFEST_TARGET_BYTES = 8 * 1024 * 1024


def manifest_target_bytes(metadata: TableMetadata) -> int:
    """``commit.manifest.target-size-bytes`` in bytes, at least 1."""
    return max(1, metadata.property_int("commit.manifest.target-size-bytes", MANIFEST_TARGET_BYTES))


def manifest_header_bytes(metadata: TableMetadata, spec_id: int, content: ManifestContent) -> int:
    """What a manifest takes before its first entry: its schemas, above all.

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
