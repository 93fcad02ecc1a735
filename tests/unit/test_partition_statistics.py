"""Partitions counted from manifest entries; beside Java's in ``tests/interop/test_statistics.py``."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import BufferReader

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestEntry, ManifestFile
from icekeeper.operations.statistics.partition_statistics import (
    PartitionFileFormat,
    PartitionStatistics,
    encode_partition_file,
    partition_fields,
    partition_statistics,
)
from support.tables import new_document, snapshot

NAN = float("nan")
BY_ID = {"field-id": 1000, "source-id": 1, "name": "id_part", "transform": "identity"}
BY_RATIO = {"field-id": 1001, "source-id": 2, "name": "ratio", "transform": "identity"}
FIELDS = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "ratio", "required": False, "type": "double"},
]
METADATA = TableMetadata(
    new_document(
        "s3://b/t",
        3,
        schemas=[{"type": "struct", "schema-id": 0, "fields": FIELDS}],
        **{
            "partition-specs": [
                {"spec-id": 0, "fields": [BY_ID]},
                {"spec-id": 1, "fields": [{**BY_ID, "name": "renamed", "transform": "void"}, BY_RATIO]},
                {"spec-id": 2, "fields": []},
            ]
        },
        snapshots=[snapshot(i, format_version=3, timestamp_ms=i * 100) for i in (1, 2)],
    )
)


def entry(
    spec_id: int,
    partition: tuple[Any, ...],
    content: FileContent = FileContent.DATA,
    status: EntryStatus = EntryStatus.ADDED,
    snapshot_id: int = 1,
    **more: Any,
) -> tuple[ManifestFile, ManifestEntry]:
    manifest = ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=spec_id, added_snapshot_id=1)
    known: dict[str, Any] = {"file_path": "f", "file_format": "PARQUET", "record_count": 10, "file_size_in_bytes": 100}
    file = DataFile(content=content, partition=partition, **(known | more))
    return manifest, ManifestEntry(status, snapshot_id, 1, 1, file)


def counted(*entries: tuple[ManifestFile, ManifestEntry]) -> list[PartitionStatistics]:
    return partition_statistics(METADATA, entries)


def rows(*entries: tuple[ManifestFile, ManifestEntry]) -> list[int | None]:
    return [row.total_record_count for row in counted(*entries)]


DATA = entry(0, (1,))


def test_the_newest_spec_names_a_field_and_the_type_is_that_before_void() -> None:
    assert partition_fields(METADATA) == [
        {"id": 1000, "name": "renamed", "required": False, "type": "long"},
        {"id": 1001, "name": "ratio", "required": False, "type": "double"},
    ]


def test_nulls_come_first_and_nan_last_with_both_zeros_apart() -> None:
    found = counted(*(entry(1, (None, v)) for v in (NAN, 1.5, None, 0.0, -0.0, NAN)), entry(0, (-7,)))
    assert [str(row.partition) for row in found] == [
        "(None, None)",
        "(None, -0.0)",
        "(None, 0.0)",
        "(None, 1.5)",
        "(None, nan)",
        "(-7, None)",
    ]
    assert [row.data_file_count for row in found] == [1, 1, 1, 1, 2, 1]
    assert [row.spec_id for row in found] == [1, 1, 1, 1, 1, 0]


def test_deleted_entries_only_say_when_it_changed() -> None:
    gone = entry(0, (1,), status=EntryStatus.DELETED, snapshot_id=2)
    (row,) = counted(DATA, gone)
    assert (row.data_record_count, row.last_updated_at, row.last_updated_snapshot_id) == (10, 200, 2)
    (row,) = counted(gone)
    assert (row.data_file_count, row.total_record_count) == (0, 0)
    (row,) = counted(entry(0, (1,), snapshot_id=99))
    assert (row.last_updated_at, row.last_updated_snapshot_id) == (None, None), "that snapshot has expired"


def test_rows_after_deletes_are_stated_only_where_they_are_known() -> None:
    vector = entry(0, (1,), FileContent.POSITION_DELETES, file_format="PUFFIN", record_count=3)
    positions = entry(0, (1,), FileContent.POSITION_DELETES, record_count=3)
    by_key = entry(0, (1,), FileContent.EQUALITY_DELETES, record_count=3)
    everywhere = entry(2, (), FileContent.EQUALITY_DELETES, record_count=3)
    other = entry(0, (2,))
    assert rows(DATA, other) == [10, 10]
    assert rows(DATA, vector, other) == [7, 10]
    assert rows(DATA, positions, other) == [None, 10]
    assert rows(DATA, by_key, other) == [None, 10]
    assert rows(DATA, other, everywhere) == [None, None, None]
    (row,) = counted(DATA, vector, positions)
    assert (row.dv_count, row.position_delete_file_count, row.position_delete_record_count) == (1, 1, 6)


@pytest.mark.parametrize("file_format", PartitionFileFormat)
def test_a_file_without_rows(file_format: PartitionFileFormat) -> None:
    data = encode_partition_file(METADATA, [], file_format)
    if file_format is PartitionFileFormat.PARQUET:
        assert pq.read_table(BufferReader(data)).num_rows == 0
    else:
        assert data.startswith(b"Obj\x01")
