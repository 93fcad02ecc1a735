"""Reads a table's manifests, delete index, and the paths of all files that the table needs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Protocol, TypeAlias, TypeVar

from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.delete_scope import (
    DeleteIndex,
    DeleteIndexBuilder,
    is_unpartitioned,
    may_stand_elsewhere,
    named_file,
    partition_key,
)
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_read import (
    ListEntries,
    decode_identities,
    decode_live_files,
    decode_live_paths,
    decode_manifest,
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

_Read = TypeVar("_Read")
ReadBytes: TypeAlias = Callable[[str], bytes]
"""The whole file at a path; raises StorageError."""
DecodedList: TypeAlias = tuple[int, Sequence[ManifestFile]]
"""A manifest list: its size in bytes, and its manifests."""


class KnownLists(Protocol):
    """Remembers decoded manifest lists."""

    def read_list(self, path: str) -> DecodedList | bytes:
        """The list if it is remembered, else its bytes; raises StorageError."""

    def keep_list(self, path: str, found: DecodedList, size: int) -> bool:
        """Remember a list, if there is room; ``size``: the memory of those of its entries that no kept list has."""


# Enough parallel requests to hide an object store's latency.  At most this many manifests wait to be decoded.
_PARALLEL_READS = 16
_REPORTED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class TableReader:
    """Reads manifest lists and manifests, fetched ahead in parallel.

    Raises:
        MetadataUnreadable: a file is missing or damaged; the error names it.
    """

    metadata: TableMetadata
    read: ReadBytes
    on_live_files: Callable[[Sequence[str]], None] | None = None
    """Called with paths of live data and delete files."""
    lists: KnownLists | None = None
    """Reads manifest lists in place of ``read``."""

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """The snapshot's manifests, from its manifest list or from the inline list of v1."""
        if snapshot.manifest_list is not None:
            path = snapshot.manifest_list
            return list(self._decoded(path, self._list(path), ListEntries())[1])
        return [
            manifest_from_file(self._manifest(path), path, snapshot.snapshot_id) for path in snapshot.inline_manifests
        ]

    def manifests_of(self, snapshots: Iterable[Snapshot]) -> Iterator[ManifestFile]:
        """The manifests of many snapshots; a manifest that several snapshots list is repeated."""
        snapshots = list(snapshots)
        for snapshot in snapshots:
            if snapshot.manifest_list is None:
                yield from self.manifests(snapshot)
        for _, _, manifests in self.manifest_lists(snapshots):
            yield from manifests

    def manifest_lists(self, snapshots: Iterable[Snapshot]) -> Iterator[tuple[Snapshot, int, Sequence[ManifestFile]]]:
        """Each snapshot that has a manifest list, with the size of the list in bytes and its manifests."""
        listing = [snapshot for snapshot in snapshots if snapshot.manifest_list is not None]
        paths = (str(snapshot.manifest_list) for snapshot in listing)
        entries = ListEntries()
        for snapshot, (path, found) in zip(listing, self._fetch(paths, self._list), strict=True):
            yield snapshot, *self._decoded(path, found, entries)

    def entries(self, manifests: Iterable[ManifestFile]) -> Iterator[tuple[ManifestFile, Iterator[ManifestEntry]]]:
        """Each manifest with its entries of all statuses."""
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
        """Every live entry of the manifests; with ``content``, only of data or of delete manifests."""
        wanted = [m for m in manifests if m.may_have_live_files and content in (None, m.content)]
        for manifest, entries in self.entries(wanted):
            for entry in entries:
                if entry.is_live:
                    yield LiveEntry(manifest, entry)

    def live_paths(self, manifests: Iterable[ManifestFile]) -> Iterator[str]:
        """The path of every live entry of every manifest."""
        return chain.from_iterable(self._live_paths(manifests))

    def _live_paths(self, manifests: Iterable[ManifestFile]) -> Iterator[list[str]]:
        for manifest, data in self.contents(manifests):
            for paths in decode_live_paths(data, manifest.manifest_path):
                if self.on_live_files is not None:
                    self.on_live_files(paths)
                yield paths

    def identities(
        self, manifests: Iterable[ManifestFile]
    ) -> Iterator[tuple[ManifestFile, Iterator[tuple[FileKey, FileIdentity]]]]:
        """Each manifest with the identities of its live entries."""
        for manifest, data in self.contents(manifests):
            yield manifest, decode_identities(data, manifest)

    def live_files(self, manifest_paths: Iterable[str]) -> Iterator[tuple[str, Iterator[LiveFile]]]:
        """Each manifest with the files that its live entries name, in the order given."""
        for path, data in self._fetch(manifest_paths, self._manifest):
            files = decode_live_files(data, path)
            yield path, files if self.on_live_files is None else self._reported(files, self.on_live_files)

    def contents(self, manifests: Iterable[ManifestFile]) -> Iterator[tuple[ManifestFile, bytes]]:
        """Each manifest with its bytes, in order.

        Raises:
            MetadataUnreadable: a manifest is missing, or is shorter than its manifest list says.
        """
        manifests = list(manifests)
        fetched = self._fetch((manifest.manifest_path for manifest in manifests), self._manifest)
        for manifest, (path, data) in zip(manifests, fetched, strict=True):
            if len(data) < manifest.manifest_length:  # a manifest truncated between two blocks is valid Avro
                raise MetadataUnreadable(
                    f"manifest {path} has {len(data)} bytes, but its manifest list says {manifest.manifest_length}"
                )
            yield manifest, data

    def _reporting(self, entries: Iterator[ManifestEntry], manifest: ManifestFile) -> Iterator[ManifestEntry]:
        """The entries, after a check that each fits its manifest, because readers disagree on entries that do not
        (rule: refuse-ambiguous-tables)."""
        on_live_files, holds_data = self.on_live_files, manifest.content is ManifestContent.DATA
        for entry in entries:
            file = entry.file
            if (file.content is FileContent.DATA) is not holds_data or file.file_size_in_bytes < 0:
                raise MetadataUnreadable(
                    f"manifest {manifest.manifest_path} of {manifest.content.name} has an entry that does not fit: "
                    f"{file.file_path} has content {file.content.name} and {file.file_size_in_bytes} bytes"
                )
            if on_live_files is not None and entry.is_live:
                on_live_files((entry.file.file_path,))
            yield entry

    @staticmethod
    def _reported(files: Iterator[LiveFile], report: Callable[[Sequence[str]], None]) -> Iterator[LiveFile]:
        while some := [*islice(files, _REPORTED_AT_ONCE)]:
            report([file.path for file in some])
            yield from some

    def _fetch(self, paths: Iterable[str], read_one: Callable[[str], _Read]) -> Iterator[tuple[str, _Read]]:
        """Paths with what their files contain, in order.  Files in object stores are fetched ahead in parallel; local
        reads are so fast that threads would not help."""
        waiting: deque[tuple[str, Callable[[], _Read]]] = deque()
        with WorkThreads(_PARALLEL_READS, thread_name_prefix="manifest-read") as pool:
            try:
                for path in paths:
                    read = partial(read_one, path)
                    is_remote = "://" in path and not path.startswith("file:")
                    waiting.append((path, pool.submit(read).result if is_remote else read))
                    if len(waiting) >= _PARALLEL_READS:
                        first, result = waiting.popleft()
                        yield first, result()
                while waiting:
                    first, result = waiting.popleft()
                    yield first, result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _manifest(self, path: str) -> bytes:
        try:
            return self.read(path)
        except StorageError as error:
            raise MetadataUnreadable(f"manifest {error}") from error  # the error names the path

    def _list(self, path: str) -> DecodedList | bytes:
        try:
            return self.read(path) if self.lists is None else self.lists.read_list(path)
        except StorageError as error:
            raise MetadataUnreadable(f"manifest list {error}") from error

    def _decoded(self, path: str, found: DecodedList | bytes, entries: ListEntries) -> DecodedList:
        if not isinstance(found, bytes):
            return found
        decoded = len(found), entries.decode(found, path)
        if self.lists is not None and self.lists.keep_list(path, decoded, entries.size):
            entries.size = 0
        return decoded


# The files that a table needs.  Every deletion depends on this list.
#
# A file is needed if a snapshot, the metadata log or a statistics entry refers to it.  DELETED manifest entries do not
# count as references; they only record history.  A Puffin file is needed while it contains a live deletion vector
# (rule: what-a-table-needs).  Source: specification, "Snapshot Reference", "Table Statistics".
# The file in which Hadoop catalogs name the current metadata file.
VERSION_HINT = "version-hint.text"


def metadata_files(metadata: TableMetadata, metadata_location: str) -> set[str]:
    """Paths of the current metadata file, the metadata log's files, and the version hint of Hadoop catalogs."""
    hints = (f"{folder}/{VERSION_HINT}" for folder in (metadata.metadata_directory, f"{metadata.location}/metadata"))
    return {metadata_location, *hints, *(str(entry["metadata-file"]) for entry in metadata.metadata_log)}


def statistics_files(metadata: TableMetadata) -> set[str]:
    """Paths of the statistics and partition statistics files of every snapshot."""
    return {str(s["statistics-path"]) for s in (*metadata.statistics, *metadata.partition_statistics)}


def documents(metadata: TableMetadata, metadata_location: str) -> Iterator[str]:
    """Paths of the files that the metadata itself names: metadata files, statistics and manifest lists."""
    yield from metadata_files(metadata, metadata_location)
    yield from statistics_files(metadata)
    yield from (s.manifest_list for s in metadata.snapshots.values() if s.manifest_list is not None)


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
    """Follows the references of a table while the table changes.  Manifests never change, so each is read once.

    Each method skips snapshots and manifests that were followed before.

    Raises:
        MetadataUnreadable: a manifest list or manifest is missing or damaged.
    """

    snapshots: set[int] = field(default_factory=set)
    manifests: set[str] = field(default_factory=set)

    def follow(self, reader: TableReader, snapshots: Iterable[Snapshot]) -> Iterator[str]:
        """Paths of the manifest lists, manifests, data and delete files of the snapshots."""
        new = [snapshot for snapshot in snapshots if snapshot.snapshot_id not in self.snapshots]
        listed = self.listed(reader, new)
        yield from (snapshot.manifest_list for snapshot in new if snapshot.manifest_list is not None)
        yield from listed
        yield from self.held(reader, listed.values())

    def listed(self, reader: TableReader, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
        """The manifests of the snapshots by path."""
        new = [snapshot for snapshot in snapshots if snapshot.snapshot_id not in self.snapshots]
        found = manifests_of(reader, new)
        self.snapshots.update(snapshot.snapshot_id for snapshot in new)
        return found

    def held(self, reader: TableReader, manifests: Iterable[ManifestFile]) -> Iterator[str]:
        """Paths of the data and delete files in live entries of the manifests."""
        unseen = [manifest for manifest in manifests if manifest.manifest_path not in self.manifests]
        self.manifests.update(manifest.manifest_path for manifest in unseen)
        return reader.live_paths(unseen)


def reachable_files(reader: TableReader, metadata_location: str, references: References | None = None) -> set[str]:
    """Paths of every file that the table needs, spelled as in its metadata.

    Snapshots and manifests that ``references`` has followed before are skipped.

    Raises:
        MetadataUnreadable: a manifest list or manifest is missing or damaged.
    """
    return set(reachable_paths(reader, metadata_location, References() if references is None else references))


def reachable_paths(reader: TableReader, metadata_location: str, references: References) -> Iterator[str]:
    """Like :func:`reachable_files`, but an iterator with duplicates: a large table's paths do not fit into a set.

    Raises:
        MetadataUnreadable: a manifest list or manifest is missing or damaged.
    """
    yield from metadata_files(reader.metadata, metadata_location)
    yield from statistics_files(reader.metadata)
    yield from references.follow(reader, reader.metadata.snapshots.values())


# Delete files.


def delete_index(reader: TableReader, manifests: Sequence[ManifestFile]) -> DeleteIndex:
    """The index of the live delete files in these manifests; data manifests are skipped.

    Raises:
        MetadataUnreadable: a manifest is missing or damaged, or a data file has two deletion vectors.
    """
    builder = DeleteIndexBuilder()
    for manifest, entry in reader.live_entries(manifests, ManifestContent.DELETES):
        is_global = is_unpartitioned(reader.metadata.specs[manifest.partition_spec_id])
        builder.add(manifest.partition_spec_id, entry, is_unpartitioned=is_global)
    return builder.build()


def deletes_standing_elsewhere(reader: TableReader, manifests: Sequence[ManifestFile]) -> list[LiveEntry]:
    """The live delete files that name a live data file of another spec or partition
    (rule: named-deletes-reach-anywhere, platform: java-checks-delete-partition).

    Data manifests are read only if a delete file names its data file.

    Raises:
        MetadataUnreadable: a manifest is missing or damaged.
    """
    if not may_stand_elsewhere(reader.metadata):
        return []
    by_file: dict[str, list[LiveEntry]] = defaultdict(list)
    for live in reader.live_entries(manifests, ManifestContent.DELETES):
        if (path := named_file(live.entry.file)) is not None:
            by_file[path].append(live)
    if not by_file:
        return []
    found: list[LiveEntry] = []
    for manifest, entry in reader.live_entries(manifests, ManifestContent.DATA):
        for delete in by_file.get(entry.file.file_path, ()):
            home = partition_key(manifest.partition_spec_id, entry.file.partition)
            if partition_key(delete.manifest.partition_spec_id, delete.entry.file.partition) != home:
                found.append(delete)
    return found
