"""Tables of manifests and manifest lists in memory, with counts of their reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import encode_manifest, encode_manifest_list
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from support.plans import data_file
from support.tables import CREATED_MS, new_document, snapshot

LOCATION = "s3://b/t"
FILE_BYTES = 1000

File = str | tuple[str, int]
"""A path relative to the location, or an absolute path; with an offset, a deletion vector in a Puffin file."""


def path_of(name: str) -> str:
    return name if ":/" in name else f"{LOCATION}/{name}"


class ListedManifests:
    """Manifests by name, snapshots by number; the last snapshot is current."""

    def __init__(self, format_version: int = 2, **more: Any) -> None:
        self.document = new_document(LOCATION, format_version, **more)
        self.objects: dict[str, bytes] = {}
        self.reads: Counter[str] = Counter()

    def manifest(
        self,
        name: str,
        live: Sequence[File] = (),
        dead: Sequence[File] = (),
        *,
        deletes: bool = False,
        spec_id: int = 0,
    ) -> ManifestFile:
        content = ManifestContent.DELETES if deletes else ManifestContent.DATA
        entries = [_entry(EntryStatus.EXISTING, file, deletes) for file in live]
        entries += [_entry(EntryStatus.DELETED, file, deletes) for file in dead]
        written = encode_manifest(
            self.metadata,
            spec_id=spec_id,
            content=content,
            entries=entries,
            path=path_of(f"metadata/{name}.avro") if ":/" not in name else name,
            snapshot_id=1,
            sequence_number=1,
        )
        self.objects[written.manifest.manifest_path] = written.data
        return written.manifest

    def snapshot(self, number: int, *manifests: ManifestFile, **more: Any) -> None:
        """Add a snapshot with these manifests as a child of the previous snapshot."""
        version, path = self.document["format-version"], path_of(f"metadata/snap-{number}.avro")
        self.objects[path] = encode_manifest_list(
            version,
            manifests,
            snapshot_id=number,
            parent_snapshot_id=None,
            sequence_number=number,
            first_row_id=0 if version > 2 else None,
        )
        raw = snapshot(
            number,
            format_version=version,
            sequence_number=number,
            timestamp_ms=CREATED_MS + number,
            parent_id=number - 1 or None,
            **{"manifest-list": path} | more,
        )
        self.document["snapshots"] = [*self.document["snapshots"], raw]
        self.document["current-snapshot-id"] = number
        if version > 1:
            self.document["refs"] = {**self.document["refs"], "main": {"type": "branch", "snapshot-id": number}}

    @property
    def metadata(self) -> TableMetadata:
        return TableMetadata(self.document)

    @property
    def reader(self) -> TableReader:
        return TableReader(self.metadata, self._read)

    def read_manifests(self) -> dict[str, int]:
        """The number of reads of each manifest by its name."""
        named = {path.rpartition("/")[2].removesuffix(".avro"): count for path, count in self.reads.items()}
        return {name: count for name, count in named.items() if not name.startswith("snap-")}

    def _read(self, path: str) -> bytes:
        self.reads[path] += 1
        if path not in self.objects:
            raise StorageError(f"{path} does not exist")
        return self.objects[path]


def _entry(status: EntryStatus, file: File, deletes: bool) -> ManifestEntry:
    name, offset = file if isinstance(file, tuple) else (file, None)
    more: dict[str, Any] = {}
    if offset is not None:
        more = {
            "file_format": "PUFFIN",
            "content_offset": offset,
            "content_size_in_bytes": 40,
            "referenced_data_file": path_of("data/x.parquet"),
        }
    content = FileContent.POSITION_DELETES if deletes else FileContent.DATA
    made = data_file(path_of(name), FILE_BYTES, records=1, content=content, **more)
    return ManifestEntry(status, 1, 1, 1, made)
