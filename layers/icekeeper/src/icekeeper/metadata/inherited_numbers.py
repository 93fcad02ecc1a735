"""Sequence numbers that an entry leaves to its manifest (specification, "Manifest Entry Inheritance")."""

from __future__ import annotations

from icekeeper.errors import MetadataUnreadable
from icekeeper.model import EntryStatus, ManifestFile

__all__ = ["inherited_file_number", "inherited_number"]


def inherited_number(value: int | None, status: EntryStatus, manifest: ManifestFile) -> int:
    """The data sequence number of an entry: null means the manifest's own, for ADDED entries and in manifests written
    as v1.

    Raises:
        MetadataUnreadable: it is null where it must not be.
    """
    number = inherited_file_number(value, status, manifest)
    if number is None:
        raise MetadataUnreadable(
            f"manifest {manifest.manifest_path} holds an {status.name} entry without sequence number"
        )
    return number


def inherited_file_number(value: int | None, status: EntryStatus, manifest: ManifestFile) -> int | None:
    """The file sequence number of an entry, which inherits as the data sequence number does; ``None`` where it should
    be stated and is not: Iceberg reads such entries, which writers of v2's early days left."""
    if value is None and (status is EntryStatus.ADDED or manifest.sequence_number == 0):
        return manifest.sequence_number
    return value
