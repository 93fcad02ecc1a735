"""Reads a table's manifest lists and manifests from its store; files are fetched ahead in parallel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_read import (
    decode_identities,
    decode_live_files,
    decode_live_paths,
    decode_manifest,
    decode_manifest_list,
    manifest_from_file,
)
from icekeeper.model import (
    FileContent,
    FileIdentity,
    FileKey,
    LiveEntry,
    LiveFile,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)

__all__ = ["ReadBytes", "TableReader"]

ReadBytes: TypeAlias = Callable[[str], bytes]
"""The whole file at a path; raises StorageError."""

# Enough requests at once to hide an object store's latency; at most so many manifests are held undecoded.
_PARALLEL_READS = 16


@dataclass(frozen=True, slots=True)
class TableReader:
    """Reads the files that one metadata document refers to; every error names the file."""

    metadata: TableMetadata
    read: ReadBytes
    on_live_file: Callable[[str], None] | None = None
    """Called with paths of data and delete files of live entries that are read, of each folder with one at least."""

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """The snapshot's manifests, from its manifest list or from v1's inline list.

        Raises:
            MetadataUnreadable: a file is missing or damaged.
        """
        if snapshot.manifest_list is not None:
            return decode_manifest_list(self._bytes(snapshot.manifest_list, "manifest list"), snapshot.manifest_list)
        return [
            manifest_from_file(self._bytes(path, "manifest"), path, snapshot.snapshot_id)
            for path in snapshot.inline_manifests
        ]

    def manifests_of(self, snapshots: Iterable[Snapshot]) -> Iterator[ManifestFile]:
        """The manifests of many snapshots; one that several snapshots list is repeated.

        Raises:
            MetadataUnreadable: a file is missing or damaged.
        """
        snapshots = list(snapshots)
        for snapshot in snapshots:
            if snapshot.manifest_list is None:
                yield from self.manifests(snapshot)
        for _, _, manifests in self.manifest_lists(snapshots):
            yield from manifests

    def manifest_lists(self, snapshots: Iterable[Snapshot]) -> Iterator[tuple[Snapshot, int, list[ManifestFile]]]:
        """Each snapshot that has a manifest list, with the list's size in bytes and its manifests.

        Raises:
            MetadataUnreadable: a manifest list is missing or damaged.
        """
        listing = [snapshot for snapshot in snapshots if snapshot.manifest_list is not None]
        fetched = self._fetch((str(snapshot.manifest_list) for snapshot in listing), "manifest list")
        for snapshot, (path, data) in zip(listing, fetched, strict=True):
            yield snapshot, len(data), decode_manifest_list(data, path)

    def entries(self, manifests: Iterable[ManifestFile]) -> Iterator[tuple[ManifestFile, Iterator[ManifestEntry]]]:
        """Each manifest with its entries of all statuses.

        Raises:
            MetadataUnreadable: a manifest is missing or damaged.
        """
        for manifest, data in self.contents(manifests):
            try:
                spec = self.metadata.specs[manifest.partition_spec_id]
            except KeyError:
                raise MetadataUnreadable(
                    f"manifest {manifest.manifest_path} uses partition spec {manifest.partition_spec_id}, "
                    "which the table does not have"
                ) from None
            found = decode_manifest(data, manifest, spec, self.metadata.schemas_current_first)
            yield manifest, self._reporting(found, manifest)

    def live_entries(
        self, manifests: Iterable[ManifestFile], content: ManifestContent | None = None
    ) -> Iterator[LiveEntry]:
        """Every live entry of the manifests, or only of data or delete manifests (``content``).

        Raises:
            MetadataUnreadable: a manifest is missing or damaged.
        """
        wanted = [m for m in manifests if m.may_have_live_files and content in (None, m.content)]
        for manifest, entries in self.entries(wanted):
            for entry in entries:
                if entry.is_live:
                    yield LiveEntry(manifest, entry)

    def live_paths(self, manifests: Iterable[ManifestFile]) -> Iterator[str]:
        """The path of every live entry of every manifest.

        Raises:
            MetadataUnreadable: a manifest is missing or damaged.
        """
        on_live_file = self.on_live_file
        for manifest, data in self.contents(manifests):
            for paths in decode_live_paths(data, manifest.manifest_path):
                if on_live_file is not None:
                    for path in {path[: path.rfind("/")]: path for path in paths}.values():
                        on_live_file(path)
                yield from paths

    def identities(
        self, manifests: Iterable[ManifestFile]
    ) -> Iterator[tuple[ManifestFile, Iterator[tuple[FileKey, FileIdentity]]]]:
        """Each manifest with the identities of its live entries.

        Raises:
            MetadataUnreadable: a manifest is missing or damaged.
        """
        for manifest, data in self.contents(manifests):
            yield manifest, decode_identities(data, manifest)

    def live_files(self, manifest_paths: Iterable[str]) -> Iterator[tuple[str, Iterator[LiveFile]]]:
        """Each manifest with the files that its live entries name, in the order given.

        Raises:
            MetadataUnreadable: a manifest is missing or damaged.
        """
        for path, data in self._fetch(manifest_paths, "manifest"):
            yield path, self._reporting_files(decode_live_files(data, path))

    def contents(self, manifests: Iterable[ManifestFile]) -> Iterator[tuple[ManifestFile, bytes]]:
        """Each manifest with its bytes, in order.

        Raises:
            MetadataUnreadable: a manifest is missing, or shorter than its manifest list says.
        """
        manifests = list(manifests)
        fetched = self._fetch((manifest.manifest_path for manifest in manifests), "manifest")
        for manifest, (path, data) in zip(manifests, fetched, strict=True):
            if len(data) < manifest.manifest_length:  # cut off between two blocks, it would just hold fewer entries
                raise MetadataUnreadable(
                    f"manifest {path} has {len(data)} bytes, its manifest list says {manifest.manifest_length}"
                )
            yield manifest, data

    def _reporting(self, entries: Iterator[ManifestEntry], manifest: ManifestFile) -> Iterator[ManifestEntry]:
        """The entries, each of which fits its manifest: of others readers believe the one or the other (rule 290)."""
        on_live_file, holds_data = self.on_live_file, manifest.content is ManifestContent.DATA
        for entry in entries:
            file = entry.file
            if (file.content is FileContent.DATA) is not holds_data or file.file_size_in_bytes < 0:
                raise MetadataUnreadable(
                    f"manifest {manifest.manifest_path} of {manifest.content.name} holds an entry that does not fit: "
                    f"{file.file_path} has content {file.content.name} and {file.file_size_in_bytes} bytes"
                )
            if on_live_file is not None and entry.is_live:
                on_live_file(entry.file.file_path)
            yield entry

    def _reporting_files(self, files: Iterator[LiveFile]) -> Iterator[LiveFile]:
        on_live_file = self.on_live_file
        for file in files:
            if on_live_file is not None:
                on_live_file(file.path)
            yield file

    def _fetch(self, paths: Iterable[str], kind: str) -> Iterator[tuple[str, bytes]]:
        """Paths with the bytes of their files, in order, fetched ahead in parallel."""
        waiting: deque[tuple[str, Future[bytes]]] = deque()
        with WorkThreads(_PARALLEL_READS, thread_name_prefix="manifest-read") as pool:
            try:
                for path in paths:
                    waiting.append((path, pool.submit(self._bytes, path, kind)))
                    if len(waiting) >= _PARALLEL_READS:
                        first, future = waiting.popleft()
                        yield first, future.result()
                while waiting:
                    first, future = waiting.popleft()
                    yield first, future.result()
            finally:
                for _, future in waiting:
                    future.cancel()

    def _bytes(self, path: str, kind: str) -> bytes:
        try:
            return self.read(path)
        except StorageError as error:
            raise MetadataUnreadable(f"{kind} {error}") from error  # which names the path
