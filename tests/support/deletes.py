"""A table partitioned by region, and delete files of correct and incorrect writers."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, DELETE_POSITION_ID
from icekeeper.metadata.manifest_write import encode_manifest, encode_manifest_list
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.storage.storage import Storage
from support import ready_tables
from support.maintained_table import MaintainedTable
from support.readers import duckdb_rows

# Commits of another engine to a local table, entry by entry, which Iceberg's libraries would not write.


class ForeignCommit:
    """A snapshot of format v2 on the newest head; write manifests first, then call :meth:`land`."""

    def __init__(self, table: MaintainedTable) -> None:
        self._table = table
        self._loaded = table.loaded
        self.metadata = self._loaded.metadata
        self.storage = Storage(self._loaded.io_properties)
        head = self.metadata.current_snapshot
        assert head is not None
        self._parent = head
        self.manifests = table.reader.manifests(head)
        """The manifests of the head."""
        self.sequence_number = self.metadata.last_sequence_number + 1
        self.snapshot_id = uuid.uuid4().int >> 66

    def manifest(self, content: ManifestContent, spec_id: int, entries: Sequence[ManifestEntry]) -> ManifestFile:
        """Write a new manifest; its ADDED entries inherit omitted ids from this commit."""
        path = f"{self.metadata.metadata_directory}/foreign-{uuid.uuid4()}.avro"
        encoded = encode_manifest(
            self.metadata,
            spec_id=spec_id,
            content=content,
            entries=entries,
            path=path,
            snapshot_id=self.snapshot_id,
            sequence_number=self.sequence_number,
        )
        self.storage.write(path, encoded.data)
        return encoded.manifest

    def land(self, manifests: Sequence[ManifestFile], operation: str = "delete") -> None:
        """Commit the snapshot with these manifests."""
        path = f"{self.metadata.metadata_directory}/snap-{self.snapshot_id}.avro"
        encoded = encode_manifest_list(
            2,
            manifests,
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=self._parent.snapshot_id,
            sequence_number=self.sequence_number,
        )
        self.storage.write(path, encoded)
        snapshot = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": self._parent.snapshot_id,
            "sequence-number": self.sequence_number,
            "timestamp-ms": self.metadata.last_updated_ms + 1,
            "manifest-list": path,
            "summary": {"operation": operation},
            "schema-id": 0,
        }
        set_ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": self.snapshot_id}
        # A REST catalog checks only the requirements.
        same_head = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": self._parent.snapshot_id}
        updates: list[dict[str, Any]] = [{"action": "add-snapshot", "snapshot": snapshot}, set_ref]
        self._table.catalog.inner.commit(self._loaded, [same_head], updates)


def relist(table: MaintainedTable, change: Callable[[ManifestEntry], Iterable[ManifestEntry]]) -> None:
    """Commit new manifests in which ``change`` replaces every live entry by no, one or several entries."""
    commit = ForeignCommit(table)
    listed = []
    for manifest, entries in table.reader.entries(commit.manifests):
        changed = [new for entry in entries if entry.is_live for new in change(entry)]
        if changed:
            listed.append(commit.manifest(manifest.content, manifest.partition_spec_id, changed))
    commit.land(listed, "replace")


# A table partitioned by region, and delete files committed to it as another engine would.

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])


def rows_of(first: int, count: int, region: str) -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "region": [region] * count}, schema=SCHEMA)


def create_by_region(made: MaintainedTable, files: int) -> None:
    """Create that many files of ten rows in each region: ids 0.., 100.., 200.. in us, 50.., 150.., 250.. in eu."""
    made.pyiceberg.create_namespace("ns")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    written = made.pyiceberg.create_table("ns.t", schema, partition_spec=spec, properties={"format-version": "2"})

    def write() -> None:
        for n in range(files):
            written.append(rows_of(n * 100, 10, "us"))
            written.append(rows_of(n * 100 + 50, 10, "eu"))

    ready_tables.fill(made.pyiceberg, written, ("by region", files), write)


def region_rows(made: MaintainedTable) -> Counter[tuple[int, str]]:
    """The rows as DuckDB reads them; it is independent and applies every kind of delete."""
    return Counter((row["id"], row["region"]) for row in duckdb_rows(made.loaded.metadata_location))


def commit_deletes(
    table: MaintainedTable, deletes: Sequence[tuple[pa.Table, dict[str, Any]]], *, spec_id: int = 0
) -> None:
    """Commit delete files as another engine does: a new manifest of content DELETES on the newest head."""
    commit = ForeignCommit(table)
    entries = []
    for content, more in deletes:
        path = f"{commit.metadata.data_location}/delete-{uuid.uuid4()}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(content, sink)
        commit.storage.write(path, sink.getvalue().to_pybytes())
        file = DataFile(
            **{
                "file_path": path,
                "file_format": "PARQUET",
                "record_count": content.num_rows,
                "file_size_in_bytes": commit.storage.size(path) or 0,
                **more,
            }
        )
        entries.append(ManifestEntry(EntryStatus.ADDED, commit.snapshot_id, None, None, file))
    commit.land([*commit.manifests, commit.manifest(ManifestContent.DELETES, spec_id, entries)])


def _column(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={b"PARQUET:field_id": str(field_id).encode()})


def position_delete(path: str, position: int, region: str, *, bounds: bool = True) -> tuple[pa.Table, dict[str, Any]]:
    schema = pa.schema(
        [_column("file_path", pa.string(), DELETE_FILE_PATH_ID), _column("pos", pa.int64(), DELETE_POSITION_ID)]
    )
    limits = {DELETE_FILE_PATH_ID: path.encode()} if bounds else None
    return pa.table({"file_path": [path], "pos": [position]}, schema=schema), {
        "content": FileContent.POSITION_DELETES,
        "partition": (region,),
        "lower_bounds": limits,
        "upper_bounds": limits,
    }


def equality_delete(row_id: int, region: str) -> tuple[pa.Table, dict[str, Any]]:
    return pa.table({"id": [row_id]}, schema=pa.schema([_column("id", pa.int64(), 1)])), {
        "content": FileContent.EQUALITY_DELETES,
        "partition": (region,),
        "equality_ids": (1,),
    }
