"""One local file under two names: a warehouse, a folder or a file reached by a symbolic link loses nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import declare_load, stage_load
from icekeeper.machine.clock import system_clock
from icekeeper.pass_context.stores import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.store import LoadState
from support.maintained_table import NAME, MaintainedTable, grow_old, new_table

REAL, LINK = "real", "link"
BOTH_WAYS = pytest.mark.parametrize(("named", "located"), [(REAL, LINK), (LINK, REAL)])


def linked_table(catalog: SqlCatalog, folder: Path, named: str, located: str) -> MaintainedTable:
    """A table whose files are named below one spelling of its folder while its location has become the other."""
    (folder / REAL).mkdir()
    (folder / LINK).symlink_to(folder / REAL)
    table = new_table(catalog, folder, allowed=folder, location=(folder / named / "t").as_uri())
    table.fill(2)
    table.rewrite_document(lambda document: document.update(location=(folder / located / "t").as_uri()))
    return table


def age(table: MaintainedTable) -> None:
    grow_old(path for path in table.folder.rglob("*") if path.is_file())


@BOTH_WAYS
def test_orphan_removal_knows_a_file_by_its_real_path(
    local_catalog: SqlCatalog, tmp_path: Path, named: str, located: str
) -> None:
    table = linked_table(local_catalog, tmp_path, named, located)
    orphan = Path(table.plant("data/orphan.parquet"))
    age(table)
    outcome = table.run(Operation.REMOVE_ORPHANS)
    assert [Path(path.removeprefix("file://")).name for path in outcome.files_deleted] == [orphan.name]
    assert not orphan.exists()
    assert table.readers_agree() == [0, 1, 10, 11]


@BOTH_WAYS
def test_expiry_spares_a_file_that_lives_on_under_its_other_name(
    local_catalog: SqlCatalog, tmp_path: Path, named: str, located: str
) -> None:
    table = linked_table(local_catalog, tmp_path, named, located)
    imported = Path(table.plant("data/imported.parquet"))
    pq.write_table(table.new_rows(7), imported)
    table.table.add_files([(tmp_path / located / "t/data/imported.parquet").as_uri()])
    table.table.delete("id = 7")
    table.table.add_files([(tmp_path / named / "t/data/imported.parquet").as_uri()])
    outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert outcome.metrics["expire_snapshots.snapshots_expired"] > 0
    assert imported.exists()
    assert table.readers_agree() == [0, 1, 7, 10, 11]


@BOTH_WAYS
def test_cleaning_a_failed_load_spares_a_file_that_a_commit_named_otherwise(
    local_catalog: SqlCatalog, tmp_path: Path, named: str, located: str
) -> None:
    table = linked_table(local_catalog, tmp_path, named, located)
    live, lost = sorted((tmp_path / REAL / "t/data").glob("*.parquet"))[0], Path(table.plant("data/lost.parquet"))
    handle = TableHandle(table.catalog, NAME, table.state, system_clock)
    staged = [(tmp_path / located / "t/data" / path.name).as_uri() for path in (live, lost)]
    stage_load(handle, "load", staged, ())
    declare_load(handle, "load", LoadState.FAILED)
    outcome = table.maintain("rewrite_position_deletes").staged
    assert outcome is not None
    assert outcome.files_deleted == (staged[1],)
    assert table.readers_agree() == [0, 1, 10, 11]


def test_a_folder_below_the_location_may_be_a_link(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """``data`` points at ``data-2``, which a listing shows and no metadata names."""
    folder = tmp_path / "t"
    (folder / "data-2").mkdir(parents=True)
    (folder / "data").symlink_to("data-2")
    table = new_table(local_catalog, tmp_path, allowed=tmp_path, location=folder.as_uri())
    table.fill(2)
    orphan = table.plant("data-2/orphan.parquet")
    age(table)
    assert table.run(Operation.REMOVE_ORPHANS).files_deleted == (f"file://{orphan}",)
    assert table.readers_agree() == [0, 1, 10, 11]


def test_a_link_to_a_file_protects_what_it_points_at(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """The table names the link; the listing shows only its target."""
    table = new_table(local_catalog, tmp_path)
    table.fill(1)
    target = Path(table.plant("data/target.parquet"))
    pq.write_table(table.new_rows(7), target)
    link = table.folder / "data" / "link.parquet"
    link.symlink_to(target)
    table.table.add_files([link.as_uri()])
    age(table)
    assert table.run(Operation.REMOVE_ORPHANS).files_deleted == ()
    assert table.readers_agree() == [0, 1, 7]


def test_nothing_is_deleted_where_a_link_leads_out_of_the_location(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Whose the folder out there is cannot be known: what expiry frees in it stays, and the pass succeeds."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "data").symlink_to(outside)
    table = new_table(local_catalog, tmp_path, allowed=tmp_path, location=folder.as_uri())
    table.fill(3)
    before = set(os.listdir(outside))
    outcome = table.maintain("compact,expire_snapshots,remove_orphans")
    assert [part.status for part in outcome.operations] == [Status.SUCCEEDED] * 3
    assert before <= set(os.listdir(outside))
    assert len(table.data_files()) == 1
    assert table.readers_agree() == [0, 1, 10, 11, 20, 21]
