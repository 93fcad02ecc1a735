"""What planners take, made from plain numbers: data files, entries, manifests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import (
    DataFile,
    EntryStatus,
    FileContent,
    LiveEntry,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionValue,
)
from icekeeper.policy import Policy
from support.settings import policy as resolved_policy
from support.tables import new_document, snapshot

MB = 1024 * 1024
HEAD = 100
HEAD_SEQUENCE = 50
HEAD_MS = 1_700_000_000_000


def policy(**values: object) -> Policy:
    """A policy with these settings, all checked."""
    return resolved_policy(**values).policy


def table(format_version: int = 2, **more: Any) -> TableMetadata:
    """A table with one snapshot, at which plans are made."""
    raw = snapshot(HEAD, format_version=format_version, sequence_number=HEAD_SEQUENCE, timestamp_ms=HEAD_MS)
    document = new_document("s3://b/t", format_version, **more)
    document |= {"snapshots": [raw], "current-snapshot-id": HEAD}
    return TableMetadata(document)


def manifest(
    path: str = "s3://b/t/metadata/m.avro",
    *,
    spec_id: int = 0,
    content: ManifestContent = ManifestContent.DATA,
    live: int | None = 1,
    dead: int | None = 0,
    length: int = 5000,
) -> ManifestFile:
    """A manifest as a list describes it: ``live`` ADDED files, ``dead`` DELETED ones."""
    return ManifestFile(
        manifest_path=path,
        manifest_length=length,
        partition_spec_id=spec_id,
        content=content,
        sequence_number=1,
        added_snapshot_id=HEAD,
        added_files_count=live,
        existing_files_count=None if live is None else 0,
        deleted_files_count=dead,
    )


def data_file(
    path: str,
    size: int,
    partition: Sequence[PartitionValue] = (),
    *,
    records: int = 10,
    file_format: str = "PARQUET",
    **more: Any,
) -> DataFile:
    return DataFile(
        content=FileContent.DATA,
        file_path=path,
        file_format=file_format,
        partition=tuple(partition),
        record_count=records,
        file_size_in_bytes=size,
        **more,
    )


def live_file(
    file: DataFile, *, spec_id: int = 0, age: int = 1, file_age: int | None = None, snapshot_id: int = HEAD
) -> LiveEntry:
    """The file in a manifest of its spec, its rows added by the snapshot with sequence number ``age``.

    ``file_age`` is the sequence number of the rewrite that wrote the file; ``None``: it was written with its rows.
    """
    entry = ManifestEntry(EntryStatus.EXISTING, snapshot_id, age, age if file_age is None else file_age, file)
    return LiveEntry(manifest(f"s3://b/t/metadata/m{spec_id}.avro", spec_id=spec_id), entry)
