"""Resolves sequence numbers that an entry inherits (specification, "Manifest Entry Inheritance")."""

from __future__ import annotations

from icekeeper.errors import MetadataUnreadable
from icekeeper.model import EntryStatus, ManifestFile

__all__ = ["inherited_file_number", "inherited_number"]


def inherited_number(value: int | None, status: EntryStatus, manifest: ManifestFile) -> int:
    """The data sequence number of an entry; null stands for the manifest's, in ADDED entries and v1 manifests.

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
    """The file sequence number of an entry, inherited as the data sequence number is.

    ``None`` where it should be stated and is not: early writers of v2 left such entries, and Iceberg reads them.
    """
    if value is None and (status is EntryStatus.ADDED or manifest.sequence_number == 0):
        return manifest.sequence_number
    return value
