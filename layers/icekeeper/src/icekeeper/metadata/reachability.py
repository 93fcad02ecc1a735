"""Finds the files that a table needs, which is asked before every deletion.

A file is needed if any snapshot, the metadata log, or a statistics entry refers to it.  DELETED manifest
entries refer to nothing (they only record history); a Puffin file is needed while any live deletion vector lies in
it (rule 81).  Source: specification, "Snapshot Reference", "Table Statistics".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestFile

__all__ = [
    "References",
    "documents",
    "manifests_of",
    "metadata_files",
    "reachable_files",
    "reachable_paths",
    "statistics_files",
]

# Hadoop catalogs keep the pointer to the newest metadata in this file; no metadata refers to it.
VERSION_HINT = "version-hint.text"


def metadata_files(metadata: TableMetadata, metadata_location: str) -> set[str]:
    """Paths of the current metadata file, those of the metadata log, and the version hint of Hadoop catalogs."""
    files = {metadata_location, f"{metadata.metadata_directory}/{VERSION_HINT}"}
    files.add(f"{metadata.location}/metadata/{VERSION_HINT}")
    files.update(str(entry["metadata-file"]) for entry in metadata.metadata_log)
    return files


def statistics_files(metadata: TableMetadata) -> set[str]:
    """Paths of the statistics and partition statistics files of every snapshot."""
    return {str(s["statistics-path"]) for s in (*metadata.statistics, *metadata.partition_statistics)}


def documents(metadata: TableMetadata, metadata_location: str) -> Iterator[str]:
    """Paths of the files that the metadata itself names: metadata files, statistics and manifest lists."""
    yield from metadata_files(metadata, metadata_location)
    yield from statistics_files(metadata)
    yield from (
        snapshot.manifest_list for snapshot in metadata.snapshots.values() if snapshot.manifest_list is not None
    )


def manifests_of(reader: TableReader, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    """Every manifest of the snapshots by path; each manifest list is read once.

    Raises:
        MetadataUnreadable: a manifest list is missing or damaged.
    """
    found: dict[str, ManifestFile] = {}
    for manifest in reader.manifests_of(snapshots):
        found.setdefault(manifest.manifest_path, manifest)
    return found


@dataclass(slots=True)
class References:
    """Follows the references of a table that changes meanwhile; manifests never change, so each is opened once.

    Every method returns only what none of them has returned before.
    """

    snapshots: set[int] = field(default_factory=set)
    manifests: set[str] = field(default_factory=set)

    def follow(self, reader: TableReader, snapshots: Iterable[Snapshot]) -> Iterator[str]:
        """Paths of the manifest lists, manifests, data and delete files of the snapshots.

        Raises:
            MetadataUnreadable: something needed to know the references cannot be read.
        """
        new = [snapshot for snapshot in snapshots if snapshot.snapshot_id not in self.snapshots]
        listed = self.listed(reader, new)
        yield from (snapshot.manifest_list for snapshot in new if snapshot.manifest_list is not None)
        yield from listed
        yield from self.held(reader, listed.values())

    def listed(self, reader: TableReader, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
        """The manifests of the snapshots by path.

        Raises:
            MetadataUnreadable: a manifest list is missing or damaged.
        """
        new = [snapshot for snapshot in snapshots if snapshot.snapshot_id not in self.snapshots]
        found = manifests_of(reader, new)
        self.snapshots.update(snapshot.snapshot_id for snapshot in new)
        return found

    def held(self, reader: TableReader, manifests: Iterable[ManifestFile]) -> Iterator[str]:
        """Paths of the data and delete files in live entries of the manifests.

        Raises:
            MetadataUnreadable: a manifest is missing or damaged.
        """
        unseen = [manifest for manifest in manifests if manifest.manifest_path not in self.manifests]
        self.manifests.update(manifest.manifest_path for manifest in unseen)
        yield from reader.live_paths(unseen)


def reachable_files(reader: TableReader, metadata_location: str, references: References | None = None) -> set[str]:
    """Paths of every file that the table needs, as its metadata spells them.

    If ``references`` were followed before, files of snapshots are returned only if they are new.

    Raises:
        MetadataUnreadable: something needed to know the references cannot be read.
    """
    return set(reachable_paths(reader, metadata_location, References() if references is None else references))


def reachable_paths(reader: TableReader, metadata_location: str, references: References) -> Iterator[str]:
    """As :func:`reachable_files`, but one by one, some repeatedly: the paths of a large table do not fit into a set.

    Raises:
        MetadataUnreadable: something needed to know the references cannot be read.
    """
    yield from metadata_files(reader.metadata, metadata_location)
    yield from statistics_files(reader.metadata)
    yield from references.follow(reader, reader.metadata.snapshots.values())
