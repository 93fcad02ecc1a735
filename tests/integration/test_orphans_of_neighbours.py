"""Orphans and other tables: nested, around, moved away, in one location, registered twice, or not to be loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.storage.paths import normalise
from support.maintained_table import MaintainedTable, assert_refused, grow_old, new_table, sweep
from support.scripted_catalog import ScriptedCatalog
from support.tables import new_document


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Two appends, every file ten days old."""
    made = new_table(local_catalog, tmp_path)
    made.fill(2)
    grow_old(Path(path) for path in made.files())
    return made


def test_another_tables_metadata_below_the_location_is_refused(table: MaintainedTable) -> None:
    foreign = new_document(f"{table.metadata.location}/nested", 2)
    table.plant("nested/metadata/00000-x.metadata.json", json.dumps(foreign).encode(), days_old=0)
    assert_refused(table, foreign["table-uuid"], f"{table.metadata.location}/nested")


def test_a_table_nested_in_another_is_never_swept_with_it(table: MaintainedTable) -> None:
    """What lies below its location is its own business, orphans too; they are only counted."""
    nested = table.create_beside("ns.nested", f"{table.metadata.location}/sub/nested")
    nested.append(table.new_rows(1))
    theirs = table.plant("sub/nested/data/orphan.parquet")
    ours = table.plant("sub/orphan.parquet")
    grow_old(Path(path) for path in table.files())
    before = table.files()
    outcome = sweep(table, orphan_sweep_prefixes=f"{table.metadata.location}/sub")
    assert set(map(normalise, outcome.files_deleted)) == {ours}
    assert table.files() == before - {ours}
    assert theirs in table.files()
    assert outcome.metrics["remove_orphans.files_of_other_tables"] == 1


def test_a_table_around_another_protects_its_files_in_it(table: MaintainedTable) -> None:
    """Our location lies inside theirs, and they put files into ours."""
    theirs = table.create_beside("ns.around", str(table.folder.parent.as_uri()))
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = table.plant("data/of-the-outer-table.parquet", source.read_bytes())
    theirs.add_files([Path(adopted).as_uri()])
    orphan = table.plant("data/orphan.parquet")
    grow_old(Path(path) for path in table.files())
    assert set(map(normalise, sweep(table).files_deleted)) == {orphan}
    assert adopted in table.files()


def test_a_table_that_moved_away_protects_what_it_left_here(table: MaintainedTable) -> None:
    """Its folders are elsewhere by now; only the files that its document names tell of us."""
    moved = table.create_beside("ns.moved", f"{table.metadata.location}/sub")
    moved.append(table.new_rows(1))
    newest = Path(normalise(moved.metadata_location))
    document = json.loads(newest.read_text())
    newest.write_text(json.dumps({**document, "location": f"{table.metadata.location}-elsewhere"}))
    orphan = table.plant("sub/data/orphan.parquet")
    grow_old(Path(path) for path in table.files())
    before = table.files()
    named = {"orphan_sweep_prefixes": f"{table.metadata.location}/sub"}
    assert set(map(normalise, sweep(table, **named).files_deleted)) == {orphan}
    assert table.files() == before - {orphan}


def test_two_tables_in_one_location_are_refused(table: MaintainedTable) -> None:
    """With old files of theirs, and their metadata elsewhere: only the catalog knows."""
    aside = {"write.metadata.path": (table.folder.parent / "aside").as_uri()}
    twin = table.create_beside("ns.twin", table.metadata.location, **aside)
    assert_refused(table, "ns.twin", str(twin.metadata.table_uuid), table.metadata.uuid or "")


def test_a_table_that_writes_its_data_into_ours_is_refused(table: MaintainedTable) -> None:
    other = table.create_beside("ns.guest", f"{table.metadata.location}-guest")
    other.transaction().set_properties({"write.data.path": table.metadata.location}).commit_transaction()
    assert_refused(table, "ns.guest", str(other.metadata.table_uuid))


def test_one_table_registered_twice_keeps_what_either_entry_needs(table: MaintainedTable) -> None:
    """The second entry has moved on by itself."""
    again = table.pyiceberg.register_table("ns.again", table.loaded.metadata_location)
    before = table.files()
    again.append(table.new_rows(7))
    theirs = table.files() - before
    orphan = table.plant("data/orphan.parquet")
    grow_old(Path(path) for path in table.files())
    assert set(map(normalise, sweep(table).files_deleted)) == {orphan}
    assert theirs < table.files()
    assert len(theirs) == 4


def test_a_table_that_cannot_be_loaded_might_be_anywhere(table: MaintainedTable) -> None:
    other = table.create_beside("ns.lost", f"{table.metadata.location}-lost")
    Path(normalise(other.metadata_location)).write_text("{")
    assert_refused(table, "ns.lost", "cannot be read")


def test_without_orphans_no_other_table_is_asked(table: MaintainedTable) -> None:
    other = table.create_beside("ns.lost", f"{table.metadata.location}-lost")
    Path(normalise(other.metadata_location)).unlink()
    assert sweep(table).summary == "removed 0 orphan file(s)"


def test_a_catalog_that_cannot_list_its_tables_is_refused(table: MaintainedTable) -> None:
    class Secretive(ScriptedCatalog):
        def list_tables(self) -> Iterator[TableName]:
            raise StorageError("listing is not allowed")

    assert_refused(table, "listing is not allowed", catalog=Secretive(table.catalog))
