"""A table partitioned by region, and delete files committed to it as another engine would."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, DELETE_POSITION_ID
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome
from support.careless_writer import ForeignCommit
from support.maintained_table import MaintainedTable
from support.outcomes import outcome_of
from support.readers import duckdb_rows

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])


def rows_of(first: int, count: int, region: str) -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "region": [region] * count}, schema=SCHEMA)


def create_by_region(made: MaintainedTable, files: int) -> None:
    """That many files of ten rows in each region: ids 0.., 100.., 200.. in us, 50.., 150.., 250.. in eu."""
    made.pyiceberg.create_namespace("ns")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    written = made.pyiceberg.create_table("ns.t", schema, partition_spec=spec, properties={"format-version": "2"})
    for n in range(files):
        written.append(rows_of(n * 100, 10, "us"))
        written.append(rows_of(n * 100 + 50, 10, "eu"))


def region_rows(made: MaintainedTable) -> Counter[tuple[int, str]]:
    """As DuckDB reads them: it knows nothing of us, and applies every kind of delete."""
    return Counter((row["id"], row["region"]) for row in duckdb_rows(made.loaded.metadata_location))


def compacted(made: MaintainedTable, **overrides: Any) -> OperationOutcome:
    """What a pass of nothing but compaction does."""
    return outcome_of(made.maintain(operations="compact", **overrides), Operation.COMPACT)


def commit_deletes(
    table: MaintainedTable, deletes: Sequence[tuple[pa.Table, dict[str, Any]]], *, spec_id: int = 0
) -> None:
    """Commit delete files as another engine would: a new manifest of content DELETES on the newest head."""
    commit = ForeignCommit(table)
    entries = []
    for content, more in deletes:
        path = f"{commit.metadata.data_location}/delete-{uuid.uuid4()}.parquet"
        with commit.storage.open_output(path) as sink:
            pq.write_table(content, sink)
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
