"""``where`` beside ``expire_partitions``: it narrows what age lets go, and chooses alone only where that is meant."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import IcebergType, LongType, TimestampType

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.storage import store_now_ms
from support.maintained_table import MaintainedTable, new_table

EXPIRE = Operation.EXPIRE_PARTITIONS
TEXT = {"partition_retention_hours": "24", "partition_time_column": "part", "partition_time_pattern": "%Y-%m-%d"}
TODAY = datetime.datetime.now(datetime.UTC).date()


def day(age: int) -> str:
    return (TODAY - datetime.timedelta(days=age)).isoformat()


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    table = new_table(local_catalog, tmp_path)
    with table.table.update_spec() as update:
        update.add_identity("part")
    table.append(1, part=day(30))
    table.append(2, part=day(20))
    table.append(3, part=day(0))
    return table


def test_age_and_filter_both_must_let_a_partition_go(table: MaintainedTable) -> None:
    """What is young stays although it matches, what does not match stays although it is old."""
    outcome = table.run(EXPIRE, where=f"part = '{day(30)}' or part = '{day(0)}'", **TEXT)
    assert outcome.status is Status.SUCCEEDED
    assert table.readers_agree() == [2, 3]
    again = table.run(EXPIRE, where=f"part = '{day(30)}'", **TEXT)
    assert (again.status, again.reason) == (Status.SKIPPED, "no partitions to expire that lie whole within where")


def test_a_filter_set_for_the_operation_chooses_whatever_the_age(table: MaintainedTable) -> None:
    outcome = table.run(EXPIRE, where=f"part = '{day(0)}'")
    assert outcome.status is Status.SUCCEEDED
    assert table.readers_agree() == [1, 2]
    rows = table.run(EXPIRE, where=f"part = '{day(20)}' and id = 2")
    assert (rows.status, rows.reason) == (Status.SKIPPED, "no partitions to expire that lie whole within where")
    everything = table.run(EXPIRE, where="part != 'x'")
    assert everything.status is Status.REFUSED
    assert table.readers_agree() == [1, 2]


def test_null_bucket_and_truncated_partitions_are_chosen_and_the_last_one_too(
    local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until no partition is left; the table is readable and empty then."""

    def by_value(transform: Any, source: IcebergType) -> Callable[[pa.Array], pa.Array]:
        of_one = transform.transform(source)  # PyIceberg's of arrays needs pyiceberg-core
        return lambda array: pa.array([of_one(one) for one in array.to_pylist()])

    for transform in (BucketTransform, TruncateTransform):
        monkeypatch.setattr(transform, "pyarrow_transform", by_value)
    table = new_table(local_catalog, tmp_path)
    with table.table.update_spec() as update:
        update.add_field("part", TruncateTransform(2), "part_prefix")
        update.add_field("id", BucketTransform(4), "id_bucket")
    buckets = {BucketTransform(4).transform(LongType())(number): number for number in range(20)}
    one, other = buckets[1], buckets[2]
    for number, part in ((one, "us-1"), (one, "eu-1"), (other, "eu-1"), (other, None)):
        rows = {"id": [number], "part": [part]}
        table.table.append(pa.table(rows, schema=table.new_rows(number).schema))
    for where, left in (
        ("part is null", sorted([one, one, other])),
        ("truncate(2, part) = 'us'", sorted([one, other])),
        ("bucket(4, id) = 1 and part like 'eu%'", [other]),
        ("bucket(4, id) = 2", []),
    ):
        outcome = table.run(EXPIRE, where=where)
        assert (outcome.status, outcome.metrics["expire_partitions.partitions_expired"]) == (Status.SUCCEEDED, 1)
        assert table.readers_agree() == left


def test_the_scope_of_rewrites_drops_no_rows(table: MaintainedTable) -> None:
    """A filter that the table keeps for compaction, or that other operations have beside this one (rule 126)."""
    beside = table.maintain(operations="expire_partitions,compact", where=f"part = '{day(30)}'")
    with table.table.transaction() as change:
        change.set_properties({"icekeeper.where": f"part = '{day(30)}'"})
    kept = table.run(EXPIRE)
    for outcome in (beside.operations[0], kept):
        assert outcome.status is Status.SKIPPED
        assert (outcome.reason or "").startswith("no partition_retention_hours is set; where alone chooses")
    assert table.readers_agree() == [1, 2, 3]


def test_a_clock_that_runs_ahead_drops_no_partition_by_a_relative_filter(table: MaintainedTable) -> None:
    """Two days ahead, today's partition looks old; the store knows better."""
    table.late_ms = 2 * 86_400_000
    outcome = table.run(EXPIRE, where="part < 'x' and part = 'x'", store_clock=store_now_ms)
    assert outcome.status is Status.SKIPPED  # nothing in it is relative to now
    with table.table.update_schema() as update:
        update.add_column("at", TimestampType())
    outcome = table.run(EXPIRE, where="at < now() - interval '1 day' or part != 'x'", store_clock=store_now_ms)
    assert outcome.status is Status.REFUSED
    assert "no age can be trusted" in (outcome.reason or "")
    assert table.readers_agree() == [1, 2, 3]
