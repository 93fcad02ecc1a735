"""``where`` beside ``expire_partitions``: it narrows what age lets go, and chooses alone only where that is meant."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import TimestampType

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.store_clock import store_now_ms
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
