"""Orphan removal beside writers, neighbours, foreign files, and stores that list wrongly."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.deletion.shared_references import list_beside
from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.maintained_table import ID_AND_PART, MaintainedTable, assert_refused, grow_old, new_table, sweep
from support.moments import Moment, at
from support.scripted_catalog import ScriptedCatalog
from support.tables import new_document

# Orphan removal while others commit, drop and delete beside it: between listing, plan and deletion.


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
    with at(Moment.DELETION_DECIDED, lambda: table.table.add_files([adopted.as_uri()])):
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

    with at(Moment.DELETION_DECIDED, append_torn):
        outcome = sweep(table)
    assert outcome.status is Status.REFUSED
    assert orphan in table.files()


@pytest.mark.parametrize("moment", [Moment.AFTER_LISTING, Moment.DELETION_DECIDED])
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
    """What is committed while the listing runs is no orphan, not even in the plan of a dry run
    (rule: list-before-loading-references)."""
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = Path(table.plant("data/adopted.parquet", source.read_bytes()))
    with at(Moment.AFTER_LISTING, lambda: table.table.add_files([adopted.as_uri()])):
        assert sweep(table, dry_run=True).files_planned == ()


@pytest.mark.parametrize(
    ("moment", "status"),
    [(Moment.OPERATION_STARTED, Status.SKIPPED), (Moment.DELETION_DECIDED, Status.REFUSED)],
)
def test_gc_disabled_forbids_deletion_at_any_moment(table: MaintainedTable, moment: Moment, status: Status) -> None:
    """`gc.enabled=false` forbids every deletion, at any moment (rule: gc-disabled-forbids-deletion)."""

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
    with at(Moment.DELETION_DECIDED, lambda: again.add_files([adopted.as_uri()])):
        outcome = sweep(table)
    assert set(map(normalise, outcome.files_planned)) == {str(adopted), orphan}
    assert set(map(normalise, outcome.files_deleted)) == {orphan}


@pytest.mark.parametrize("moment", [Moment.AFTER_LISTING, Moment.DELETION_DECIDED])
def test_a_table_that_shares_the_location_must_stay_readable(table: MaintainedTable, moment: Moment) -> None:
    again = table.pyiceberg.register_table("ns.again", table.loaded.metadata_location)
    again.append(table.new_rows(7))
    orphan = table.plant("data/orphan.parquet")
    with at(moment, Path(normalise(again.refresh().metadata_location)).unlink):
        outcome = sweep(table)
    assert outcome.status is Status.REFUSED
    assert "ns.again" in (outcome.reason or "")
    assert orphan in table.files()


# A listing that lacks what is there: something else answers in the store's place (rule: trust-only-own-answers).


def test_an_empty_listing_is_no_proof_that_there_is_no_newer_head(
    three_appends: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As boto3 reads a proxy's page, or an answer without a body, with status 200."""
    monkeypatch.setattr(Storage, "list", lambda self, prefix: iter(()))
    before = three_appends.files()
    outcome = three_appends.run(Operation.EXPIRE_SNAPSHOTS)
    assert (outcome.status.value, before - three_appends.files()) == ("refused", set())
    assert f"lacks {three_appends.metadata_location}, which is there" in (outcome.reason or "")
    monkeypatch.undo()
    assert three_appends.run(Operation.EXPIRE_SNAPSHOTS).status.value == "succeeded"


def test_a_metadata_file_that_is_gone_by_now_is_not_missed(
    three_appends: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many commits of others later the catalog has dropped it."""
    loaded, list_all = three_appends.loaded, Storage.list_if_allowed
    current = Path(normalise(loaded.metadata_location))

    def late(self: Storage, prefix: str) -> Sequence[ListedObject] | None:
        current.unlink()
        return list_all(self, prefix)

    monkeypatch.setattr(Storage, "list_if_allowed", late)
    assert len(list_beside(three_appends.storage, loaded)) == 3


# Orphan removal among file names and listings that nobody expects.

SWEEP = Operation.REMOVE_ORPHANS


@pytest.fixture
def young_table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(2)
    return made


@pytest.mark.parametrize("name", ["a b", "a%20b", "ä", "a\nb", "a?b#c", "%ff", "a\\b", "+", "a:b", "'\"", "%"])
def test_an_orphan_of_any_name_goes(young_table: MaintainedTable, name: str) -> None:
    orphan = young_table.plant(f"data/{name}.parquet")
    outcome = young_table.run(SWEEP)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.summary == "removed 1 orphan file(s)"
    assert orphan not in young_table.files()
    assert young_table.verify().ok


def test_a_name_that_is_no_text_is_left_alone_and_stops_nothing(young_table: MaintainedTable) -> None:
    folder = os.fsencode(young_table.folder / "data")
    strange = os.path.join(folder, b"\xff\xfe.parquet")
    Path(os.fsdecode(strange)).write_bytes(b"x")
    grow_old([Path(os.fsdecode(strange))])
    orphan = young_table.plant("data/orphan.parquet")
    outcome = young_table.run(SWEEP)
    assert outcome.status is Status.SUCCEEDED, outcome.summary
    assert orphan not in young_table.files()
    assert os.path.exists(strange)


def test_a_file_that_is_listed_twice_is_counted_once(young_table: MaintainedTable) -> None:
    orphan = young_table.plant("data/orphan.parquet")
    listing = Storage.list

    def twice(self: Storage, prefix: str) -> Iterator[ListedObject]:
        found = list(listing(self, prefix))
        return iter([*found, *reversed(found)])

    with mock.patch.object(Storage, "list", twice):
        outcome = young_table.run(SWEEP)
    assert outcome.summary == "removed 1 orphan file(s)"
    assert [normalise(path) for path in outcome.files_deleted] == [orphan]


@pytest.mark.parametrize("location", ["t", "t/", "t%20", "t 2", "ä"])
def test_siblings_whose_names_begin_alike_are_left_alone(
    local_catalog: SqlCatalog, tmp_path: Path, location: str
) -> None:
    warehouse = tmp_path / "warehouse"
    table = new_table(local_catalog, tmp_path, location=f"{warehouse.as_uri()}/{location}")
    table.fill(2)
    siblings = [f"{location.rstrip('/')}{more}/data/x.parquet" for more in ("2", "-x", "%20", ".bak")]
    for sibling in siblings:
        (warehouse / sibling).parent.mkdir(parents=True)
        (warehouse / sibling).write_bytes(b"x")
        grow_old([warehouse / sibling])
    (warehouse / location / "data" / "orphan.parquet").write_bytes(b"x")
    outcome = table.run(SWEEP)
    assert outcome.summary == "removed 1 orphan file(s)"
    assert all((warehouse / sibling).exists() for sibling in siblings)
    assert table.run(Operation.COMPACT).status is Status.SUCCEEDED
    assert table.run(Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED
    assert table.readers_agree() == [0, 1, 10, 11]
    assert all((warehouse / sibling).exists() for sibling in siblings)


# Orphans and other tables: nested, around, moved away, in one location, registered twice, or not to be loaded.


def test_another_tables_metadata_below_the_location_is_refused(old_table: MaintainedTable) -> None:
    """Metadata of an unknown table below the location stops orphan removal (rule: unknown-metadata-stops-sweeps)."""
    foreign = new_document(f"{old_table.metadata.location}/nested", 2)
    old_table.plant("nested/metadata/00000-x.metadata.json", json.dumps(foreign).encode(), days_old=0)
    assert_refused(old_table, foreign["table-uuid"], f"{old_table.metadata.location}/nested")


def test_a_table_nested_in_another_is_never_swept_with_it(old_table: MaintainedTable) -> None:
    """What lies below its location is its own business, orphans too; they are only counted."""
    nested = old_table.create_beside("ns.nested", f"{old_table.metadata.location}/sub/nested")
    nested.append(old_table.new_rows(1))
    theirs = old_table.plant("sub/nested/data/orphan.parquet")
    ours = old_table.plant("sub/orphan.parquet")
    grow_old(Path(path) for path in old_table.files())
    before = old_table.files()
    outcome = sweep(old_table, orphan_sweep_prefixes=f"{old_table.metadata.location}/sub")
    assert set(map(normalise, outcome.files_deleted)) == {ours}
    assert old_table.files() == before - {ours}
    assert theirs in old_table.files()
    assert outcome.metrics["remove_orphans.files_of_other_tables"] == 1


def test_a_table_around_another_protects_its_files_in_it(old_table: MaintainedTable) -> None:
    """Our location lies inside theirs, and they put files into ours."""
    theirs = old_table.create_beside("ns.around", str(old_table.folder.parent.as_uri()))
    source = Path(normalise(old_table.data_files()[0].file_path))
    adopted = old_table.plant("data/of-the-outer-table.parquet", source.read_bytes())
    theirs.add_files([Path(adopted).as_uri()])
    orphan = old_table.plant("data/orphan.parquet")
    grow_old(Path(path) for path in old_table.files())
    assert set(map(normalise, sweep(old_table).files_deleted)) == {orphan}
    assert adopted in old_table.files()


def test_a_table_that_moved_away_protects_what_it_left_here(old_table: MaintainedTable) -> None:
    """Its folders are elsewhere by now; only the files that its document names tell of us."""
    moved = old_table.create_beside("ns.moved", f"{old_table.metadata.location}/sub")
    moved.append(old_table.new_rows(1))
    newest = Path(normalise(moved.metadata_location))
    document = json.loads(newest.read_text())
    newest.write_text(json.dumps({**document, "location": f"{old_table.metadata.location}-elsewhere"}))
    orphan = old_table.plant("sub/data/orphan.parquet")
    grow_old(Path(path) for path in old_table.files())
    before = old_table.files()
    named = {"orphan_sweep_prefixes": f"{old_table.metadata.location}/sub"}
    assert set(map(normalise, sweep(old_table, **named).files_deleted)) == {orphan}
    assert old_table.files() == before - {orphan}


def test_two_tables_in_one_location_are_refused(old_table: MaintainedTable) -> None:
    """With old files of theirs, and their metadata elsewhere: only the catalog knows."""
    aside = {"write.metadata.path": (old_table.folder.parent / "aside").as_uri()}
    twin = old_table.create_beside("ns.twin", old_table.metadata.location, **aside)
    assert_refused(old_table, "ns.twin", str(twin.metadata.table_uuid), old_table.metadata.uuid or "")


def test_a_table_that_writes_its_data_into_ours_is_refused(old_table: MaintainedTable) -> None:
    other = old_table.create_beside("ns.guest", f"{old_table.metadata.location}-guest")
    other.transaction().set_properties({"write.data.path": old_table.metadata.location}).commit_transaction()
    assert_refused(old_table, "ns.guest", str(other.metadata.table_uuid))


def test_one_table_registered_twice_keeps_what_either_entry_needs(old_table: MaintainedTable) -> None:
    """The second entry has moved on by itself."""
    again = old_table.pyiceberg.register_table("ns.again", old_table.loaded.metadata_location)
    before = old_table.files()
    again.append(old_table.new_rows(7))
    theirs = old_table.files() - before
    orphan = old_table.plant("data/orphan.parquet")
    grow_old(Path(path) for path in old_table.files())
    assert set(map(normalise, sweep(old_table).files_deleted)) == {orphan}
    assert theirs < old_table.files()
    assert len(theirs) == 4


def test_a_table_that_cannot_be_loaded_might_be_anywhere(old_table: MaintainedTable) -> None:
    other = old_table.create_beside("ns.lost", f"{old_table.metadata.location}-lost")
    Path(normalise(other.metadata_location)).write_text("{")
    assert_refused(old_table, "ns.lost", "cannot be read")


def test_without_orphans_no_other_table_is_asked(old_table: MaintainedTable) -> None:
    other = old_table.create_beside("ns.lost", f"{old_table.metadata.location}-lost")
    Path(normalise(other.metadata_location)).unlink()
    assert sweep(old_table).summary == "removed 0 orphan file(s)"


def test_a_catalog_that_cannot_list_its_tables_is_refused(old_table: MaintainedTable) -> None:
    class Secretive(ScriptedCatalog):
        def list_tables(self) -> Iterator[TableName]:
            raise StorageError("listing is not allowed")

    assert_refused(old_table, "listing is not allowed", catalog=Secretive(old_table.catalog))


# Tables of other formats in a folder of ours: no metadata of Iceberg tells of their files.

MARKERS = [
    *("_delta_log/00000000000000000000.json", ".hoodie/hoodie.properties", "schema/schema-0"),
    *("_versions/1.manifest", "_versions/latest_version_hint.json"),  # Lance
]


@pytest.mark.parametrize("marker", MARKERS)
def test_the_files_of_a_nested_table_of_another_format_are_no_orphans(
    three_appends: MaintainedTable, marker: str
) -> None:
    """Below the table's own data folder; it may write to both, and only Iceberg's garbage is known as such
    (rule: other-formats-keep-their-folder)."""
    theirs = three_appends.plant("data/nested/day=1/live.parquet")
    three_appends.plant(f"data/nested/{marker}", days_old=0)
    ours = three_appends.plant("data/orphan.parquet")
    outcome = three_appends.run(Operation.REMOVE_ORPHANS)
    assert [normalise(path) for path in outcome.files_deleted] == [ours]
    assert Path(theirs).exists()
    assert outcome.metrics["remove_orphans.files_of_other_formats"] >= 1
    assert "data/nested, a table of another format" in outcome.summary


def test_where_the_table_itself_has_another_format_too_nothing_is_an_orphan(
    three_appends: MaintainedTable,
) -> None:
    """Delta Lake or Hudi keep the same folder, and need files that no Iceberg metadata names."""
    theirs = three_appends.plant("data/older-version.parquet")
    three_appends.plant("_delta_log/00000000000000000000.json")
    outcome = three_appends.run(Operation.REMOVE_ORPHANS)
    assert outcome.files_deleted == ()
    assert Path(theirs).exists()
    assert "they stay" in outcome.summary


def test_expiry_leaves_data_files_that_another_format_may_need(three_appends: MaintainedTable) -> None:
    """Its log may name files that our compaction replaced; Iceberg's own metadata files go."""
    three_appends.plant("_delta_log/00000000000000000000.json")
    data = [Path(normalise(file.file_path)) for file in three_appends.data_files()]
    three_appends.run(Operation.COMPACT)
    outcome = three_appends.run(Operation.EXPIRE_SNAPSHOTS)
    assert all(path.exists() for path in data)
    assert outcome.files_deleted
    assert all("/metadata/" in path for path in outcome.files_deleted)


def test_expiry_leaves_the_files_of_an_imported_table_of_another_format(three_appends: MaintainedTable) -> None:
    imported = Path(three_appends.plant("imported/day=1/x.parquet"))
    shutil.copy(Path(normalise(three_appends.data_files()[0].file_path)), imported)
    three_appends.plant("imported/_delta_log/00000000000000000000.json")
    three_appends.table.add_files([str(imported)])
    data = [Path(normalise(file.file_path)) for file in three_appends.data_files()]
    three_appends.run(Operation.COMPACT)
    three_appends.run(Operation.EXPIRE_SNAPSHOTS)
    assert [path for path in data if path.exists()] == [imported]
