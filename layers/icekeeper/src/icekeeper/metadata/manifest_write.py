"""Encodes manifests and manifest lists of format versions 1 to 3 as Avro files.

A manifest's counts, least sequence number and partition summaries for the manifest list are computed here from the
entries themselves, never copied (rule 35).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.avro_block_writer import avro_blocks, container_of
from icekeeper.metadata.avro_files import write_avro
from icekeeper.metadata.avro_schemas import (
    manifest_header,
    manifest_list_schema,
    partition_type,
)
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_entries import EntryEncoder, entry_encoder
from icekeeper.metadata.partition_summaries import summarise_partitions
from icekeeper.model import (
    EntryStatus,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)

__all__ = [
    "EncodedManifest",
    "NewSnapshot",
    "empty_manifest",
    "encode_manifest",
    "encode_manifest_list",
    "partition_types",
]


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """The snapshot that is being committed."""

    snapshot_id: int
    sequence_number: int


@dataclass(frozen=True, slots=True)
class EncodedManifest:
    """A manifest ready to be stored, and its entry for the manifest list."""

    data: bytes
    manifest: ManifestFile


def encode_manifest(
    metadata: TableMetadata,
    *,
    spec_id: int,
    content: ManifestContent,
    entries: Sequence[ManifestEntry],
    path: str,
    snapshot: NewSnapshot,
) -> EncodedManifest:
    """Encode one manifest of one spec and one content type, which ``snapshot`` will store at ``path``.

    ADDED entries may leave their sequence numbers null, to inherit the snapshot's; EXISTING and DELETED entries carry
    theirs explicitly (rule 3).

    Raises:
        ValueError: an EXISTING or DELETED entry lacks a sequence number or snapshot id.
        TableUnsupported: the format version or a partition type cannot be written.
    """
    types = partition_types(metadata, spec_id)
    encoder = entry_encoder(metadata, spec_id)
    data = container_of(empty_manifest(encoder, metadata, spec_id, content), avro_blocks(map(encoder.encoded, entries)))
    live = [entry for entry in entries if entry.is_live]
    sequence_numbers = [snapshot.sequence_number if e.sequence_number is None else e.sequence_number for e in live]

    def count(status: EntryStatus) -> tuple[int, int]:
        rows = [entry.file.record_count for entry in entries if entry.status is status]
        return len(rows), sum(rows)

    added, existing, deleted = count(EntryStatus.ADDED), count(EntryStatus.EXISTING), count(EntryStatus.DELETED)
    manifest = ManifestFile(
        manifest_path=path,
        manifest_length=len(data),
        partition_spec_id=spec_id,
        content=content,
        sequence_number=snapshot.sequence_number,
        min_sequence_number=min(sequence_numbers, default=snapshot.sequence_number),
        added_snapshot_id=snapshot.snapshot_id,
        added_files_count=added[0],
        existing_files_count=existing[0],
        deleted_files_count=deleted[0],
        added_rows_count=added[1],
        existing_rows_count=existing[1],
        deleted_rows_count=deleted[1],
        partitions=summarise_partitions(types, [entry.file.partition for entry in entries]),
    )
    return EncodedManifest(data, manifest)


def empty_manifest(encoder: EntryEncoder, metadata: TableMetadata, spec_id: int, content: ManifestContent) -> bytes:
    """A manifest of that spec and content type before its first block: its schemas, above all."""
    schema, fields = json.dumps(metadata.current_schema), json.dumps(metadata.specs[spec_id]["fields"])
    header = manifest_header(metadata.format_version, schema, fields, spec_id, content)
    return write_avro(encoder.schema, (), header)


def partition_types(metadata: TableMetadata, spec_id: int) -> list[str]:
    """The Iceberg types of the partition values of a spec, field by field.

    Raises:
        TableUnsupported: the spec, a transform or a source column is unknown.
    """
    spec = metadata.specs.get(spec_id)
    if spec is None:
        raise TableUnsupported(f"a manifest uses partition spec {spec_id}, which the table does not have")
    return [partition_type(metadata.schemas_current_first, field) for field in spec["fields"]]


def encode_manifest_list(
    format_version: int,
    manifests: Iterable[ManifestFile],
    *,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    first_row_id: int | None = None,
) -> bytes:
    """Encode the manifest list of one snapshot; ``first_row_id`` is the snapshot's, from v3 on.

    Raises:
        ValueError: a v3 list is given no first row id.
        TableUnsupported: the format version cannot be written.
    """
    if format_version >= 3 and first_row_id is None:
        raise ValueError("a v3 manifest list needs the snapshot's first row id")
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
        "format-version": str(format_version),
    }
    if format_version >= 2:
        header["sequence-number"] = str(sequence_number)
    if format_version >= 3:
        header["first-row-id"] = str(first_row_id)
    records = (_list_record(manifest, format_version) for manifest in manifests)
    return write_avro(manifest_list_schema(format_version), records, header)


def _list_record(manifest: ManifestFile, version: int) -> dict[str, Any]:
    def counted(value: int | None) -> int | None:
        # v2 requires counts.  Where a v1 writer left them out, the caller must have filled them in (commit.snapshot).
        if value is None and version >= 2:
            raise ValueError(f"manifest {manifest.manifest_path} has no file counts and must be rewritten first")
        return value

    return {
        "manifest_path": manifest.manifest_path,
        "manifest_length": manifest.manifest_length,
        "partition_spec_id": manifest.partition_spec_id,
        "content": int(manifest.content),
        "sequence_number": manifest.sequence_number,
        "min_sequence_number": manifest.min_sequence_number,
        "added_snapshot_id": manifest.added_snapshot_id,
        "added_files_count": counted(manifest.added_files_count),
        "existing_files_count": counted(manifest.existing_files_count),
        "deleted_files_count": counted(manifest.deleted_files_count),
        "added_rows_count": counted(manifest.added_rows_count),
        "existing_rows_count": counted(manifest.existing_rows_count),
        "deleted_rows_count": counted(manifest.deleted_rows_count),
        "partitions": None
        if manifest.partitions is None
        else [
            {
                "contains_null": s.contains_null,
                "contains_nan": s.contains_nan,
                "lower_bound": s.lower_bound,
                "upper_bound": s.upper_bound,
            }
            for s in manifest.partitions
        ],
        "key_metadata": manifest.key_metadata,
        "first_row_id": manifest.first_row_id,
    }
