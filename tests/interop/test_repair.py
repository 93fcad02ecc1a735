"""Repairs as Iceberg-Java sees them: rows, appended rows, and the changelog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from icekeeper.model import ManifestEntry
from icekeeper.repair.plan import RepairOptions
from support.deletes import create_by_region, region_rows, relist
from support.iceberg_java import IcebergJava
from support.maintained_table import NAME, MaintainedTable, local_path, maintained_table


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as made:
        create_by_region(made, 1)
        yield made


def repaired(table: MaintainedTable, options: RepairOptions) -> tuple[int, int]:
    """The head before and after a repair."""
    head, runtime = table.metadata.current_snapshot, table.runtime_with()
    plan = runtime.plan_repair(NAME, options).plan
    assert head is not None
    assert plan is not None
    done, found = runtime.repair(NAME, options, plan.digest)
    assert found is not None
    assert found.ok
    assert done.snapshot_id is not None
    return head.snapshot_id, done.snapshot_id


def changes(java: IcebergJava, table: MaintainedTable, heads: tuple[int, int], name: str = "") -> list[str]:
    """The rows that a reader finds between two snapshots: appended ones, or those of the table ``#changes``."""
    reader = java.session.read.format("iceberg")
    for option, head in zip(("start-snapshot-id", "end-snapshot-id"), heads, strict=True):
        reader = reader.option(option, str(head))
    return sorted(str(row) for row in reader.load(f"{table.metadata_location}{name}").collect())


def test_readers_of_changes_see_no_row_of_a_live_file_go(table: MaintainedTable, iceberg_java: IcebergJava) -> None:
    """The entry that goes leaves no tombstone of a path that stays live."""
    first, (older, newer) = table.entries()[0], table.metadata.in_commit_order
    for name in ("", "#changes"):  # these readers see the rows of an append
        assert len(changes(iceberg_java, table, (older.snapshot_id, newer.snapshot_id), name)) == 10

    def twice(entry: ManifestEntry) -> list[ManifestEntry]:
        return [entry, entry] if entry.file.key == first.file.key else [entry]

    relist(table, twice)
    assert len(iceberg_java.rows(table.metadata_location)) == 30
    heads = repaired(table, RepairOptions())
    assert len(iceberg_java.rows(table.metadata_location)) == sum(region_rows(table).values()) == 20
    assert changes(iceberg_java, table, heads) == []
    assert changes(iceberg_java, table, heads, "#changes") == []


def test_java_reads_corrected_entries(table: MaintainedTable, iceberg_java: IcebergJava) -> None:
    """A wrong upper bound hides rows from a filter, and a wrong count is the answer to ``count(*)``."""

    def wrong(entry: ManifestEntry) -> list[ManifestEntry]:
        low = {**(entry.file.upper_bounds or {}), 1: (1).to_bytes(8, "little")}
        return [replace(entry, file=replace(entry.file, upper_bounds=low, record_count=7))]

    relist(table, wrong)
    reader = iceberg_java.session.read.format("iceberg")
    assert reader.load(table.metadata_location).where("id = 5").count() == 0
    heads = repaired(table, RepairOptions(file_metrics=True))
    assert reader.load(table.metadata_location).where("id = 5").count() == 1
    assert reader.load(table.metadata_location).count() == 20
    assert changes(iceberg_java, table, heads) == []
    assert changes(iceberg_java, table, heads, "#changes") == []


def test_java_reads_the_rows_that_are_left(table: MaintainedTable, iceberg_java: IcebergJava) -> None:
    local_path(table.entries()[0].file.file_path).unlink()
    heads = repaired(table, RepairOptions(drop_missing=True))
    assert len(iceberg_java.rows(table.metadata_location)) == sum(region_rows(table).values()) == 10
    assert changes(iceberg_java, table, heads) == []
