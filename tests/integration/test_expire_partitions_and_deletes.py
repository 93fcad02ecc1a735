"""Partitions that expire where manifests are shared, rows were deleted or have ids of their own."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from icekeeper.model import EntryStatus, FileContent, ManifestEntry
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome
from support.deletes import (
    commit_deletes,
    create_by_region,
    equality_delete,
    position_delete,
    region_rows,
    relist,
    rows_of,
)
from support.maintained_table import MaintainedTable, maintained_table, outcome_of, without_leases
from support.v3 import append, data_files, delete_positions, lineage, live, upgrade, vectors

EXPIRE = Operation.EXPIRE_PARTITIONS
TODAY = datetime.datetime.now(datetime.UTC).date()

OLD, LATER, NOW = "2020-01-31", "2020-02-01", TODAY.isoformat()
YEAR = {
    "operations": "expire_partitions",
    "partition_retention_hours": "8760",
    "partition_time_pattern": "region=%Y-%m-%d",
}


def expired(table: MaintainedTable, **settings: Any) -> OperationOutcome:
    return outcome_of(table.maintain(**{**YEAR, **settings}), EXPIRE)


@pytest.fixture
def days(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Two files of ten rows of each day, of which two are long ago; the text ``region`` is the day."""
    with maintained_table(tmp_path) as table:
        create_by_region(table, 0)
        for number, region in enumerate((OLD, LATER, NOW)):
            table.table.append(rows_of(number * 100, 10, region))
            table.table.append(rows_of(number * 100 + 50, 10, region))
        yield table


def path_of(table: MaintainedTable, region: str) -> str:
    return next(f.file_path for f in data_files(table) if f.partition == (region,))


def test_delete_files_go_with_the_partitions_that_they_are_for(days: MaintainedTable) -> None:
    """Those of a partition that stays stay, and still apply; so does one that names a file elsewhere."""
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
    assert [kind for kind, _ in days.problems()] == ["delete_scope"]  # as the test made it (rule 234)


def test_a_partition_that_shares_a_file_with_a_younger_one_stays(days: MaintainedTable) -> None:
    """Listed twice, in one manifest: dropped by its path, it would be gone from both."""
    shared = path_of(days, OLD)

    def listed(entry: ManifestEntry) -> list[ManifestEntry]:
        old = replace(entry, status=EntryStatus.EXISTING)
        return [old, replace(old, file=replace(old.file, partition=(NOW,)))] if old.file.file_path == shared else [old]

    relist(days, listed)
    assert expired(days).summary == "expired 1 partition(s): dropped 2 data file(s) with 20 row(s)"
    assert len(days.rows()) == 50


def test_in_v3_vectors_go_with_their_files_and_rows_keep_their_ids(days: MaintainedTable) -> None:
    upgrade(days)
    append(days, 300, 10, NOW)
    old, kept = path_of(days, OLD), path_of(days, NOW)
    delete_positions(days, {old: [1, 2], kept: [3]})
    before = lineage(days)
    assert expired(days).metrics["expire_partitions.delete_files_removed"] == 1
    assert list(vectors(days)) == [kept]
    assert lineage(days) == Counter({row: count for row, count in before.items() if row[0] >= 200})
    days.assert_sound()


def test_global_equality_deletes_stay(days: MaintainedTable) -> None:
    """They were written under a spec without partitions, and may apply to anything."""
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


def test_a_compaction_under_way_yields_to_the_expiry(days: MaintainedTable) -> None:
    """Its groups of dropped partitions are given up: rows that are gone must not come back."""
    days.engine.during = lambda: expired(days)
    with without_leases():
        days.maintain(operations="compact", rewrite_all="true")
    assert {region for _, region in region_rows(days)} == {NOW}
    days.assert_sound()


def test_manifests_that_cannot_hold_an_expired_partition_are_not_read(tmp_path: Path) -> None:
    """Their summaries tell; and that something younger is there keeps the plan from being refused."""
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
