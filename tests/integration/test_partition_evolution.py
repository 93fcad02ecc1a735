"""After partition evolution: small files of old specs merge into partitions of the current one, and never multiply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform, MonthTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from support.deletes import commit_deletes, equality_delete
from support.maintained_table import MaintainedTable, maintained_table, outcome_of
from support.readers import duckdb_rows

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), NestedField(3, "day", DateType())
)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as table:
        table.pyiceberg.create_namespace("ns")
        yield table


def append(table: MaintainedTable, first: int, region: str | list[str], day: int = 0) -> None:
    """Ten rows in one file, or one per partition of the current spec."""
    regions = [region] * 10 if isinstance(region, str) else region
    ids = range(first, first + len(regions))
    days = pa.array([day] * len(regions), pa.int32()).cast(pa.date32())
    table.table.append(pa.table({"id": pa.array(ids, pa.int64()), "region": regions, "day": days}))


def rows(table: MaintainedTable) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in duckdb_rows(table.loaded.metadata_location))


def files(table: MaintainedTable) -> Counter[tuple[int, tuple[Any, ...]]]:
    """Live data files by spec and partition, as PyIceberg sees them."""
    tasks = StaticTable.from_metadata(table.loaded.metadata_location).scan().plan_files()
    return Counter((t.file.spec_id, tuple(t.file.partition[i] for i in range(len(t.file.partition)))) for t in tasks)


def compacted(table: MaintainedTable, **overrides: Any) -> OperationOutcome:
    return outcome_of(table.maintain(operations="compact", **overrides), Operation.COMPACT)


def test_small_files_of_an_old_spec_merge_with_those_of_the_new_one(made: MaintainedTable) -> None:
    """Unpartitioned files of one region each move to that region's partition; a single mixed one stays."""
    made.pyiceberg.create_table("ns.t", SCHEMA, properties={"format-version": "2"})
    for number in range(3):
        append(made, number * 100, "us")
        append(made, number * 100 + 50, "eu")
    append(made, 900, ["us", "eu"])
    with made.table.update_spec() as update:
        update.add_identity("region")
    append(made, 1000, "us")
    before = rows(made)
    outcome = compacted(made)
    assert outcome.summary == "compacted 7 files into 2 (across 2 bins)"
    assert files(made) == {(1, ("us",)): 1, (1, ("eu",)): 1, (0, ()): 1}
    assert rows(made) == before
    assert made.runtime.verify(made.loaded.name).ok
    assert compacted(made).status is Status.SKIPPED


def test_days_become_months(made: MaintainedTable) -> None:
    """Ninety daily partitions of one small file each become three monthly ones (iceberg 15465: more files)."""
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day"))
    made.pyiceberg.create_table("ns.t", SCHEMA, partition_spec=spec, properties={"format-version": "2"})
    days = pa.array(range(90), pa.int32()).cast(pa.date32())
    made.table.append(pa.table({"id": pa.array(range(90), pa.int64()), "region": ["us"] * 90, "day": days}))
    with made.table.update_spec() as update:
        update.remove_field("day")
        update.add_field("day", MonthTransform(), "month")
    before = rows(made)
    assert compacted(made).summary == "compacted 90 files into 3 (across 3 bins)"
    assert sorted(files(made)) == [(1, (0,)), (1, (1,)), (1, (2,))]
    assert rows(made) == before
    assert compacted(made).status is Status.SKIPPED


def test_partitions_that_are_given_up_merge_into_one(made: MaintainedTable) -> None:
    """To an unpartitioned spec everything moves, and columns that only the partition tells are not lost."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    made.pyiceberg.create_table("ns.t", SCHEMA, partition_spec=spec, properties={"format-version": "2"})
    for number, region in enumerate(["us", "eu", "cn"]):
        append(made, number * 100, region)
    with made.table.update_spec() as update:
        update.remove_field("region")
    before = rows(made)
    assert compacted(made).summary == "compacted 3 files into 1 (across 1 bins)"
    assert rows(made) == before


@pytest.mark.parametrize("reason", ["asked to keep", "live equality deletes"])
def test_files_stay_in_their_spec(made: MaintainedTable, reason: str) -> None:
    """On request, and while a writer may still emit equality deletes under the old spec (rule 2)."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    made.pyiceberg.create_table("ns.t", SCHEMA, partition_spec=spec, properties={"format-version": "2"})
    for number in range(2):
        append(made, number * 100, "us")
        append(made, number * 100 + 50, "eu")
    if reason == "live equality deletes":
        commit_deletes(made, [equality_delete(3, "us")])
    with made.table.update_spec() as update:
        update.remove_field("region")
    before = rows(made)
    overrides = {"output_spec": "keep"} if reason == "asked to keep" else {}
    assert compacted(made, **overrides).summary == "compacted 4 files into 2 (across 2 bins)"
    assert files(made) == {(0, ("us",)): 1, (0, ("eu",)): 1}
    assert rows(made) == before


def test_mixed_files_are_dealt_out_where_that_makes_fewer_files(made: MaintainedTable) -> None:
    """Six files of three regions each, a null one among them: one file per region; rows, values and layout agree."""
    made.pyiceberg.create_table("ns.t", SCHEMA, properties={"format-version": "2"})
    for number in range(6):
        regions = ["us", "eu", None, "us", "eu", "us"] if number % 2 else ["eu", "us", None]
        days = pa.array([number] * len(regions), pa.int32()).cast(pa.date32())
        ids = pa.array(range(number * 10, number * 10 + len(regions)), pa.int64())
        made.table.append(pa.table({"id": ids, "region": pa.array(regions, pa.string()), "day": days}))
    with made.table.update_spec() as update:
        update.add_identity("region")
    before = rows(made)
    outcome = compacted(made, proof="full")
    assert outcome.summary == "compacted 6 files into 3 (across 1 bins)"
    assert files(made) == {(1, ("us",)): 1, (1, ("eu",)): 1, (1, (None,)): 1}
    assert rows(made) == before
    tasks = StaticTable.from_metadata(made.loaded.metadata_location).scan("region = 'us'").plan_files()
    assert ["/data/region=us/" in task.file.file_path for task in tasks] == [True]
    assert made.runtime.verify(made.loaded.name).ok
    assert compacted(made).status is Status.SKIPPED


def test_rows_are_not_dealt_out_into_more_files(made: MaintainedTable) -> None:
    """Three files, three regions each: as many partitions as files, so they merge where they are."""
    made.pyiceberg.create_table("ns.t", SCHEMA, properties={"format-version": "2"})
    for number in range(3):
        append(made, number * 10, ["us", "eu", "cn"])
    with made.table.update_spec() as update:
        update.add_identity("region")
    before = rows(made)
    assert compacted(made).summary == "compacted 3 files into 1 (across 1 bins)"
    assert files(made) == {(0, ()): 1}
    assert rows(made) == before


def test_a_newer_equality_delete_drops_a_group_whose_rows_are_dealt_out(made: MaintainedTable) -> None:
    """It lands while rows are on their way and is bound to a partition of the spec that they come to."""
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day"))
    made.pyiceberg.create_table("ns.t", SCHEMA, partition_spec=spec, properties={"format-version": "2"})
    for number in range(4):
        append(made, number * 10, ["us", "eu"])
    with made.table.update_spec() as update:
        update.remove_field("day")
        update.add_identity("region")
    made.engine.during = lambda: commit_deletes(made, [equality_delete(1, "us")], spec_id=1)
    outcome = compacted(made)
    assert outcome.status is Status.FAILED
    assert "a partition that the rows left or came to" in (outcome.reason or "")
    head = made.loaded.metadata.current_snapshot
    assert head is not None
    assert head.operation == "delete"
    assert {m.partition_spec_id for m in made.reader.manifests(head)} == {0, 1}
