"""Reads and makes the entries of statistics files in table metadata.

Source: specification, "Table Statistics"; the blobs are those of the Puffin specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.puffin import PuffinBlob, PuffinFile

__all__ = ["BlobMetadata", "StatisticsFile", "blob_metadata", "statistics_by_snapshot", "statistics_entry"]


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """A blob as table metadata describes it.

    ``snapshot_id`` is the snapshot that it was computed from, which may be older than its file's.
    """

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    properties: tuple[tuple[str, str], ...] = ()
    """Sorted by key, so that blobs can be compared."""

    def get(self, key: str) -> str | None:
        """A property, ``None`` where the writer gave none."""
        return dict(self.properties).get(key)


@dataclass(frozen=True, slots=True)
class StatisticsFile:
    """A Puffin file that holds statistics of one snapshot; sizes in bytes."""

    snapshot_id: int
    path: str
    size: int
    footer_size: int
    blobs: tuple[BlobMetadata, ...]


def statistics_by_snapshot(metadata: TableMetadata) -> dict[int, StatisticsFile]:
    """The statistics file of every snapshot that has one; entries that cannot be understood are left out."""
    files = (_statistics_file(raw) for raw in metadata.statistics)
    return {file.snapshot_id: file for file in files if file is not None}


def _statistics_file(raw: Mapping[str, Any]) -> StatisticsFile | None:
    try:
        return StatisticsFile(
            snapshot_id=int(raw["snapshot-id"]),
            path=str(raw["statistics-path"]),
            size=int(raw["file-size-in-bytes"]),
            footer_size=int(raw["file-footer-size-in-bytes"]),
            blobs=tuple(
                BlobMetadata(
                    str(blob["type"]),
                    tuple(int(field_id) for field_id in blob["fields"]),
                    int(blob["snapshot-id"]),
                    int(blob["sequence-number"]),
                    tuple(sorted((blob.get("properties") or {}).items())),
                )
                for blob in raw["blob-metadata"]
            ),
        )
    except (KeyError, TypeError, ValueError):
        return None


def blob_metadata(blob: PuffinBlob) -> BlobMetadata:
    """A blob of a Puffin footer as table metadata must describe it."""
    properties = tuple(sorted(blob.properties.items()))
    return BlobMetadata(blob.type, blob.fields, blob.snapshot_id, blob.sequence_number, properties)


def statistics_entry(snapshot_id: int, path: str, file: PuffinFile) -> dict[str, Any]:
    """The entry in ``statistics`` for a Puffin file of a snapshot."""
    return {
        "snapshot-id": snapshot_id,
        "statistics-path": path,
        "file-size-in-bytes": len(file.data),
        "file-footer-size-in-bytes": file.footer_size,
        "blob-metadata": [
            {
                "type": blob.type,
                "snapshot-id": blob.snapshot_id,
                "sequence-number": blob.sequence_number,
                "fields": list(blob.fields),
                "properties": dict(blob.properties),
            }
            for blob in file.blobs
        ],
    }
