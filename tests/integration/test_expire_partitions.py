"""Partitions expire by age or by filter, in one metadata-only commit."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, TimestampType

from icekeeper.model import EntryStatus, FileContent, ManifestEntry
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.storage.storage import store_now_ms
from support.deletes import (
    commit_deletes,
    create_by_region,
    equality_delete,
    position_delete,
    region_rows,
    relist,
    rows_of,
)
from support.maintained_table import MaintainedTable, maintained_table, new_table, outcome_of, without_leases
from support.moments import Moment, at
from support.v3 import append, data_files, delete_positions, lineage, live, upgrade, vectors

# A single metadata-only commit removes partitions past their retention.

EXPIRE = Operation.EXPIRE_PARTITIONS
TEXT = {"partition_retention_hours": "24", "partition_time": "part=%Y-%m-%d"}
TODAY = datetime.datetime.now(datetime.UTC).date()


def day(age: int) -> str:
    return (TODAY - datetime.timedelta(days=age)).isoformat()


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A table with a file of each of the last days, two files of the oldest, and partitions that are not days."""
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
    outcome = table.run(EXPIRE, partition_time="part=%Y-%m-%d")
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "no partition_retention_hours is set")
    everything = table.maintain(partition_retention_hours="24", partition_time="part=%Y-%m-%d")
    assert EXPIRE not in [part.operation for part in everything.operations]
    outcome = table.run(EXPIRE, partition_retention_hours="24")
    assert outcome.status is Status.SKIPPED
    assert "no partition field of this table has a time" in (outcome.reason or "")
    assert table.metadata.head("main") != head  # the other operations of the pass succeeded
    assert table.ids() == [1, 2, 3, 4, 5, 6]


def test_an_old_partition_is_found_if_text_does_not_sort_by_time(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """With %d-%m-%Y the least text of a manifest may be today, and the greatest may be an old partition."""
    table = new_table(local_catalog, tmp_path)
    with table.table.update_spec() as update:
        update.add_identity("part")
    young, old = f"{TODAY + datetime.timedelta(days=40):01-%m-%Y}", "28-02-2020"
    table.table.append(pa.concat_tables([table.new_rows(1, part=young), table.new_rows(2, part=old)]))
    settings = {**TEXT, "partition_time": "part=%d-%m-%Y"}
    head = table.metadata.current_snapshot
    assert head is not None
    bounds = [(s.lower_bound, s.upper_bound) for m in table.reader.manifests(head) for s in m.partitions or ()]
    assert bounds == [(young.encode(), old.encode())]
    assert table.run(EXPIRE, **settings).metrics["expire_partitions.partitions_expired"] == 1
    assert table.ids() == [1]


def test_only_old_partitions_are_dropped(table: MaintainedTable) -> None:
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
    text = "2 partition(s): {} 3 data file(s) with 4 row(s); 1 partition(s) do not match partition_time"
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

    # Expiry of the snapshots deletes the files.
    table.run(Operation.EXPIRE_SNAPSHOTS)
    assert not [file for file in gone if Path(file.file_path.removeprefix("file://")).exists()]
    assert table.readers_agree() == [5, 6]
    assert table.verify().ok


def test_a_refusal_changes_nothing_and_another_branch_may_be_named(table: MaintainedTable) -> None:
    """It deletes no file, so it may also run on tables that forbid deletions."""
    with table.table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    location, head = table.loaded.metadata_location, table.metadata.current_snapshot
    assert head is not None
    outcome = table.run(EXPIRE, **TEXT | {"partition_time": "id=%Y-%m-%d"})
    assert outcome.status is Status.FAILED
    assert "the table is not partitioned by 'id'; its partition fields are: part" in outcome.summary

    manifest = table.reader.manifests(head)[0].manifest_path
    path = Path(manifest.removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(b"Obj\x01")
    outcome = table.run(EXPIRE, **TEXT)
    assert (outcome.status, manifest in (outcome.reason or "")) == (Status.REFUSED, True)
    path.write_bytes(content)
    assert (table.loaded.metadata_location, table.ids()) == (location, [1, 2, 3, 4, 5, 6])

    table.table.manage_snapshots().create_branch(head.snapshot_id, "side").commit()
    assert table.run(EXPIRE, **TEXT, branch="side").status is Status.SUCCEEDED
    assert table.ids() == [1, 2, 3, 4, 5, 6]
    assert table.ids(table.metadata.refs["side"].snapshot_id) == [5, 6]


def test_a_table_is_never_emptied(table: MaintainedTable) -> None:
    """If all partitions are old, the clock is wrong or the table no longer gets rows."""
    table.table.delete(f"part == '{day(0)}'")
    location = table.loaded.metadata_location
    outcome = table.run(EXPIRE, **TEXT)
    assert outcome.status is Status.REFUSED
    assert f"partition_retention_hours 24, the newest since {day(19)} 00:00 UTC; nothing was" in outcome.summary
    assert table.loaded.metadata_location == location


@pytest.mark.parametrize("moment", [Moment.OPERATION_STARTED, Moment.BEFORE_COMMIT])
def test_commits_of_others_during_the_expiry_are_included(table: MaintainedTable, moment: Moment) -> None:
    """Late rows of an expired partition are dropped, new partitions are kept, and files may already be removed."""

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


# Partition expiry with shared manifests, deleted rows, or stored row ids.

OLD, LATER, NOW = "2020-01-31", "2020-02-01", TODAY.isoformat()
YEAR = {"operations": "expire_partitions", "partition_retention_hours": "8760", "partition_time": "region=%Y-%m-%d"}


def expired(table: MaintainedTable, **settings: Any) -> OperationOutcome:
    return outcome_of(table.maintain(**{**YEAR, **settings}), EXPIRE)


@pytest.fixture
def days(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Two files of ten rows for each day, two of them long ago; the text ``region`` is the day."""
    with maintained_table(tmp_path) as table:
        create_by_region(table, 0)
        for number, region in enumerate((OLD, LATER, NOW)):
            table.table.append(rows_of(number * 100, 10, region))
            table.table.append(rows_of(number * 100 + 50, 10, region))
        yield table


def path_of(table: MaintainedTable, region: str) -> str:
    return next(f.file_path for f in data_files(table) if f.partition == (region,))


def test_delete_files_are_dropped_with_their_partitions(days: MaintainedTable) -> None:
    """Delete files of a kept partition still apply, and so does a delete file that names a file elsewhere."""
    kept = path_of(days, NOW)
    commit_deletes(
        days,
        [
            position_delete(path_of(days, OLD), 3, OLD),
            equality_delete(107, LATER),
            position_delete(kept, 4, NOW),
            equality_delete(205, NOW),
        ],
    )
    content, more = position_delete(kept, 6, OLD)
    commit_deletes(days, [(content, more | {"referenced_data_file": kept})])
    before = region_rows(days)
    outcome = expired(days)
    assert outcome.summary == "expired 2 partition(s): dropped 4 data file(s) with 40 row(s)"
    assert outcome.metrics["expire_partitions.delete_files_removed"] == 2
    assert region_rows(days) == Counter({row: count for row, count in before.items() if row[1] == NOW})
    deletes = [e.file for _, e in live(days) if e.file.content is not FileContent.DATA]
    assert [file.partition for file in deletes if file.referenced_data_file is None] == [(NOW,)] * 2
    assert [file.referenced_data_file for file in deletes if file.partition == (OLD,)] == [kept]
    head = days.loaded.metadata.current_snapshot
    assert head is not None
    expected = {
        "deleted-data-files": "4",
        "deleted-records": "40",
        "removed-delete-files": "2",
        "removed-position-deletes": "1",
        "removed-equality-deletes": "1",
        "changed-partition-count": "2",
        "total-delete-files": "3",
        "total-data-files": "2",
    }
    assert {key: head.summary[key] for key in expected} == expected
    # This test creates the misplaced delete (rule: named-deletes-reach-anywhere).
    assert [kind for kind, _ in days.problems()] == ["delete_scope"]


def test_a_partition_that_shares_a_file_with_a_younger_partition_is_kept(days: MaintainedTable) -> None:
    """A manifest lists the file twice: dropped by its path, it would leave both partitions."""
    shared = path_of(days, OLD)

    def listed(entry: ManifestEntry) -> list[ManifestEntry]:
        old = replace(entry, status=EntryStatus.EXISTING)
        return [old, replace(old, file=replace(old.file, partition=(NOW,)))] if old.file.file_path == shared else [old]

    relist(days, listed)
    assert expired(days).summary == "expired 1 partition(s): dropped 2 data file(s) with 20 row(s)"
    assert len(days.rows()) == 50


def test_in_v3_vectors_are_dropped_with_their_files_and_rows_keep_their_ids(days: MaintainedTable) -> None:
    upgrade(days)
    append(days, 300, 10, NOW)
    old, kept = path_of(days, OLD), path_of(days, NOW)
    delete_positions(days, {old: [1, 2], kept: [3]})
    before = lineage(days)
    assert expired(days).metrics["expire_partitions.delete_files_removed"] == 1
    assert list(vectors(days)) == [kept]
    assert lineage(days) == Counter({row: count for row, count in before.items() if row[0] >= 200})
    days.assert_sound()


def test_global_equality_deletes_are_kept(days: MaintainedTable) -> None:
    """They belong to an unpartitioned spec, and may apply to any file."""
    with days.table.update_spec() as update:
        update.remove_field("region")
    spec_id = days.loaded.metadata.default_spec_id
    content, more = equality_delete(205, "")
    nothing = (None,) * len(days.loaded.metadata.specs[spec_id]["fields"])
    commit_deletes(days, [(content, more | {"partition": nothing})], spec_id=spec_id)
    before = region_rows(days)
    assert expired(days).metrics["expire_partitions.delete_files_removed"] == 0
    assert region_rows(days) == Counter({row: count for row, count in before.items() if row[1] == NOW})
    days.assert_sound()


def test_a_concurrent_compaction_yields_to_the_expiry(days: MaintainedTable) -> None:
    """Its groups of dropped partitions are dropped, because removed rows must not return."""
    days.engine.during = lambda: expired(days)
    with without_leases():
        days.maintain(operations="compact", rewrite_all="true")
    assert {region for _, region in region_rows(days)} == {NOW}
    days.assert_sound()


def test_manifests_that_cannot_hold_an_expired_partition_are_not_read(tmp_path: Path) -> None:
    """Their partition summaries show it; the younger partitions prevent a refusal."""
    with maintained_table(tmp_path) as table:
        table.pyiceberg.create_namespace("ns")
        schema = Schema(NestedField(1, "id", LongType()), NestedField(3, "day", DateType()))
        spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day"))
        table.pyiceberg.create_table("ns.t", schema, partition_spec=spec, properties={"format-version": "2"})
        for when in (datetime.date(2020, 1, 31), TODAY, TODAY):
            table.table.append(pa.table({"id": [1], "day": pa.array([when], pa.date32())}))
        head = table.loaded.metadata.current_snapshot
        assert head is not None
        *young, _ = table.reader.manifests(head)
        for manifest in young:
            Path(manifest.manifest_path.removeprefix("file://")).unlink()
        outcome = outcome_of(table.maintain("expire_partitions", partition_retention_hours="8760"), EXPIRE)
        assert outcome.summary == "expired 1 partition(s): dropped 1 data file(s) with 1 row(s)"


# ``where`` limits the partitions that expire by age, and decides alone only if it is set for this operation.


def test_a_partition_expires_only_if_age_and_filter_both_match(table: MaintainedTable) -> None:
    """Young partitions that match are kept, and so are old partitions that do not match."""
    outcome = table.run(EXPIRE, where=f"part = '{day(30)}' or part = '{day(0)}'", **TEXT)
    assert outcome.status is Status.SUCCEEDED
    assert table.readers_agree() == [4, 5, 6]
    again = table.run(EXPIRE, where=f"part = '{day(30)}'", **TEXT)
    assert (again.status, again.reason) == (Status.SKIPPED, "no partitions to expire whose rows all match where")


def test_a_filter_set_for_the_operation_decides_regardless_of_age(table: MaintainedTable) -> None:
    """After the last partition, the table is readable and empty."""
    rows = table.run(EXPIRE, where=f"part = '{day(20)}' and id = 4")
    assert (rows.status, rows.reason) == (Status.SKIPPED, "no partitions to expire whose rows all match where")
    assert table.run(EXPIRE, where="part != 'x'").status is Status.REFUSED
    assert table.readers_agree() == [1, 2, 3, 4, 5, 6]
    table.append(7, part=None)
    for where, left in (
        (f"part = '{day(0)}'", [1, 2, 3, 4, 6, 7]),
        ("part is null", [1, 2, 3, 4, 6]),
        (f"part = '{day(20)}'", [1, 2, 3, 6]),
        (f"part = '{day(30)}'", [6]),
        ("part = 'unknown'", []),
    ):
        outcome = table.run(EXPIRE, where=where)
        assert (outcome.status, outcome.metrics["expire_partitions.partitions_expired"]) == (Status.SUCCEEDED, 1)
        assert table.readers_agree() == left


def test_neither_the_scope_of_rewrites_nor_a_fast_clock_drops_rows(table: MaintainedTable) -> None:
    """The filter may be a table property for compaction, or be set for a pass with other operations
    (rule: drop-only-fully-matched-partitions)."""
    beside = table.maintain(operations="expire_partitions,compact", where=f"part = '{day(30)}'")
    with table.table.transaction() as change:
        change.set_properties({"icekeeper.where": f"part = '{day(30)}'"})
    kept = table.run(EXPIRE)
    for outcome in (beside.operations[0], kept):
        assert outcome.status is Status.SKIPPED
        assert (outcome.reason or "").startswith("no partition_retention_hours is set; without it, where chooses")
    assert table.readers_agree() == [1, 2, 3, 4, 5, 6]

    # By a clock two days ahead, today's partition is old, but not by the store's clock.
    table.late_ms = 2 * 86_400_000
    outcome = table.run(EXPIRE, where="part < 'x' and part = 'x'", store_clock=store_now_ms)
    assert outcome.status is Status.SKIPPED  # the filter does not depend on the time
    with table.table.update_schema() as update:
        update.add_column("at", TimestampType())
    outcome = table.run(EXPIRE, where="at < now() - interval '1 day' or part != 'x'", store_clock=store_now_ms)
    assert outcome.status is Status.REFUSED
    assert "no age can be trusted" in (outcome.reason or "")
    assert table.readers_agree() == [1, 2, 3, 4, 5, 6]
