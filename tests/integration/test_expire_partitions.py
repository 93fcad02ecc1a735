"""Partitions past their retention leave the table in one metadata-only commit."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.model import EntryStatus
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import MaintainedTable, new_table
from support.moments import Moment, at

EXPIRE = Operation.EXPIRE_PARTITIONS
TEXT = {"partition_retention_hours": "24", "partition_time_column": "part", "partition_time_pattern": "%Y-%m-%d"}
TODAY = datetime.datetime.now(datetime.UTC).date()


def day(age: int) -> str:
    return (TODAY - datetime.timedelta(days=age)).isoformat()


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A file of each of the last days, two of the oldest, and partitions that are no days."""
    table = new_table(local_catalog, tmp_path)
    with table.table.update_spec() as update:
        update.add_identity("part")
    table.append(1, 2, part=day(30))
    table.append(3, part=day(30))
    table.append(4, part=day(20))
    table.append(5, part=day(0))
    table.append(6, part="unknown")
    return table


def test_a_table_without_the_setting_is_left_alone(table: MaintainedTable) -> None:
    head = table.metadata.current_snapshot
    outcome = table.run(EXPIRE, partition_time_column="part", partition_time_pattern="%Y-%m-%d")
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "no partition_retention_hours is set")
    everything = table.maintain(partition_retention_hours="24", partition_time_pattern="part=%Y-%m-%d")
    assert EXPIRE not in [part.operation for part in everything.operations]
    outcome = table.run(EXPIRE, partition_retention_hours="24")
    assert outcome.status is Status.SKIPPED
    assert "no partition field of this table tells a time" in (outcome.reason or "")
    assert table.metadata.head("main") != head  # the pass over everything else did its work
    assert table.ids() == [1, 2, 3, 4, 5, 6]


def test_an_old_partition_is_found_behind_a_young_bound_where_text_does_not_sort_by_time(
    local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    """As %d-%m-%Y the least text of a manifest may be of today, and that of an old partition the greatest."""
    table = new_table(local_catalog, tmp_path)
    with table.table.update_spec() as update:
        update.add_identity("part")
    young, old = f"{TODAY + datetime.timedelta(days=40):01-%m-%Y}", "28-02-2020"
    table.table.append(pa.concat_tables([table.new_rows(1, part=young), table.new_rows(2, part=old)]))
    settings = {**TEXT, "partition_time_pattern": "%d-%m-%Y"}
    head = table.metadata.current_snapshot
    assert head is not None
    bounds = [(s.lower_bound, s.upper_bound) for m in table.reader.manifests(head) for s in m.partitions or ()]
    assert bounds == [(young.encode(), old.encode())]
    assert table.run(EXPIRE, **settings).metrics["expire_partitions.partitions_expired"] == 1
    assert table.ids() == [1]


def test_old_partitions_are_dropped_and_nothing_else(table: MaintainedTable) -> None:
    before = {file.file_path: file for file in table.data_files()}
    files = table.files()
    planned = table.run(EXPIRE, dry_run=True, **TEXT)
    assert table.files() == files
    outcome = table.run(EXPIRE, **TEXT)
    assert outcome.status is Status.SUCCEEDED
    assert planned.files_planned == outcome.files_planned
    metrics = {key: value for key, value in outcome.metrics.items() if key != "expire_partitions.duration_ms"}
    assert metrics.items() <= planned.metrics.items()
    gone = [file for file in before.values() if file.partition[0] in (day(30), day(20))]
    assert set(outcome.files_planned) == {file.file_path for file in gone}
    text = "2 partition(s): {} 3 data file(s) with 4 row(s); 1 partition(s) do not match partition_time_pattern"
    assert planned.summary == "would expire " + text.format("drop")
    assert outcome.summary == "expired " + text.format("dropped")
    assert metrics == {
        "expire_partitions.partitions_expired": 2,
        "expire_partitions.partitions_unparsed": 1,
        "expire_partitions.files_removed": 3,
        "expire_partitions.delete_files_removed": 0,
        "expire_partitions.rows_removed": 4,
        "expire_partitions.bytes_removed": sum(file.file_size_in_bytes for file in gone),
    }
    assert files < table.files()
    assert table.readers_agree() == [5, 6]
    assert table.verify().ok
    head = table.metadata.current_snapshot
    assert head is not None
    assert head.parent_id is not None
    assert table.ids(head.parent_id) == [1, 2, 3, 4, 5, 6]
    expected = {
        "operation": "delete",
        "deleted-data-files": "3",
        "deleted-records": "4",
        "removed-files-size": str(sum(file.file_size_in_bytes for file in gone)),
        "changed-partition-count": "2",
        "total-data-files": "2",
        "total-records": "2",
        "total-files-size": str(sum(f.file_size_in_bytes for f in before.values() if f not in gone)),
        "total-delete-files": "0",
    }
    assert {key: head.summary[key] for key in expected} == expected
    reader = table.reader
    entries = [e for _, found in reader.entries(reader.manifests(head)) for e in found if not e.is_live]
    assert {(e.file.file_path, e.status, e.snapshot_id) for e in entries} == {
        (file.file_path, EntryStatus.DELETED, head.snapshot_id) for file in gone
    }
    again = table.run(EXPIRE, **TEXT)
    assert (again.status, again.reason) == (Status.SKIPPED, "no partitions to expire")


def test_the_bytes_go_with_the_snapshots(table: MaintainedTable) -> None:
    gone = set(table.run(EXPIRE, **TEXT).files_planned)
    table.run(Operation.EXPIRE_SNAPSHOTS)
    assert not [path for path in gone if Path(path.removeprefix("file://")).exists()]
    assert table.readers_agree() == [5, 6]
    assert table.verify().ok


def test_a_limit_takes_the_oldest_first(table: MaintainedTable) -> None:
    assert table.run(EXPIRE, **TEXT, partition_expire_limit="1").metrics["expire_partitions.partitions_expired"] == 1
    assert table.ids() == [4, 5, 6]
    table.run(EXPIRE, **TEXT, partition_expire_limit="1")
    assert table.ids() == [5, 6]


def test_a_table_would_never_be_emptied(table: MaintainedTable) -> None:
    """Where today's partition is as old as the others, the clock is wrong, or the table is no longer written to."""
    table.table.delete(f"part == '{day(0)}'")
    location = table.loaded.metadata_location
    for settings in ({}, {"partition_expire_limit": "1"}):
        outcome = table.run(EXPIRE, **TEXT, **settings)
        assert outcome.status is Status.REFUSED
        assert f"partition_retention_hours 24, the newest since {day(19)} 00:00 UTC; nothing was" in outcome.summary
    assert table.loaded.metadata_location == location


def test_deleting_no_file_it_may_run_where_files_must_not_be_deleted(table: MaintainedTable) -> None:
    with table.table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    assert table.run(EXPIRE, **TEXT).status is Status.SUCCEEDED
    assert table.ids() == [5, 6]


@pytest.mark.parametrize("moment", [Moment.OPERATION_STARTED, Moment.BEFORE_COMMIT])
def test_what_others_commit_meanwhile_is_planned_for(table: MaintainedTable, moment: Moment) -> None:
    """Late rows of an expired partition go, new partitions stay, and a file that somebody else dropped is no matter."""

    def others() -> None:
        table.append(10, part=day(30))
        table.append(11, part=day(1))
        table.table.delete(f"part == '{day(20)}'")

    with at(moment, others):
        outcome = table.run(EXPIRE, **TEXT)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["expire_partitions.rows_removed"] == 4
    assert table.readers_agree() == [5, 6, 11]
    assert table.verify().ok
    assert not [path for path in table.unreferenced() if "/data/" not in path]


def test_an_unreadable_manifest_is_a_reason_to_refuse(table: MaintainedTable) -> None:
    head = table.metadata.current_snapshot
    assert head is not None
    manifest = table.reader.manifests(head)[0].manifest_path
    Path(manifest.removeprefix("file://")).write_bytes(b"Obj\x01")
    location = table.loaded.metadata_location
    outcome = table.run(EXPIRE, **TEXT)
    assert outcome.status is Status.REFUSED
    assert manifest in (outcome.reason or "")
    assert table.loaded.metadata_location == location


def test_another_branch_may_be_meant(table: MaintainedTable) -> None:
    head = table.metadata.current_snapshot
    assert head is not None
    table.table.manage_snapshots().create_branch(head.snapshot_id, "side").commit()
    assert table.run(EXPIRE, **TEXT, branch="side").status is Status.SUCCEEDED
    assert table.ids() == [1, 2, 3, 4, 5, 6]
    assert table.ids(table.metadata.refs["side"].snapshot_id) == [5, 6]


def test_what_the_table_is_not_partitioned_by_fails_and_changes_nothing(table: MaintainedTable) -> None:
    outcome = table.run(EXPIRE, **TEXT | {"partition_time_column": "id"})
    assert outcome.status is Status.FAILED
    assert "the table is not partitioned by 'id'; its partition fields are: part" in outcome.summary
    assert table.ids() == [1, 2, 3, 4, 5, 6]
