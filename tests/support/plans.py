"""Input of planners, made from plain numbers, and partitions by time."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, DeleteIndexBuilder
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import (
    DataFile,
    EntryStatus,
    FileContent,
    LiveEntry,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Nothing,
    PartitionValue,
)
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.candidate import Candidate, Condition, Extents, Home, Origin
from icekeeper.operations.compaction.plan.candidates import TableState
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan
from icekeeper.operations.expiry.retention import NOTHING_TO_EXPIRE, ExpiryPlan, expiry_at
from icekeeper.policy import Policy
from icekeeper.policy.partition_time import PartitionTimes, partition_times
from support.settings import policy as resolved_policy
from support.tables import new_document, snapshot

# Input of planners, made from plain numbers: data files, entries, manifests.

MB = 1024 * 1024
HEAD = 100
HEAD_SEQUENCE = 50
HEAD_MS = 1_700_000_000_000


def policy(**values: object) -> Policy:
    """A policy with these settings, after validation."""
    return resolved_policy(**values).policy


def table(format_version: int = 2, **more: Any) -> TableMetadata:
    """A table with one snapshot, the planning snapshot."""
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
    """A manifest list entry with ``live`` ADDED and ``dead`` DELETED files."""
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


def path_bounds(path: str) -> dict[str, Any]:
    """Equal lower and upper bounds of paths."""
    return {"lower_bounds": {DELETE_FILE_PATH_ID: path.encode()}, "upper_bounds": {DELETE_FILE_PATH_ID: path.encode()}}


def groups_of(planned: CompactionPlan | Nothing) -> tuple[FileGroup, ...]:
    return () if isinstance(planned, Nothing) else planned.groups


def table_state(
    files: Iterable[LiveEntry],
    deletes: Iterable[ManifestEntry] = (),
    metadata: TableMetadata | None = None,
    *,
    is_unpartitioned: bool = True,
) -> TableState:
    """The input of compaction's plan: :func:`table` with these live files and delete files."""
    metadata, builder = metadata or table(), DeleteIndexBuilder()
    for entry in deletes:
        builder.add(0, entry, is_unpartitioned=is_unpartitioned)
    return TableState(metadata, metadata.snapshots[HEAD], [manifest()], files, builder.build())


def position_delete(path: str, of: str, partition: Sequence[PartitionValue] = (), *, rows: int = 10) -> ManifestEntry:
    """A position delete file with ``rows`` rows that applies to one data file."""
    content = FileContent.POSITION_DELETES
    file = data_file(path, 1000, partition, records=rows, content=content, referenced_data_file=of)
    return ManifestEntry(EntryStatus.ADDED, HEAD, 60, 60, file)


def data_file(
    path: str,
    size: int,
    partition: Sequence[PartitionValue] = (),
    *,
    records: int = 10,
    content: FileContent = FileContent.DATA,
    file_format: str = "PARQUET",
    **more: Any,
) -> DataFile:
    """A data file or delete file."""
    return DataFile(
        content=content,
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
    """The file in a manifest of its spec; the snapshot with sequence number ``age`` added its rows.

    ``file_age`` is the sequence number of the rewrite that wrote the file; with ``None``, no rewrite wrote it.
    """
    entry = ManifestEntry(EntryStatus.EXISTING, snapshot_id, age, age if file_age is None else file_age, file)
    return LiveEntry(manifest(f"s3://b/t/metadata/m{spec_id}.avro", spec_id=spec_id), entry)


_NOTHING_FOUND = Condition()


def candidate(
    file: DataFile, *, file_age: int = 1, condition: Condition = _NOTHING_FOUND, extents: Extents = ()
) -> Candidate:
    """The file as a candidate that keeps its partition, with rows of sequence number 1."""
    return Candidate(
        file_path=file.file_path,
        file_size_in_bytes=file.file_size_in_bytes,
        record_count=file.record_count,
        first_row_id=file.first_row_id,
        home=Home(0, file.partition, (0, file.partition)),
        origin=Origin("s3://b/t/metadata/m0.avro", HEAD, 1, file_age, file_age, HEAD_MS),
        condition=condition,
        extents=extents,
    )


# Partitioned tables by their columns and transforms, and the times of their partitions.

UTC = datetime.UTC
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "ts", "required": False, "type": "timestamptz"},
        {"id": 3, "name": "day", "required": False, "type": "date"},
        {"id": 4, "name": "dt", "required": False, "type": "string"},
        {"id": 5, "name": "year", "required": False, "type": "int"},
        {"id": 6, "name": "month", "required": False, "type": "int"},
        {"id": 7, "name": "at_ns", "required": False, "type": "timestamp_ns"},
        {"id": 8, "name": "price", "required": False, "type": "decimal(9, 2)"},
        {
            "id": 9,
            "name": "meta",
            "required": False,
            "type": {"type": "struct", "fields": [{"id": 10, "name": "at", "required": False, "type": "timestamp"}]},
        },
    ],
}
SOURCES = {"id": 1, "ts": 2, "day": 3, "dt": 4, "year": 5, "month": 6, "at_ns": 7, "price": 8, "meta.at": 10}


def spec(spec_id: int, *fields: tuple[str, str]) -> dict[str, Any]:
    """A partition spec of fields given as (column, transform)."""
    return {
        "spec-id": spec_id,
        "fields": [
            {
                "field-id": 1000 + 10 * spec_id + i,
                "source-id": SOURCES[column],
                "name": column if transform == "identity" else f"{column}_{transform}",
                "transform": transform,
            }
            for i, (column, transform) in enumerate(fields)
        ],
    }


def partitioned(*specs: dict[str, Any]) -> TableMetadata:
    """A table with these partition specs; the last is current."""
    return table(3, schemas=[SCHEMA], **{"partition-specs": list(specs), "default-spec-id": specs[-1]["spec-id"]})


def partitioned_by(columns: Mapping[int, str], *fields: tuple[int, str]) -> TableMetadata:
    """Columns ``cN`` by field id and type, with partition fields ``p0``, … of these sources and transforms."""
    named = [{"id": i, "name": f"c{i}", "required": False, "type": kind} for i, kind in columns.items()]
    of = [
        {"source-id": source, "field-id": 1000 + n, "name": f"p{n}", "transform": transform}
        for n, (source, transform) in enumerate(fields)
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": named}
    specs = [{"spec-id": 0, "fields": of}]
    return TableMetadata(new_document("s3://b/t", 2, schemas=[schema], **{"partition-specs": specs}))


def times(metadata: TableMetadata, **settings: str) -> PartitionTimes:
    found = partition_times(metadata, policy(**settings))
    assert isinstance(found, PartitionTimes)
    return found


def ms(*moment: int) -> int:
    return int(datetime.datetime(*moment, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]


def plan_expiry(
    metadata: TableMetadata, policy: Policy, *, now_ms: int, pinned: Iterable[int] = ()
) -> ExpiryPlan | Nothing:
    """The expiry plan at ``now_ms``, or the reason for an empty plan."""
    return expiry_at(metadata, policy, now_ms=now_ms, pinned=pinned) or Nothing(NOTHING_TO_EXPIRE)
