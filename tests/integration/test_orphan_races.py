"""Orphan removal while others commit, drop and delete beside it: between listing, plan and deletion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.paths import normalise
from support.maintained_table import ID_AND_PART, MaintainedTable, grow_old, new_table, sweep
from support.moments import Moment, at


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Two appends, every file ten days old."""
    made = new_table(local_catalog, tmp_path, allowed=tmp_path)
    made.fill(2)
    grow_old(Path(path) for path in made.files())
    return made


def test_metadata_that_vanished_since_the_listing_is_no_danger(table: MaintainedTable) -> None:
    """A writer with delete-after-commit removes old metadata files beside us."""
    path = Path(
        table.plant("metadata/old.metadata.json", json.dumps(dict(table.metadata.document)).encode(), days_old=9000)
    )
    with at(Moment.AFTER_LISTING, path.unlink):
        assert sweep(table).status is Status.SUCCEEDED


def test_a_file_that_is_referenced_since_the_plan_is_spared(table: MaintainedTable) -> None:
    """Planned as an orphan, adopted by a writer just before the batch goes out."""
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = Path(table.plant("data/adopted.parquet", source.read_bytes()))
    orphan = table.plant("data/orphan.parquet")
    with at(Moment.DELETION_RECORDED, lambda: table.table.add_files([adopted.as_uri()])):
        outcome = sweep(table)
    assert set(map(normalise, outcome.files_planned)) == {str(adopted), orphan}
    assert set(map(normalise, outcome.files_deleted)) == {orphan}
    assert table.verify().ok


def test_a_file_that_is_referenced_since_the_listing_is_no_orphan(table: MaintainedTable) -> None:
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = Path(table.plant("data/adopted.parquet", source.read_bytes()))
    with at(Moment.AFTER_LISTING, lambda: table.table.add_files([adopted.as_uri()])):
        assert sweep(table).files_planned == ()
    assert table.verify().ok


def test_new_references_that_cannot_be_read_stop_the_deletion(table: MaintainedTable) -> None:
    orphan = table.plant("data/orphan.parquet")

    def append_torn() -> None:
        table.append(99)
        newest = table.metadata.current_snapshot
        assert newest is not None
        Path(normalise(newest.manifest_list or "")).unlink()

    with at(Moment.DELETION_RECORDED, append_torn):
        outcome = sweep(table)
    assert outcome.status is Status.REFUSED
    assert orphan in table.files()


@pytest.mark.parametrize("moment", [Moment.AFTER_LISTING, Moment.DELETION_RECORDED])
def test_a_table_replaced_by_another_is_left_alone(table: MaintainedTable, moment: Moment) -> None:
    """Dropped and created again in the same place: its files are in the listing, but in nobody's references."""

    def replace() -> None:
        location = table.metadata.location
        table.pyiceberg.drop_table("ns.t")
        table.pyiceberg.create_table("ns.t", schema=ID_AND_PART, location=location)

    orphan = table.plant("data/orphan.parquet")
    before = table.files()
    with at(moment, replace):
        outcome = sweep(table)
    assert outcome.status is Status.REFUSED
    assert orphan in table.files()
    assert table.files() >= before


def test_a_table_replaced_by_one_with_metadata_elsewhere_is_left_alone(table: MaintainedTable, tmp_path: Path) -> None:
    """Then no metadata file in the listing tells the two apart."""
    aside = {"write.metadata.path": (tmp_path / "aside").as_uri()}
    location = table.metadata.location
    table.pyiceberg.drop_table("ns.t")
    table.pyiceberg.create_table("ns.t", schema=ID_AND_PART, location=f"{location}/inner", properties=aside)
    table.append(1)
    grow_old(Path(path) for path in table.files())

    def replace() -> None:
        table.pyiceberg.drop_table("ns.t")
        table.pyiceberg.create_table("ns.t", schema=ID_AND_PART, location=f"{location}/inner", properties=aside)

    before = table.files()
    with at(Moment.AFTER_LISTING, replace):
        outcome = sweep(table)
    assert outcome.status is Status.REFUSED
    assert table.files() == before


def test_references_are_loaded_after_the_listing(table: MaintainedTable) -> None:
    """What is committed while the listing runs is no orphan, not even in the plan of a dry run."""
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = Path(table.plant("data/adopted.parquet", source.read_bytes()))
    with at(Moment.AFTER_LISTING, lambda: table.table.add_files([adopted.as_uri()])):
        assert sweep(table, dry_run=True).files_planned == ()


@pytest.mark.parametrize(
    ("moment", "status"),
    [(Moment.OPERATION_STARTED, Status.SKIPPED), (Moment.DELETION_RECORDED, Status.REFUSED)],
)
def test_gc_disabled_forbids_deletion_at_any_moment(table: MaintainedTable, moment: Moment, status: Status) -> None:
    def disable() -> None:
        table.table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()

    orphan = table.plant("data/orphan.parquet")
    with at(moment, disable):
        outcome = sweep(table)
    assert outcome.status is status
    assert "gc.enabled is false" in (outcome.reason or "")
    assert orphan in table.files()


def test_a_table_that_shares_the_location_is_looked_at_before_each_batch(table: MaintainedTable) -> None:
    """The other entry of the table adopts a file between plan and deletion: ours does not know of it."""
    again = table.pyiceberg.register_table("ns.again", table.loaded.metadata_location)
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = Path(table.plant("data/adopted.parquet", source.read_bytes()))
    orphan = table.plant("data/orphan.parquet")
    with at(Moment.DELETION_RECORDED, lambda: again.add_files([adopted.as_uri()])):
        outcome = sweep(table)
    assert set(map(normalise, outcome.files_planned)) == {str(adopted), orphan}
    assert set(map(normalise, outcome.files_deleted)) == {orphan}


@pytest.mark.parametrize("moment", [Moment.AFTER_LISTING, Moment.DELETION_RECORDED])
def test_a_table_that_shares_the_location_must_stay_readable(table: MaintainedTable, moment: Moment) -> None:
    again = table.pyiceberg.register_table("ns.again", table.loaded.metadata_location)
    again.append(table.new_rows(7))
    orphan = table.plant("data/orphan.parquet")
    with at(moment, Path(normalise(again.refresh().metadata_location)).unlink):
        outcome = sweep(table)
    assert outcome.status is Status.REFUSED
    assert "ns.again" in (outcome.reason or "")
    assert orphan in table.files()
