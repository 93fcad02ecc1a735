"""Which files a table needs: the question before every deletion.

A file is needed when any retained snapshot, the metadata log, or a statistics entry refers to it.  DELETED manifest
entries refer to nothing (they only record history); a Puffin file is needed while any live deletion vector lies in
it.  Source: specification, "Snapshot Reference", "Table Statistics"; seed 000, "Remove Orphans".
"""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestFile

__all__ = ["manifests_of", "metadata_files", "reachable_files", "snapshot_files", "statistics_files"]

# Hadoop catalogs keep the pointer to the newest metadata in this file; no metadata refers to it.
VERSION_HINT = "version-hint.text"


def metadata_files(metadata: TableMetadata, metadata_location: str) -> set[str]:
    """The current metadata file, those of the metadata log, and the version hint beside them."""
    files = {metadata_location, f"{metadata.metadata_directory}/{VERSION_HINT}"}
    files.add(f"{metadata.location}/metadata/{VERSION_HINT}")
    files.update(str(entry["metadata-file"]) for entry in metadata.metadata_log)
    return files


def statistics_files(metadata: TableMetadata) -> set[str]:
    """Puffin statistics and partition statistics files of every snapshot."""
    return {str(s["statistics-path"]) for s in (*metadata.statistics, *metadata.partition_statistics)}


def manifests_of(reader: TableReader, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    """Every manifest of the snapshots by path; each manifest list is read once.

    Raises:
        MetadataUnreadable: a manifest list is missing or damaged.
    """
    found: dict[str, ManifestFile] = {}
    for manifest in reader.manifests_of(snapshots):
        found.setdefault(manifest.manifest_path, manifest)
    return found


def snapshot_files(reader: TableReader, snapshots: Iterable[Snapshot]) -> set[str]:
    """Manifest lists, manifests, data and delete files of the snapshots; every manifest is read once.

    Raises:
        MetadataUnreadable: something needed to know the references cannot be read.
    """
    snapshots = list(snapshots)
    manifests = manifests_of(reader, snapshots)
    files = {snapshot.manifest_list for snapshot in snapshots if snapshot.manifest_list is not None}
    files.update(manifests)
    files.update(path for _, (path, _) in reader.live_keys(manifests.values()))
    return files


def reachable_files(reader: TableReader, metadata_location: str) -> set[str]:
    """Every file that the table needs, as the paths that its metadata spells.

    Raises:
        MetadataUnreadable: something needed to know the references cannot be read.
    """
    metadata = reader.metadata
    files = metadata_files(metadata, metadata_location) | statistics_files(metadata)
    return files | snapshot_files(reader, metadata.snapshots.values())
