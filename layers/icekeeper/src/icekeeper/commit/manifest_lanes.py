"""Entries on their way into new manifests, and how large manifests become."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import ManifestAssembler, ManifestBuilder, partition_types
from icekeeper.metadata.types import Section, section_of
from icekeeper.model import ManifestContent, ManifestEntry, ManifestFile

_Kind = tuple[int, ManifestContent]
"""One spec and one content type per manifest."""
_Lane = tuple[bool, int, ManifestContent, Section]
"""Whether its entries are DELETED, spec, content type and section."""

# Java's TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
MANIFEST_TARGET_BYTES = 8 * 1024 * 1024
_MOST_MANIFESTS = 10_000
_LARGEST_TARGET_BYTES = 128 * 1024 * 1024


def manifest_target_bytes(metadata: TableMetadata, total_bytes: float) -> int:
    """``commit.manifest.target-size-bytes``, within limits.

    Entries of ``total_bytes`` make at most 10,000 manifests, because every pass reads all of them.  A manifest has at
    most about 128 MB, because it is assembled in memory.
    """
    asked = metadata.property_int("commit.manifest.target-size-bytes", MANIFEST_TARGET_BYTES)
    return min(max(1, asked, math.ceil(total_bytes / _MOST_MANIFESTS)), _LARGEST_TARGET_BYTES)


def manifest_header_bytes(metadata: TableMetadata, spec_id: int, content: ManifestContent) -> int:
    """The bytes of a manifest before its first entry.

    Raises:
        TableUnsupported: manifests of that spec cannot be written.
    """
    return ManifestAssembler(metadata, spec_id, content).header_bytes


def bytes_per_entry(manifests: Iterable[ManifestFile]) -> float:
    """The observed size of one encoded entry, headers included; 1 kB if no entries are known."""
    manifests = list(manifests)
    entries = sum(
        (m.added_files_count or 0) + (m.existing_files_count or 0) + (m.deleted_files_count or 0) for m in manifests
    )
    return max(1.0, sum(m.manifest_length for m in manifests) / entries) if entries else 1024.0


class ManifestLanes:
    """Entries on their way into new manifests; each manifest is stored once it has the target size.

    Entries of different specs, contents or sections never share a manifest, nor do live and DELETED entries.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        entries: Mapping[_Kind, int],
        entry_bytes: float,
        store: Callable[[ManifestBuilder], ManifestFile],
    ) -> None:
        """``entries``: how many entries are expected; ``entry_bytes``: see :func:`bytes_per_entry`."""
        self._metadata, self._entries, self._entry_bytes, self._store = metadata, entries, entry_bytes, store
        self._types: dict[int, list[str]] = {}
        self._filling: dict[_Lane, tuple[ManifestBuilder, int]] = {}
        self._written: dict[_Lane, list[ManifestFile]] = defaultdict(list)

    def add(self, spec_id: int, content: ManifestContent, entry: ManifestEntry) -> None:
        """Raises TableUnsupported: the spec, a transform or a source column is unknown."""
        types = self._types.get(spec_id)
        if types is None:
            types = self._types[spec_id] = partition_types(self._metadata, spec_id)
        section = section_of(types, entry.file.partition) if "uuid" in types else ()
        lane = not entry.is_live, spec_id, content, section
        found = self._filling.get(lane)
        if found is None:
            found = self._filling[lane] = (
                ManifestBuilder(self._metadata, spec_id, content),
                self._most(spec_id, content),
            )
        builder, most = found
        builder.add(entry)
        if builder.count >= most:
            self._end(lane)

    def _most(self, spec_id: int, content: ManifestContent) -> int:
        """The entries of a full manifest."""
        total_bytes = self._entries[spec_id, content] * self._entry_bytes
        return max(1, int(manifest_target_bytes(self._metadata, total_bytes) / self._entry_bytes))

    def _end(self, lane: _Lane) -> None:
        builder, _ = self._filling.pop(lane)
        self._written[lane].append(self._store(builder))

    def written(self) -> list[ManifestFile]:
        """All manifests, once all entries are added: those of live entries first."""
        for lane in sorted(self._filling):
            self._end(lane)
        return [manifest for lane in sorted(self._written) for manifest in self._written[lane]]
