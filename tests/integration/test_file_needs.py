"""Who needs a file: other tables, other catalogs, newer heads of the same table, and what a deployment allows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.errors import LocationRefused
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import normalise
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table
from support.readers import pyiceberg_rows
from support.served import age_everything, files_of, ids, maintain, second_catalog


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Three appends."""
    made = new_table(local_catalog, tmp_path)
    made.fill(3)
    return made


class TestOtherTables:
    def test_expiry_spares_what_the_same_table_under_another_name_needs(self, table: MaintainedTable) -> None:
        twin = table.pyiceberg.register_table("ns.twin", table.loaded.metadata_location)
        maintain(table, table.pyiceberg, "ns.t")
        assert ids(twin) == [0, 1, 10, 11, 20, 21]

    def test_expiry_spares_what_another_catalog_needs(self, table: MaintainedTable, tmp_path: Path) -> None:
        """A migration: both catalogs are served, and the older entry is expired."""
        other = second_catalog(tmp_path)
        migrated = other.register_table("ns.t", table.loaded.metadata_location)
        maintain(table, other, "ns.t", operations="compact", min_input_files="9")
        maintain(table, table.pyiceberg, "ns.t", served=other)
        assert ids(migrated) == [0, 1, 10, 11, 20, 21]

    @pytest.mark.parametrize("in_other_catalog", [False, True])
    def test_expiry_spares_the_files_of_a_guest(
        self, table: MaintainedTable, tmp_path: Path, *, in_other_catalog: bool
    ) -> None:
        """Its owner hears of a guest that any pass has looked at."""
        catalog = second_catalog(tmp_path) if in_other_catalog else table.pyiceberg
        guest = catalog.create_table("ns.guest", schema=ID_AND_PART)
        guest.add_files(files_of(table.table))
        maintain(table, catalog, "ns.guest", operations="expire_snapshots")
        outcomes = maintain(table, table.pyiceberg, "ns.t", served=catalog)
        assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
        assert ids(guest) == ids(table.table) == [0, 1, 10, 11, 20, 21]

    def test_the_metadata_that_another_entry_is_at_outlives_the_log(self, table: MaintainedTable) -> None:
        with table.table.transaction() as transaction:
            transaction.set_properties(
                {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
            )
        twin = table.pyiceberg.register_table("ns.twin", table.loaded.metadata_location)
        maintain(table, table.pyiceberg, "ns.twin", operations="compact", min_input_files="9")
        for number in range(3):
            maintain(
                table,
                table.pyiceberg,
                "ns.t",
                operations="compact",
                rewrite_all="true",
                target_file_size_mb=f"{number + 1}",
            )
        assert ids(twin) == [0, 1, 10, 11, 20, 21]

    def test_a_guest_that_was_renamed_since_is_found_by_its_uuid(self, table: MaintainedTable, tmp_path: Path) -> None:
        other = second_catalog(tmp_path)
        guest = other.create_table("ns.guest", schema=ID_AND_PART)
        guest.add_files(files_of(table.table))
        maintain(table, other, "ns.guest", operations="compact", min_input_files="9")
        other.rename_table("ns.guest", "ns.renamed")
        other.create_table("ns.guest", schema=ID_AND_PART)
        maintain(table, table.pyiceberg, "ns.t", served=other)
        assert ids(other.load_table("ns.renamed")) == [0, 1, 10, 11, 20, 21]

    def test_a_guest_that_let_go_keeps_nothing(self, table: MaintainedTable) -> None:
        guest = table.pyiceberg.create_table("ns.guest", schema=ID_AND_PART)
        files = files_of(table.table)
        guest.add_files(files)
        maintain(table, table.pyiceberg, "ns.guest")
        assert all(Path(normalise(path)).exists() for path in files), "they are the owner's to delete"
        maintain(table, table.pyiceberg, "ns.t")
        assert not any(Path(normalise(path)).exists() for path in files)
        assert ids(guest) == ids(table.table) == [0, 1, 10, 11, 20, 21]

    def test_a_table_whose_data_lie_elsewhere_is_still_cleaned(self, table: MaintainedTable, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        honest = table.create_beside(
            "ns.honest", f"{table.folder.parent.as_uri()}/honest", **{"write.data.path": elsewhere.as_uri()}
        )
        for number in range(3):
            honest.append(table.new_rows(number))
        maintain(table, table.pyiceberg, "ns.honest")
        assert ids(honest) == [0, 1, 2]
        assert len([path for path in elsewhere.rglob("*") if path.is_file()]) == 1

    def test_a_table_that_is_not_maintained_is_not_looked_at(self, table: MaintainedTable) -> None:
        table.maintain(maintenance_enabled="false")
        assert list(table.state.claims.of_catalog(table.catalog.name, table.catalog.warehouse)) == []


class TestAnotherTenant:
    """Whoever may set properties of one table points it at another tenant's files."""

    @pytest.fixture
    def thief(self, table: MaintainedTable) -> Table:
        victim = table.table
        return table.create_beside(
            "ns.thief", f"{table.folder.parent.as_uri()}/thief", **{"write.data.path": f"{victim.location()}/data"}
        )

    def test_its_files_survive_the_expiry_of_the_other(self, table: MaintainedTable, thief: Table) -> None:
        thief.add_files(files_of(table.table))
        maintain(table, table.pyiceberg, "ns.thief")
        assert ids(table.table) == [0, 1, 10, 11, 20, 21]
        assert all(Path(normalise(path)).exists() for path in files_of(table.table))

    def test_a_bound_of_the_deployment_refuses_to_read_them(self, table: MaintainedTable, thief: Table) -> None:
        first, *_ = files_of(table.table)
        thief.add_files(files_of(table.table))
        with thief.transaction() as transaction:
            transaction.remove_properties("write.data.path")
        before = table.files()
        bound = {ALLOWED_PREFIXES: f"*={table.folder.parent.as_uri()}/thief"}
        outcomes = maintain(table, table.pyiceberg, "ns.thief", bound)
        assert outcomes["compact"].status is Status.REFUSED
        assert outcomes["compact"].reason is not None
        assert "lies outside" in outcomes["compact"].reason
        assert Path(normalise(first)).parent.as_posix() in outcomes["compact"].reason
        assert table.files() == before
        assert ids(thief.refresh()) == [0, 1, 10, 11, 20, 21]

    def test_a_bound_of_the_deployment_refuses_to_write_there(self, table: MaintainedTable, thief: Table) -> None:
        for number in range(3):
            thief.append(table.new_rows(number))
        outcomes = maintain(
            table, table.pyiceberg, "ns.thief", {ALLOWED_PREFIXES: f"*={table.folder.parent.as_uri()}/thief"}
        )
        assert outcomes["compact"].status is Status.REFUSED
        assert f"{table.metadata.location}/data" in str(outcomes["compact"].reason)

    def test_a_table_outside_the_bound_is_left_alone_altogether(self, table: MaintainedTable) -> None:
        before = table.files()
        bound = {ALLOWED_PREFIXES: f"*={table.metadata.metadata_directory}"}
        outcomes = maintain(table, table.pyiceberg, "ns.t", bound)
        assert {part.status for part in outcomes.values()} == {Status.REFUSED}
        with pytest.raises(LocationRefused, match=r"metadata\.json lies outside s3://somewhere/ns, "):
            maintain(table, table.pyiceberg, "ns.t", {ALLOWED_PREFIXES: "*=s3://somewhere/{namespace}/"})
        assert table.files() == before


class TestStaleEntries:
    """The catalog's entry is older than the table."""

    @pytest.fixture
    def restored(self, table: MaintainedTable, tmp_path: Path) -> str:
        """The pointer database comes back from a backup; the metadata file of the newest head."""
        shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
        table.append(30)
        table.append(40)
        newest = table.loaded.metadata_location
        shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
        return newest

    def rows(self, location: str) -> list[int]:
        return sorted(row["id"] for row in pyiceberg_rows(location))

    @pytest.mark.parametrize("operation", [Operation.REMOVE_ORPHANS, Operation.EXPIRE_SNAPSHOTS])
    def test_nothing_is_deleted_while_a_newer_head_lies_there(
        self, table: MaintainedTable, restored: str, operation: Operation
    ) -> None:
        age_everything(table)
        before = table.files()
        outcome = table.run(operation)
        assert outcome.status is Status.REFUSED
        assert restored.rpartition("/")[2] in str(outcome.reason)
        assert "point the entry at the newest metadata file" in str(outcome.reason)
        assert table.files() == before
        assert self.rows(restored) == [0, 1, 10, 11, 20, 21, 30, 40]

    @pytest.mark.parametrize("how", ["keys in order", "without a UUID"])
    @pytest.mark.parametrize("operation", [Operation.REMOVE_ORPHANS, Operation.EXPIRE_SNAPSHOTS])
    def test_the_newer_head_is_known_however_it_is_written(
        self, table: MaintainedTable, restored: str, operation: Operation, how: str
    ) -> None:
        """Some catalogs write the UUID behind the snapshots; v1 tables may have none."""
        for file in Path(normalise(restored)).parent.glob("*.metadata.json"):
            document = json.loads(file.read_text())
            if how == "without a UUID":
                del document["table-uuid"]
                document["format-version"] = 1
            file.write_text(json.dumps(document, sort_keys=True))
        age_everything(table)
        before = table.files()
        outcome = table.run(operation)
        assert outcome.status is Status.REFUSED
        assert restored.rpartition("/")[2] in str(outcome.reason)
        assert table.files() == before

    def test_an_older_head_that_went_its_own_way_loses_nothing_to_expiry(
        self, table: MaintainedTable, tmp_path: Path
    ) -> None:
        """All that it has is in the entry, too, until the expiry."""
        other = second_catalog(tmp_path).register_table("ns.t", table.loaded.metadata_location)
        for number in range(2):
            with other.transaction() as transaction:
                transaction.set_properties(number=str(number))
        table.append(30)
        outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
        assert outcome.status is Status.REFUSED
        assert other.metadata_location.rpartition("/")[2] in str(outcome.reason)
        assert ids(other) == [0, 1, 10, 11, 20, 21]

    def test_a_whole_pass_leaves_the_newer_head_complete(self, table: MaintainedTable, restored: str) -> None:
        """Its own compaction moves the stale entry on, beside the newer head."""
        age_everything(table)
        table.maintain()
        age_everything(table)
        table.maintain()
        assert self.rows(restored) == [0, 1, 10, 11, 20, 21, 30, 40]
        assert table.ids() == [0, 1, 10, 11, 20, 21]

    def test_what_one_newer_file_needs_is_spared_and_orphans_go(self, table: MaintainedTable, tmp_path: Path) -> None:
        """It may be of a swap that crashed."""
        shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
        table.append(30)
        newest = table.loaded.metadata_location
        shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
        orphan = table.plant("data/orphan.parquet")
        age_everything(table)
        outcome = table.run(Operation.REMOVE_ORPHANS)
        assert [normalise(path) for path in outcome.files_deleted] == [orphan]
        assert self.rows(newest) == [0, 1, 10, 11, 20, 21, 30]


class TestFolders:
    """Only where the table has ever had files are unreferenced ones its orphans."""

    def test_data_of_an_unknown_neighbour_stays_unless_its_folder_is_named(self, table: MaintainedTable) -> None:
        theirs = table.plant("tenant/data/live.parquet")
        ours = table.plant("data/orphan.parquet")
        outcome = table.run(Operation.REMOVE_ORPHANS)
        assert [normalise(path) for path in outcome.files_deleted] == [ours]
        assert outcome.metrics["remove_orphans.files_in_other_folders"] == 1
        assert "orphan_sweep_prefixes" in outcome.summary
        assert "tenant/data/live.parquet" in outcome.summary
        named = table.run(Operation.REMOVE_ORPHANS, orphan_sweep_prefixes=f"{table.metadata.location}/tenant")
        assert [normalise(path) for path in named.files_deleted] == [theirs]

    def test_what_a_crash_left_in_a_new_partition_goes(self, table: MaintainedTable) -> None:
        ours = {table.plant("data/part=new/crash.parquet"), table.plant("data/0110/1010/0011/10010110/crash.parquet")}
        assert {normalise(path) for path in table.run(Operation.REMOVE_ORPHANS).files_deleted} == ours

    def test_a_folder_that_history_has_forgotten_is_still_swept(self, table: MaintainedTable) -> None:
        """Imported files lay there; the snapshots that knew them have expired since."""
        imported = Path(table.plant("imported/day=1/x.parquet"))
        shutil.copy(Path(normalise(table.data_files()[0].file_path)), imported)
        table.table.add_files([str(imported)])
        table.maintain(operations="compact,expire_snapshots")
        assert not imported.exists()
        ours = table.plant("imported/day=2/crash.parquet")
        assert [normalise(path) for path in table.run(Operation.REMOVE_ORPHANS).files_deleted] == [ours]

    def test_a_folder_that_is_named_like_a_hash_is_no_sign_of_one(self, table: MaintainedTable) -> None:
        """What lies beside it may be somebody else's."""
        imported = Path(table.plant("imported/deadbeef/x.parquet"))
        shutil.copy(Path(normalise(table.data_files()[0].file_path)), imported)
        table.table.add_files([str(imported)])
        theirs = table.plant("imported/theirs/live.parquet")
        ours = table.plant("imported/deadbeef/crash.parquet")
        assert [normalise(path) for path in table.run(Operation.REMOVE_ORPHANS).files_deleted] == [ours]
        assert Path(theirs).exists()

    def test_files_in_too_many_folders_do_not_make_all_folders_the_tables(
        self, table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("icekeeper.pass_context.stores._MOST_ROOTS", 2)
        for name in ("a", "b", "c"):
            imported = Path(table.plant(f"imported/{name}/x.parquet"))
            shutil.copy(Path(normalise(table.data_files()[0].file_path)), imported)
            table.table.add_files([str(imported)], check_duplicate_files=False)
        theirs = table.plant("theirs/live.parquet")
        assert table.run(Operation.REMOVE_ORPHANS).files_deleted == ()
        assert Path(theirs).exists()
