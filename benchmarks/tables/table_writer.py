"""Writes a table's metadata file by file, snapshot by snapshot, where a Hadoop catalog of Iceberg-Java finds it.

The newest metadata are ``metadata/v1.metadata.json``; everybody else registers that file in a catalog of their own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import decode_manifest_list
from icekeeper.metadata.manifest_write import EncodedManifest, encode_manifest, encode_manifest_list
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile

START = "metadata/v1.metadata.json"
"""Where the metadata are, below the table's folder."""
CREATED_MS = 1_760_000_000_000
_FIRST_SNAPSHOT = 4_000_000_000


def empty_document(location: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a table of format v2 without snapshots, partitions and properties."""
    return {
        "format-version": 2,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-updated-ms": CREATED_MS,
        "last-column-id": max(field["id"] for field in schema["fields"]),
        "current-schema-id": 0,
        "schemas": [schema],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": None,
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "last-sequence-number": 0,
    }


class TableWriter:
    """Collects snapshots; :meth:`save` writes the metadata file."""

    def __init__(
        self,
        folder: Path,
        schema: Mapping[str, Any],
        *,
        format_version: int = 2,
        partition_fields: Sequence[Mapping[str, Any]] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        (folder / "metadata").mkdir(parents=True, exist_ok=True)
        self.schema = schema
        self._manifests: list[ManifestFile] = []
        self._document = empty_document(str(folder), schema)
        self._document |= {
            "format-version": format_version,
            "partition-specs": [{"spec-id": 0, "fields": list(partition_fields)}],
            "last-partition-id": 999 + len(partition_fields),
            "properties": {
                "write.delete.mode": "merge-on-read",
                "write.parquet.compression-codec": "zstd",
                **(properties or {}),
            },
        }
        if format_version == 3:
            self._document["next-row-id"] = 0

    @classmethod
    def after(cls, folder: Path, metadata_location: str) -> TableWriter:
        """A writer that goes on from metadata that somebody else wrote for the table in the folder."""
        metadata = TableMetadata(json.loads(Path(metadata_location).read_text()))
        writer = cls(folder, metadata.current_schema)
        writer._document = dict(metadata.document)
        head = metadata.current_snapshot
        if head is not None and head.manifest_list is not None:
            writer._manifests = decode_manifest_list(Path(head.manifest_list).read_bytes(), head.manifest_list)
        return writer

    @property
    def metadata(self) -> TableMetadata:
        """As they are so far."""
        return TableMetadata(self._document)

    @property
    def _next(self) -> int:
        """The sequence number of the next snapshot."""
        return int(self._document["last-sequence-number"]) + 1

    def encoded(self, files: Iterable[DataFile], path: str = "") -> EncodedManifest:
        """A manifest of data files that the next snapshot adds; it is not written."""
        return self._encoded(ManifestContent.DATA, files, self._next, path)

    def add_manifests(self, manifests: Sequence[ManifestFile], files: int) -> None:
        """One more snapshot, of v2, which adds these manifests of so many data files, as they are written already."""
        number = self._next
        self._manifests += [
            replace(manifest, sequence_number=number, added_snapshot_id=_FIRST_SNAPSHOT + number)
            for manifest in manifests
        ]
        path = self._write_list(number)
        self._append(number, path, {"added-data-files": str(files), "total-data-files": str(files)}, 0)

    def add_snapshot(
        self, data: Sequence[DataFile] = (), deletes: Sequence[DataFile] = (), *, keep_manifests: int | None = None
    ) -> None:
        """One more snapshot, with one manifest of the data files and one of the delete files.

        ``keep_manifests``: so many of the manifests before it stay in the table.
        """
        number = self._next
        if keep_manifests is not None:
            del self._manifests[: max(0, len(self._manifests) - keep_manifests)]
        added = [
            self._manifest(ManifestContent(kind), files, number)
            for kind, files in ((ManifestContent.DATA, data), (ManifestContent.DELETES, deletes))
            if files
        ]
        next_row_id = self._document.get("next-row-id")
        if next_row_id is not None:
            added = [
                replace(manifest, first_row_id=next_row_id) if manifest.content is ManifestContent.DATA else manifest
                for manifest in added
            ]
        self._manifests += added
        path = self._write_list(number)
        totals = self._totals(data, deletes)
        self._append(number, path, totals, sum(file.record_count for file in data), overwrites=bool(deletes))

    def _write_list(self, number: int) -> Path:
        path = self.folder / "metadata" / f"snap-{_FIRST_SNAPSHOT + number}.avro"
        path.write_bytes(
            encode_manifest_list(
                self._document["format-version"],
                self._manifests,
                snapshot_id=_FIRST_SNAPSHOT + number,
                parent_snapshot_id=self._document["current-snapshot-id"],
                sequence_number=number,
                first_row_id=self._document.get("next-row-id"),
            )
        )
        return path

    def _append(
        self, number: int, path: Path, totals: Mapping[str, str], rows: int, *, overwrites: bool = False
    ) -> None:
        """Put the snapshot into the document."""
        document, snapshot_id = self._document, _FIRST_SNAPSHOT + number
        at_ms = max(CREATED_MS + number, document["last-updated-ms"] + 1)
        raw: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "sequence-number": number,
            "timestamp-ms": at_ms,
            "manifest-list": str(path),
            "summary": {"operation": "overwrite" if overwrites else "append", **totals},
            "schema-id": 0,
        }
        if document["current-snapshot-id"] is not None:
            raw["parent-snapshot-id"] = document["current-snapshot-id"]
        if "next-row-id" in document:
            raw |= {"first-row-id": document["next-row-id"], "added-rows": rows}
            document["next-row-id"] += rows
        document["snapshots"].append(raw)
        document["snapshot-log"].append({"snapshot-id": snapshot_id, "timestamp-ms": at_ms})
        document["refs"] = {"main": {"snapshot-id": snapshot_id, "type": "branch"}}
        document |= {"current-snapshot-id": snapshot_id, "last-sequence-number": number, "last-updated-ms": at_ms}

    def _totals(self, data: Sequence[DataFile], deletes: Sequence[DataFile]) -> dict[str, str]:
        """The counters of a summary: what this snapshot added, what there is by now."""
        last = self._document["snapshots"][-1]["summary"] if self._document["snapshots"] else {}
        positions = [f for f in deletes if f.content is FileContent.POSITION_DELETES]
        equality = [f for f in deletes if f.content is FileContent.EQUALITY_DELETES]
        sizes = sum(file.content_bytes for file in (*data, *deletes))
        added = {
            "data-files": len(data),
            "delete-files": len(deletes),
            "records": sum(file.record_count for file in data),
            "files-size": sizes,
            "position-deletes": sum(file.record_count for file in positions),
            "equality-deletes": sum(file.record_count for file in equality),
        }
        totals = {f"total-{name}": str(int(last.get(f"total-{name}", 0)) + count) for name, count in added.items()}
        return {f"added-{name}": str(count) for name, count in added.items() if count} | totals

    def _manifest(self, content: ManifestContent, files: Sequence[DataFile], number: int) -> ManifestFile:
        path = self.folder / "metadata" / f"{uuid.uuid4()}-m0.avro"
        encoded = self._encoded(content, files, number, str(path))
        path.write_bytes(encoded.data)
        return encoded.manifest

    def _encoded(self, content: ManifestContent, files: Iterable[DataFile], number: int, path: str) -> EncodedManifest:
        entries = [ManifestEntry(EntryStatus.ADDED, _FIRST_SNAPSHOT + number, None, None, file) for file in files]
        return encode_manifest(
            self.metadata,
            spec_id=0,
            content=content,
            entries=entries,
            path=path,
            snapshot_id=_FIRST_SNAPSHOT + number,
            sequence_number=number,
        )

    def save(self, version: int = 1) -> str:
        """Write the metadata file of that version of Hadoop's, and the hint to it; returns its path."""
        path = self.folder / "metadata" / f"v{version}.metadata.json"
        path.write_text(json.dumps(self._document))
        path.with_name("version-hint.text").write_text(str(version))
        return str(path)
