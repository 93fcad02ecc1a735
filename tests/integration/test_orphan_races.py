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
from icekeeper.storage.listing import Listed, ListedObject
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.maintained_table import (
    ID_AND_PART,
    MaintainedTable,
    assert_refused,
    grow_old,
    metadata_of,
    new_table,
    sweep,
)
from support.moments import Moment, at
from support.scripted_catalog import ScriptedCatalog
from support.tables import new_document

# Orphan removal while others commit, drop and delete between listing, plan and deletion.


def copy_of_live(table: MaintainedTable, name: str) -> Path:
    """A copy of a data file, which a writer may add to the table."""
    source = Path(normalise(table.data_files()[0].file_path))
    return Path(table.plant(f"data/{name}.parquet", source.read_bytes()))


def test_files_that_others_reference_during_the_sweep_are_kept(old_table: MaintainedTable) -> None:
    """The plan of a dry run keeps them, too (rule: orphans-outlive-the-grace-period)."""
    table = old_table

    def adopt(path: Path) -> None:
        table.table.add_files([path.as_uri()])

    planned, first, second = (copy_of_live(table, name) for name in ("planned", "first", "second"))
    with at(Moment.AFTER_LISTING, lambda: adopt(planned)):
        assert set(map(normalise, sweep(table, dry_run=True).files_planned)) == {str(first), str(second)}
    with at(Moment.AFTER_LISTING, lambda: adopt(first)):
        assert set(map(normalise, sweep(table).files_deleted)) == {str(second)}
    adopted, orphan = copy_of_live(table, "adopted"), table.plant("data/orphan.parquet")
    with at(Moment.DELETION_DECIDED, lambda: adopt(adopted)):
        outcome = sweep(table)
    assert set(map(normalise, outcome.files_planned)) == {str(adopted), orphan}
    assert set(map(normalise, outcome.files_deleted)) == {orphan}
    assert table.verify().ok
    # A concurrent writer with delete-after-commit removes old metadata files.
    old = Path(table.plant("metadata/old.metadata.json", metadata_of(table), days_old=9000))
    with at(Moment.AFTER_LISTING, old.unlink):
        assert sweep(table).status is Status.SUCCEEDED


@pytest.mark.parametrize("moment", [Moment.AFTER_LISTING, Moment.DELETION_DECIDED])
def test_a_table_replaced_by_another_is_left_alone(old_table: MaintainedTable, moment: Moment) -> None:
    """It is dropped and created again in the same place: its files are listed, but nothing references them."""

    def replace() -> None:
        location = old_table.metadata.location
        old_table.pyiceberg.drop_table("ns.t")
        old_table.pyiceberg.create_table("ns.t", schema=ID_AND_PART, location=location)

    old_table.plant("data/orphan.parquet")
    before = old_table.files()
    with at(moment, replace):
        outcome = sweep(old_table)
    assert outcome.status is Status.REFUSED
    assert old_table.files() >= before


def test_a_table_replaced_by_a_table_with_metadata_elsewhere_is_left_alone(
    local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    """No metadata file in the listing shows the replacement."""
    aside = {"write.metadata.path": (tmp_path / "aside").as_uri()}
    table = new_table(local_catalog, tmp_path, allowed=tmp_path, properties=aside)
    table.append(1)
    grow_old(Path(path) for path in table.files())
    location = table.metadata.location

    def replace() -> None:
        table.pyiceberg.drop_table("ns.t")
        table.pyiceberg.create_table("ns.t", schema=ID_AND_PART, location=location, properties=aside)

    before = table.files()
    with at(Moment.AFTER_LISTING, replace):
        outcome = sweep(table)
    assert outcome.status is Status.REFUSED
    assert table.files() == before


def test_gc_disabled_forbids_deletion_at_any_moment(old_table: MaintainedTable) -> None:
    """(rule: gc-disabled-forbids-deletion)"""

    def enable(value: str) -> None:
        old_table.table.transaction().set_properties({"gc.enabled": value}).commit_transaction()

    orphan = old_table.plant("data/orphan.parquet")
    for moment, status in ((Moment.DELETION_DECIDED, Status.REFUSED), (Moment.OPERATION_STARTED, Status.SKIPPED)):
        enable("true")
        with at(moment, lambda: enable("false")):
            outcome = sweep(old_table)
        assert outcome.status is status
        assert "gc.enabled is false" in (outcome.reason or "")
        assert orphan in old_table.files()


def test_a_table_that_shares_the_location_is_read_before_each_batch(old_table: MaintainedTable) -> None:
    """Its second entry appends on its own, and adopts a file between plan and deletion."""
    table = old_table
    again, before = table.pyiceberg.register_table("ns.again", table.loaded.metadata_location), table.files()
    again.append(table.new_rows(7))
    appended = table.files() - before
    grow_old(map(Path, appended))
    adopted, orphan = copy_of_live(table, "adopted"), table.plant("data/orphan.parquet")
    with at(Moment.DELETION_DECIDED, lambda: again.add_files([adopted.as_uri()])):
        outcome = sweep(table)
    assert set(map(normalise, outcome.files_planned)) == {str(adopted), orphan}
    assert set(map(normalise, outcome.files_deleted)) == {orphan}
    assert (len(appended), appended <= table.files()) == (4, True)


@pytest.mark.parametrize("moment", [Moment.AFTER_LISTING, Moment.DELETION_DECIDED])
def test_a_table_that_shares_the_location_must_be_readable(old_table: MaintainedTable, moment: Moment) -> None:
    again = old_table.pyiceberg.register_table("ns.again", old_table.loaded.metadata_location)
    again.append(old_table.new_rows(7))
    orphan = old_table.plant("data/orphan.parquet")
    with at(moment, Path(normalise(again.refresh().metadata_location)).unlink):
        outcome = sweep(old_table)
    assert outcome.status is Status.REFUSED
    assert "ns.again" in (outcome.reason or "")
    assert orphan in old_table.files()


# A listing that lacks existing files: something else answers instead of the store (rule: trust-only-own-answers).


def test_an_empty_listing_does_not_prove_that_there_is_no_newer_head(
    three_appends: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 reads a proxy's page, or an answer without a body, with status 200 as an empty listing."""
    monkeypatch.setattr(Storage, "list_unread", lambda self, prefix: iter(()))
    before = three_appends.files()
    outcome = three_appends.run(Operation.EXPIRE_SNAPSHOTS)
    assert (outcome.status.value, before - three_appends.files()) == ("refused", set())
    assert f"lacks {three_appends.metadata_location}, which exists" in (outcome.reason or "")
    monkeypatch.undo()
    assert three_appends.run(Operation.EXPIRE_SNAPSHOTS).status.value == "succeeded"


def test_a_metadata_file_that_the_catalog_dropped_does_not_count_as_missing(
    three_appends: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog drops it after many commits of others."""
    loaded, list_all = three_appends.loaded, Storage.list_if_allowed
    current = Path(normalise(loaded.metadata_location))

    def late(self: Storage, prefix: str) -> Sequence[ListedObject] | None:
        current.unlink()
        return list_all(self, prefix)

    monkeypatch.setattr(Storage, "list_if_allowed", late)
    assert len(list_beside(three_appends.storage, loaded)) == 3


# Orphan removal among unexpected file names and listings.


def test_orphans_of_any_name_are_removed_and_counted_once(three_appends: MaintainedTable) -> None:
    """A file whose name is not text is kept and stops nothing; a listing may name each file twice."""
    table = three_appends
    names = ("a b", "a%20b", "\u00e4", "a\nb", "a?b#c", "%ff", "a\\b", "+", "a:b", "'\"", "%")
    orphans = {table.plant(f"data/{name}.parquet") for name in names}
    strange = Path(os.fsdecode(os.path.join(os.fsencode(table.folder / "data"), b"\xff\xfe.parquet")))
    strange.write_bytes(b"x")
    grow_old([strange])
    listing = Storage.list_unread

    def twice(self: Storage, prefix: str) -> Iterator[Listed]:
        found = list(listing(self, prefix))
        return iter([*found, *reversed(found)])

    with mock.patch.object(Storage, "list_unread", twice):
        outcome = table.run(Operation.REMOVE_ORPHANS)
    assert (outcome.status, outcome.summary) == (Status.SUCCEEDED, f"removed {len(names)} orphan file(s)")
    assert {*map(normalise, outcome.files_deleted)} == {*map(normalise, orphans)}
    assert not orphans & table.files()
    assert strange.exists()
    assert table.verify().ok


@pytest.mark.parametrize("location", ["t/", "t%20", "ä 2"])
def test_siblings_with_a_common_name_prefix_are_left_alone(
    local_catalog: SqlCatalog, tmp_path: Path, location: str
) -> None:
    warehouse = tmp_path / "warehouse"
    table = new_table(local_catalog, tmp_path, location=f"{warehouse.as_uri()}/{location}", appends=2)
    siblings = [f"{location.rstrip('/')}{more}/data/x.parquet" for more in ("2", "-x", "%20", ".bak")]
    for sibling in siblings:
        (warehouse / sibling).parent.mkdir(parents=True)
        (warehouse / sibling).write_bytes(b"x")
        grow_old([warehouse / sibling])
    (warehouse / location / "data" / "orphan.parquet").write_bytes(b"x")
    outcomes = table.maintain("compact,expire_snapshots,remove_orphans").operations
    assert [outcome.status for outcome in outcomes] == [Status.SUCCEEDED] * 3
    assert outcomes[-1].summary == "removed 1 orphan file(s)"
    assert table.readers_agree() == [0, 1, 10, 11]
    assert all((warehouse / sibling).exists() for sibling in siblings)


# Orphans and other tables: nested, outer, moved, at the same location, registered twice, or unreadable.


def test_a_nested_table_is_not_swept_with_the_outer_table(old_table: MaintainedTable) -> None:
    """Everything below its location is left to its own sweeps, even orphans, stray metadata and empty folders."""
    nested = old_table.create_beside("ns.nested", f"{old_table.metadata.location}/sub/nested")
    nested.append(old_table.new_rows(1))
    theirs = old_table.plant("sub/nested/data/orphan.parquet")
    text = Path(normalise(nested.metadata_location)).read_text()
    stray = text.replace(str(nested.metadata.table_uuid), "0c9e4b1e-3b07-4f5a-9a1d-2f6f7e1c8a55")
    old_table.plant("sub/nested/metadata/00009-stray.metadata.json", stray.encode())
    ours, empty = old_table.plant("sub/orphan.parquet"), old_table.folder / "sub/nested/data/empty"
    empty.mkdir()
    grow_old([*map(Path, old_table.files()), empty])
    before = old_table.files()
    outcome = sweep(old_table, orphan_sweep_prefixes=f"{old_table.metadata.location}/sub")
    assert set(map(normalise, outcome.files_deleted)) == {ours}
    assert old_table.files() == before - {ours}
    assert (theirs in old_table.files(), empty.exists()) == (True, True)
    assert outcome.metrics["remove_orphans.files_of_other_tables"] == 2


def test_a_moved_table_protects_the_files_that_it_left(old_table: MaintainedTable) -> None:
    """Its folders are elsewhere; only files that its metadata names are here."""
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


def test_a_sweep_is_refused_where_another_table_may_need_files(old_table: MaintainedTable) -> None:
    """If there are no orphans, no other table is loaded."""
    table, location = old_table, old_table.metadata.location

    class Secretive(ScriptedCatalog):
        def list_tables(self) -> Iterator[TableName]:
            raise StorageError("listing is not allowed")

    lost = table.create_beside("ns.lost", f"{location}-lost")
    metadata_file = Path(normalise(lost.metadata_location))
    metadata_file.write_text("{")
    assert sweep(table).summary == "removed 0 orphan file(s)"
    assert_refused(table, "ns.lost", "cannot be read")
    table.pyiceberg.drop_table("ns.lost")

    assert_refused(table, "listing is not allowed", catalog=Secretive(table.catalog))

    # Metadata of a table that is in no catalog (rule: unknown-metadata-stops-sweeps).
    foreign = new_document(f"{location}/nested", 2)
    theirs = table.plant("nested/metadata/00000-x.metadata.json", json.dumps(foreign).encode(), days_old=0)
    assert_refused(table, foreign["table-uuid"], f"{location}/nested")
    Path(theirs).unlink()

    guest = table.create_beside("ns.guest", f"{location}-guest")
    guest.transaction().set_properties({"write.data.path": location}).commit_transaction()
    assert_refused(table, "ns.guest", str(guest.metadata.table_uuid))
    table.pyiceberg.drop_table("ns.guest")

    # Two tables at the same location; the metadata of the other is elsewhere, so only the catalog shows it.
    aside = {"write.metadata.path": (table.folder.parent / "aside").as_uri()}
    twin = table.create_beside("ns.twin", location, **aside)
    assert_refused(table, "ns.twin", str(twin.metadata.table_uuid), table.metadata.uuid or "")


# Tables of other formats in the table's folder: no Iceberg metadata names their files.

MARKERS = [
    *("_delta_log/00000000000000000000.json", ".hoodie/hoodie.properties", "schema/schema-0"),
    *("_versions/1.manifest", "_versions/latest_version_hint.json"),  # Lance
]


def test_files_of_nested_tables_of_other_formats_are_not_orphans(three_appends: MaintainedTable) -> None:
    """They are below the table's data folder, and only the garbage of Iceberg's writers is recognisable
    (rule: sweep-iceberg-tables-only)."""
    theirs = [three_appends.plant(f"data/nested{number}/day=1/live.parquet") for number in range(len(MARKERS))]
    for number, marker in enumerate(MARKERS):
        three_appends.plant(f"data/nested{number}/{marker}", days_old=0)
    ours = three_appends.plant("data/orphan.parquet")
    outcome = three_appends.run(Operation.REMOVE_ORPHANS)
    assert [normalise(path) for path in outcome.files_deleted] == [ours]
    assert set(theirs) <= three_appends.files()
    assert outcome.metrics["remove_orphans.files_of_other_formats"] >= len(MARKERS)
    assert "data/nested0, a table of another format" in outcome.summary


def test_data_files_are_kept_if_the_table_also_has_another_format(three_appends: MaintainedTable) -> None:
    """Delta Lake or Hudi use the same folder: their logs may name files that no Iceberg metadata names, and files
    that our compaction replaced; Iceberg's own metadata files are removed."""
    theirs = three_appends.plant("data/older-version.parquet")
    three_appends.plant("_delta_log/00000000000000000000.json")
    outcome = three_appends.run(Operation.REMOVE_ORPHANS)
    assert outcome.files_deleted == ()
    assert "they stay" in outcome.summary
    data = [theirs, *(normalise(file.file_path) for file in three_appends.data_files())]
    three_appends.run(Operation.COMPACT)
    outcome = three_appends.run(Operation.EXPIRE_SNAPSHOTS)
    assert set(data) <= three_appends.files()
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
