"""What needs a file: other tables, other catalogs, and newer heads of the same table."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.administration.pins import declare_load, stage_load
from icekeeper.administration.settings import safety_bounds
from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import LocationRefused
from icekeeper.machine.clock import system_clock
from icekeeper.maintenance.bucket_orphans import run_bucket_pass
from icekeeper.model import TableName
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.pipeline.control_bucket import Work
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.glue_job import End, run_work
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.runtime import Runtime
from icekeeper.state.identity import Entry
from icekeeper.state.open import open_state
from icekeeper.state.staging import LoadState
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.maintained_table import EAGER, ID_AND_PART, NAME, MaintainedTable, new_table, same_clock
from support.pipeline_deployment import Pipeline
from support.readers import pyiceberg_ids
from support.scripted_rest import hostile_rest
from support.served import age_everything, files_of, ids, maintain, second_catalog


@pytest.fixture
def table(three_appends: MaintainedTable) -> MaintainedTable:
    return three_appends


class TestOtherTables:
    def test_expiry_keeps_the_files_of_guests(self, table: MaintainedTable, tmp_path: Path) -> None:
        """Passes have looked at guests here, in another catalog and renamed since; at a further guest, no pass has."""
        table.maintain(maintenance_enabled="false")
        assert list(table.state.claims.of_catalog(table.catalog.id)) == [], "a disabled table is not looked at"
        table.append(30, 31)
        here, other = table.pyiceberg, second_catalog(tmp_path)
        files = sorted(files_of(table.table))
        names = {"ns.seen": here, "ns.unseen": here, "ns.far": other, "ns.renamed": other}
        guests = {name: catalog.create_table(name, schema=ID_AND_PART) for name, catalog in names.items()}
        for guest, path in zip(guests.values(), files, strict=True):
            guest.add_files([path])
        rows = {name: ids(guest) for name, guest in guests.items()}
        for name in ("ns.seen", "ns.far", "ns.renamed"):
            maintain(table, names[name], name, operations="compact", min_input_files="9")
        other.rename_table("ns.renamed", "ns.now")
        other.create_table("ns.renamed", schema=ID_AND_PART)
        outcomes = maintain(table, here, "ns.t", served=other)
        assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
        guests["ns.renamed"] = other.load_table("ns.now")
        assert {name: ids(guest) for name, guest in guests.items()} == rows
        assert sorted(i for found in rows.values() for i in found) == ids(table.table) == [0, 1, 10, 11, 20, 21, 30, 31]

    def test_files_that_a_guest_dropped_are_deleted_by_their_owner(self, table: MaintainedTable) -> None:
        guest = table.pyiceberg.create_table("ns.guest", schema=ID_AND_PART)
        files = files_of(table.table)
        guest.add_files(files)
        maintain(table, table.pyiceberg, "ns.guest")
        assert all(Path(normalise(path)).exists() for path in files), "they are the owner's to delete"
        maintain(table, table.pyiceberg, "ns.t")
        assert not any(Path(normalise(path)).exists() for path in files)
        assert ids(guest) == ids(table.table) == [0, 1, 10, 11, 20, 21]

    def test_a_table_with_data_elsewhere_is_still_cleaned(self, table: MaintainedTable, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        honest = table.create_beside(
            "ns.honest", f"{table.folder.parent.as_uri()}/honest", **{"write.data.path": elsewhere.as_uri()}
        )
        for number in range(3):
            honest.append(table.new_rows(number))
        maintain(table, table.pyiceberg, "ns.honest")
        assert ids(honest) == [0, 1, 2]
        assert len([path for path in elsewhere.rglob("*") if path.is_file()]) == 1


class TestAnotherTenant:
    """A tenant that may set properties of one table points it at another tenant's files."""

    def test_the_victims_files_survive_and_bounds_refuse_to_read_and_write(self, table: MaintainedTable) -> None:
        victim = table.table
        home = table.folder.parent.as_uri()
        before, bound = table.files(), {ALLOWED_PREFIXES: f"*={table.metadata.metadata_directory}"}
        outcomes = maintain(table, table.pyiceberg, "ns.t", bound)
        assert {part.status for part in outcomes.values()} == {Status.REFUSED}
        with pytest.raises(LocationRefused, match=r"metadata\.json is outside s3://somewhere/ns, "):
            maintain(table, table.pyiceberg, "ns.t", {ALLOWED_PREFIXES: "*=s3://somewhere/{namespace}/"})
        assert table.files() == before

        data_path = {"write.data.path": f"{victim.location()}/data"}
        thief = table.create_beside("ns.thief", f"{home}/thief", **data_path)
        for number in range(3):
            thief.append(table.new_rows(number))
        bound = {ALLOWED_PREFIXES: f"*={home}/thief"}
        refused = maintain(table, table.pyiceberg, "ns.thief", bound)["compact"]
        assert refused.status is Status.REFUSED
        assert data_path["write.data.path"] in str(refused.reason)

        theirs = files_of(table.table)
        thief.delete("id >= 0")
        thief.add_files(theirs)
        with thief.transaction() as transaction:
            transaction.remove_properties("write.data.path")
        before = table.files()
        refused = maintain(table, table.pyiceberg, "ns.thief", bound)["compact"]
        assert refused.status is Status.REFUSED
        assert "is outside" in str(refused.reason)
        assert Path(normalise(theirs[0])).parent.as_posix() in str(refused.reason)
        assert table.files() == before
        assert ids(thief.refresh()) == [0, 1, 10, 11, 20, 21]

        with thief.transaction() as transaction:
            transaction.set_properties(data_path)
        maintain(table, table.pyiceberg, "ns.thief")
        assert ids(table.table) == [0, 1, 10, 11, 20, 21]
        assert all(Path(normalise(path)).exists() for path in theirs)


class TestStaleEntries:
    """The catalog's entry is older than the table."""

    def test_a_newer_head_stops_every_deletion(self, table: MaintainedTable, tmp_path: Path) -> None:
        """In any layout: some catalogs write the UUID after the snapshots, and v1 tables may have no UUID."""
        newest = restored(table, tmp_path / "catalog.db")
        documents = {file: file.read_text() for file in Path(normalise(newest)).parent.glob("*.metadata.json")}
        before = table.files()
        for how in ("as it was", "keys in order", "without a UUID"):
            for file, text in documents.items() if how != "as it was" else ():
                document = json.loads(text)
                if how == "without a UUID":
                    del document["table-uuid"]
                    document["format-version"] = 1
                file.write_text(json.dumps(document, sort_keys=True))
            age_everything(table)
            for operation in DELETING:
                outcome = table.run(operation)
                assert outcome.status is Status.REFUSED, how
                assert newest.rpartition("/")[2] in str(outcome.reason), how
                assert "point the entry at the newest metadata file" in str(outcome.reason), how
                assert table.files() == before, how
        for file, text in documents.items():
            file.write_text(text)
        protected = {"orphan_protected_prefixes": f"{table.metadata.location}/metadata"}
        for operation in DELETING:
            assert_refused(table, operation, newest, **protected)

        # The compaction of a whole pass advances the stale entry beside the newer head.
        for _ in range(2):
            age_everything(table)
            table.maintain()
        assert pyiceberg_ids(newest) == [0, 1, 10, 11, 20, 21, 30, 40]
        assert table.ids() == [0, 1, 10, 11, 20, 21]

    def test_expiry_is_refused_beside_a_diverged_head(self, table: MaintainedTable, tmp_path: Path) -> None:
        """Until the expiry, the entry references everything that the head references."""
        other = second_catalog(tmp_path).register_table("ns.t", table.loaded.metadata_location)
        for number in range(2):
            with other.transaction() as transaction:
                transaction.set_properties(number=str(number))
        table.append(30)
        outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
        assert outcome.status is Status.REFUSED
        assert other.metadata_location.rpartition("/")[2] in str(outcome.reason)
        assert ids(other) == [0, 1, 10, 11, 20, 21]

    def test_files_of_a_newer_metadata_file_are_kept(self, table: MaintainedTable, tmp_path: Path) -> None:
        """It may belong to a swap that crashed."""
        shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
        table.append(30)
        newest = table.loaded.metadata_location
        shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
        orphan = table.plant("data/orphan.parquet")
        age_everything(table)
        outcome = table.run(Operation.REMOVE_ORPHANS)
        assert [normalise(path) for path in outcome.files_deleted] == [orphan]
        assert pyiceberg_ids(newest) == [0, 1, 10, 11, 20, 21, 30]


class TestFolders:
    """Unreferenced files are orphans only in folders in which the table has had files."""

    def test_data_of_an_unknown_neighbour_is_kept_unless_its_folder_is_named(self, table: MaintainedTable) -> None:
        """Only folders in which the table keeps files are swept (rule: sweep-only-table-folders)."""

        def add_imported(relative: str) -> Path:
            imported = Path(table.plant(relative))
            shutil.copy(Path(normalise(table.data_files()[0].file_path)), imported)
            table.table.add_files([str(imported)])
            return imported

        imported = add_imported("imported/day=1/x.parquet")
        table.maintain(operations="compact,expire_snapshots")
        assert not imported.exists()
        add_imported("taken/deadbeef/x.parquet")  # a name like a hash; files beside it may belong to another table
        theirs = table.plant("tenant/data/live.parquet")
        beside = table.plant("taken/theirs/live.parquet")
        ours = {
            table.plant(relative)
            for relative in (
                "data/orphan.parquet",
                "data/part=new/crash.parquet",
                "data/0110/1010/0011/10010110/crash.parquet",
                "imported/day=2/crash.parquet",  # a folder that only expired snapshots named
                "taken/deadbeef/crash.parquet",
            )
        }
        outcome = table.run(Operation.REMOVE_ORPHANS)
        assert {normalise(path) for path in outcome.files_deleted} == ours
        assert outcome.metrics["remove_orphans.files_in_other_folders"] == 2
        assert "orphan_sweep_prefixes" in outcome.summary
        assert "/live.parquet" in outcome.summary
        named = table.run(Operation.REMOVE_ORPHANS, orphan_sweep_prefixes=f"{table.metadata.location}/tenant")
        assert [normalise(path) for path in named.files_deleted] == [theirs]
        assert Path(beside).exists()

    def test_files_in_too_many_folders_do_not_make_all_folders_the_tables(
        self, table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("icekeeper.pass_context.footprint._MOST_ROOTS", 2)
        for name in ("a", "b", "c"):
            imported = Path(table.plant(f"imported/{name}/x.parquet"))
            shutil.copy(Path(normalise(table.data_files()[0].file_path)), imported)
            table.table.add_files([str(imported)], check_duplicate_files=False)
        theirs = table.plant("theirs/live.parquet")
        assert table.run(Operation.REMOVE_ORPHANS).files_deleted == ()
        assert Path(theirs).exists()


# A newer head that the table's entry does not know, with metadata files in an unusual place
# (rule: stale-entries-delete-nothing).

DELETING = (Operation.REMOVE_ORPHANS, Operation.EXPIRE_SNAPSHOTS)


def restored(table: MaintainedTable, database: Path, **properties: str) -> str:
    """Commit with these properties, restore the catalog from a backup; return the metadata file of the newest head."""
    shutil.copy(database, database.with_suffix(".backup"))
    if properties:
        with table.table.transaction() as transaction:
            transaction.set_properties(properties)
    table.append(30)
    table.append(40)
    newest = table.loaded.metadata_location
    shutil.copy(database.with_suffix(".backup"), database)
    age_everything(table)
    return newest


def assert_refused(table: MaintainedTable, operation: Operation, newest: str, **more: str) -> None:
    outcome = table.run(operation, **more)
    assert outcome.status is Status.REFUSED
    assert newest.rpartition("/")[2] in str(outcome.reason)
    assert pyiceberg_ids(newest) == [0, 1, 10, 11, 20, 21, 30, 40]


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_newer_head_is_found_in_another_metadata_folder(
    local_catalog: SqlCatalog, tmp_path: Path, *, gives_up: bool
) -> None:
    """This also holds if the newer head has removed the property."""
    elsewhere = {"write.metadata.path": (tmp_path / "elsewhere").as_uri()}
    table = new_table(local_catalog, tmp_path, allowed=tmp_path, properties=elsewhere, appends=3)
    home = {"write.metadata.path": f"{table.metadata.location}/metadata"}
    newest = restored(table, tmp_path / "catalog.db", **(home if gives_up else {}))
    for operation in DELETING:
        assert_refused(table, operation, newest)


def test_nothing_is_deleted_if_a_newer_head_could_be_invisible(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role may delete objects but not list them; ``can_list`` is for tables of other formats."""
    table.maintain(operations="compact")
    before = table.files()
    for refused in ("list_if_allowed", "can_list"):
        with monkeypatch.context() as patch:
            patch.setattr(Storage, refused, lambda self, prefix: None)
            outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
        assert outcome.status is Status.REFUSED
        assert "allow s3:ListBucket there" in str(outcome.reason)
        assert table.files() == before


# A table adds files of another table after the last look; the owner's passes find it
# (rule: look-at-every-served-table).


@pytest.fixture
def owner(three_appends: MaintainedTable) -> MaintainedTable:
    return three_appends


def test_orphan_removal_keeps_files_that_a_guest_added_since(owner: MaintainedTable) -> None:
    guest = owner.pyiceberg.create_table("ns.guest", schema=ID_AND_PART)
    guest.append(owner.new_rows(99))
    maintain(owner, owner.pyiceberg, "ns.guest", operations="compact", min_input_files="9")
    theirs = Path(owner.plant("data/theirs.parquet"))
    theirs.write_bytes(Path(files_of(owner.table)[0].removeprefix("file://")).read_bytes())
    guest.add_files([theirs.as_uri()])
    orphan = owner.plant("data/orphan.parquet")
    age_everything(owner)
    outcome = maintain(owner, owner.pyiceberg, "ns.t", operations="remove_orphans")["remove_orphans"]
    assert [Path(path).name for path in outcome.files_deleted] == [Path(orphan).name]
    assert ids(guest) == [20, 21, 99]


def test_a_missing_manifest_hides_no_other_manifest(owner: MaintainedTable) -> None:
    """The guest's old snapshot is lost; its head is complete."""
    guest = owner.pyiceberg.create_table("ns.guest", schema=ID_AND_PART)
    guest.append(owner.new_rows(99))
    head = guest.current_snapshot()
    assert head is not None
    (gone,) = head.manifests(guest.io)
    guest.overwrite(owner.new_rows(98))
    guest.add_files(files_of(owner.table))
    Path(gone.manifest_path.removeprefix("file://")).unlink()
    maintain(owner, owner.pyiceberg, "ns.t", operations="compact")
    orphan = Path(owner.plant("data/orphan.parquet"))
    age_everything(owner)
    outcome = maintain(owner, owner.pyiceberg, "ns.t", operations="remove_orphans")["remove_orphans"]
    assert outcome.reason is None or gone.manifest_path in outcome.reason
    assert ids(guest) == [0, 1, 10, 11, 20, 21, 98]
    claims = owner.state.claims.of_entry(Entry(owner.catalog.id, "ns.guest"))
    assert claims is not None
    assert (set(claims.folders), claims.is_looked_into) == ({normalise(f"{owner.metadata.location}/data")}, False)
    assert orphan.exists() == (outcome.reason is not None)


# A table inside the location of another table, which added some of its files.


def test_expiry_keeps_files_that_the_outer_table_added(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Sweeps keep them, too.  An earlier pass saw the outer table, so only its claims show where its files are
    (rule: ask-neighbours-before-deleting)."""
    inner = new_table(local_catalog, tmp_path, appends=3)
    outer = inner.create_beside("ns.outer", inner.table.location().rpartition("/")[0])
    outer.add_files(files_of(inner.table))
    maintain(inner, local_catalog, "ns.outer", operations="expire_snapshots")
    outcomes = maintain(inner, local_catalog, "ns.t")
    assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
    assert outcomes["expire_snapshots"].metrics["expire_snapshots.snapshots_expired"] > 0
    assert outcomes["remove_orphans"].status is Status.SUCCEEDED
    assert ids(outer) == ids(inner.table) == [0, 1, 10, 11, 20, 21]


# The pipeline's functions and jobs check what needs a file, like the command.


def steps(pipeline: Pipeline, item: Item, *operations: str) -> dict[str, str]:
    """The status of each step."""
    return {step: status.partition(":")[0] for step, status in pipeline.run(item, *operations).items()}


def test_expiry_keeps_the_files_of_a_guest_in_another_catalog(pipeline: Pipeline, tmp_path: Path) -> None:
    """The same deployment serves its catalog; a pass over it ran on a laptop."""
    properties = {"uri": f"sqlite:///{tmp_path / 'other.db'}", "warehouse": (tmp_path / "other").as_uri()}
    other = SqlCatalog("other", **properties)
    other.create_namespace("ns")
    guest = other.create_table("ns.guest", schema=ID_AND_PART)
    guest.add_files([task.file.file_path for task in pipeline.table.table.scan().plan_files()])
    before = ids(guest)
    with (tmp_path / "pyiceberg.yaml").open("a") as configured:
        configured.write("  other:\n    type: sql\n")
        configured.writelines(f"    {key}: {value}\n" for key, value in properties.items())
    laptop = Runtime(
        open_catalog("other", {"type": "sql", **properties}), open_state(pipeline.environment), environment={}
    )
    laptop.maintain(TableName.parse("ns.guest"), {"operations": "compact", "min_input_files": "99"}, LocalEngine(1))
    item, _ = pipeline.begin(catalog="local")
    assert steps(pipeline, item, "compact", "expire_snapshots") == {
        "compact": "succeeded",
        "expire_snapshots": "succeeded",
    }
    assert ids(guest) == before == ids(pipeline.table.table)


def test_the_functions_of_a_run_share_one_look_at_the_other_tables(pipeline: Pipeline, loads: Counter[str]) -> None:
    """Each function runs in a separate process, so the state records the look.

    (rule: look-at-every-served-table)
    """
    pipeline.table.pyiceberg.create_table("ns.quiet", schema=ID_AND_PART)
    item, _ = pipeline.begin()
    for step in ("compact", "expire_snapshots", "remove_orphans"):
        pipeline.table.plant("data/orphan.parquet")
        pipeline.deployment = pipeline.open()
        assert steps(pipeline, item, step) == {step: "succeeded"}
    assert loads["ns.quiet"] == 1


@pytest.mark.parametrize("by_job", [False, True], ids=["function", "job"])
def test_allowed_prefixes_apply_in_functions_and_jobs(pipeline: Pipeline, *, by_job: bool) -> None:
    bound = f"{pipeline.table.folder.parent.parent.as_uri()}/{{namespace}}/t/metadata"
    pipeline.deployment = pipeline.open(**{ALLOWED_PREFIXES: f"local={bound}"})
    item, _ = pipeline.begin()
    if by_job:
        gathered = pipeline.gather()["compaction"]
        work = Work.model_validate(pipeline.deployment.control.read(gathered["key"], gathered["digest"]))
        assert set(run_work(pipeline.deployment, work, LocalEngine(1)).values()) == {End.DONE}
        assert pipeline.document(item, "compact.json")["status"] == "refused"
    else:
        assert steps(pipeline, item, "compact") == {"compact": "refused"}
    assert "ns/t is outside file:///" in pipeline.document(item, "compact.json")["reason"]


# Another table shares files with ours, and its catalog entry is older than its newest head.


@dataclass(frozen=True, slots=True)
class Guest:
    """``ns.guest`` of some catalog."""

    catalog: SqlCatalog
    database: Path
    table: Table

    def lose(self, changes: Callable[[], object]) -> str:
        """Restore its catalog's database to the state before the changes; return the newest metadata file."""
        backup = self.database.with_suffix(".backup")
        shutil.copy(self.database, backup)
        changes()
        newest = self.table.refresh().metadata_location
        shutil.copy(backup, self.database)
        return newest


@pytest.fixture(params=["same catalog", "other catalog"])
def guest(request: pytest.FixtureRequest, owner: MaintainedTable, tmp_path: Path) -> Guest:
    """A guest that added a file of the owner; a pass has looked at it."""
    is_here = request.param == "same catalog"
    catalog = owner.pyiceberg if is_here else second_catalog(tmp_path)
    table = catalog.create_table("ns.guest", schema=ID_AND_PART)
    table.add_files(files_of(owner.table)[:1])
    maintain(owner, catalog, "ns.guest", operations="compact", min_input_files="9")
    return Guest(catalog, tmp_path / ("catalog.db" if is_here else "other.db"), table)


def compact_away(owner: MaintainedTable) -> None:
    """Compact, so that only old snapshots of the owner need its files."""
    maintain(owner, owner.pyiceberg, "ns.t", operations="compact")


def test_files_of_a_single_newer_state_of_a_guest_are_kept(owner: MaintainedTable, guest: Guest) -> None:
    """It may belong to a swap that crashed."""
    second = files_of(owner.table)[1:2]
    newest = guest.lose(lambda: guest.table.add_files(second))
    before = pyiceberg_ids(newest)
    compact_away(owner)
    orphan = owner.plant("data/orphan.parquet")
    for operation in (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS):
        age_everything(owner)
        outcomes = maintain(owner, owner.pyiceberg, "ns.t", served=guest.catalog, operations=operation.value)
        assert outcomes[operation.value].status is Status.SUCCEEDED
        assert pyiceberg_ids(newest) == before
        assert Path(orphan).exists() == (operation is not Operation.REMOVE_ORPHANS)
    age_everything(owner)
    maintain(owner, owner.pyiceberg, "ns.t", served=guest.catalog)
    assert pyiceberg_ids(newest) == before


def test_a_newer_head_of_a_guest_stops_every_deletion(owner: MaintainedTable, guest: Guest) -> None:
    second, third = files_of(owner.table)[1:]

    def go_on() -> None:
        guest.table.add_files([second])
        guest.table.add_files([third])

    newest = guest.lose(go_on)
    before = pyiceberg_ids(newest)
    compact_away(owner)
    owner.plant("data/orphan.parquet")
    age_everything(owner)
    there = {path for path in owner.files() if path.endswith((".parquet", ".avro"))}
    for operation in DELETING:
        outcome = maintain(owner, owner.pyiceberg, "ns.t", served=guest.catalog, operations=operation.value)[operation]
        assert outcome.status is Status.REFUSED
        for word in (newest.rpartition("/")[2], "ns.guest", "point the entry at the newest metadata file"):
            assert word in str(outcome.reason)
        assert there <= owner.files()
        assert pyiceberg_ids(newest) == before


def test_a_stale_second_entry_of_a_guest_stops_nothing(owner: MaintainedTable, guest: Guest) -> None:
    """Its other entry is at the newest head, whose needs are known."""
    stale = guest.catalog.register_table("ns.stale", guest.table.refresh().metadata_location)
    maintain(owner, guest.catalog, "ns.stale", operations="compact", min_input_files="9")
    for path in files_of(owner.table)[1:]:
        guest.table.add_files([path])
    outcomes = maintain(owner, owner.pyiceberg, "ns.t", served=guest.catalog)
    assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
    assert outcomes["remove_orphans"].status is Status.SUCCEEDED
    assert pyiceberg_ids(guest.table.refresh().metadata_location) == [0, 1, 10, 11, 20, 21]
    assert pyiceberg_ids(stale.metadata_location) == [20, 21]


class TestBranchesOutside:
    """Nessie keeps a table on its own branches, which need files that no visible state names
    (rule: branches-outside-need-everything)."""

    WHY = "ns.t is in Nessie, whose other branches, tags and commits are not visible here and may need any of its files"

    def test_nothing_that_was_ever_committed_is_deleted(self, table: MaintainedTable) -> None:
        """All operations run; expiry and orphan removal are refused by name, and rewrites succeed."""
        orphan = table.plant("data/orphan.parquet")
        resolved = table.runtime.policy(table.loaded, {})
        memory = table.runtime.context(table.loaded, resolved, table.engine).memory
        for by, may_delete in (("", True), ("Nessie", False)):  # a program that executes the plan then deletes nothing
            bounds = safety_bounds(replace(table.loaded, versioned_by=by), resolved, memory, 0, lambda name, files: "")
            assert bounds["gc_enabled"] is may_delete

        head = table.metadata.head_ids
        before = table.files()
        with hostile_rest(table.catalog.inner) as nessie:
            nessie.overrides = {"nessie.is-nessie-catalog": "true"}
            served = nessie.open()
            runtime = table.runtime_with(catalog=served)
            swept = run_bucket_pass(
                served,
                table.state,
                lambda record: runtime.context(record, runtime.policy(record, EAGER, unsafe=True), table.engine),
                table.folder.parent.as_uri(),
                inventory=None,
                run_id="r",
                dry_run=False,
            )
            assert {name: record.status for name, record in swept.tables.items()} == {"ns.t": Status.REFUSED}
            assert self.WHY in str(swept.tables["ns.t"].reason)
            outcomes = {record.operation: record for record in table.maintain(catalog=served).operations}
            for operation in DELETING:
                found = outcomes[operation]
                assert (found.status, found.files_deleted) == (Status.REFUSED, ())
                assert f"{self.WHY}: leave deletions to nessie-gc" in str(found.reason)
                assert table.run(operation, catalog=served, dry_run=True).status is Status.REFUSED
            assert outcomes[Operation.COMPACT].status is Status.SUCCEEDED
            assert table.metadata.head_ids != head
            assert before < table.files()
            assert len(table.metadata.snapshots) > 3
        assert Path(orphan).exists()
        assert table.run(Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED

    def test_files_of_an_interrupted_expiry_and_a_failed_load_are_kept(self, table: MaintainedTable) -> None:
        files = [table.plant("data/freed.parquet"), table.plant("data/loaded.parquet")]
        memory = table.runtime.context(table.loaded, table.runtime.policy(table.loaded, {}), table.engine).memory
        memory.expect_deletions("a-run", [f"file://{files[0]}"])
        handle = TableHandle(table.catalog, NAME, table.state, system_clock, store_clock=same_clock)
        stage_load(handle, "load", [f"file://{files[1]}"], ())
        declare_load(handle, "load", LoadState.FAILED)
        with hostile_rest(table.catalog.inner) as nessie:
            nessie.defaults = {"nessie.default-branch.name": "main"}
            outcome = table.maintain("expire_snapshots", catalog=nessie.open(), max_snapshots_to_keep="9")
            assert self.WHY in str(outcome.operations[0].reason)
            assert outcome.staged is None
        assert all(Path(file).exists() for file in files)
        after = table.maintain("expire_snapshots", max_snapshots_to_keep="9")
        assert (len(after.operations[0].files_deleted), after.staged is not None) == (1, True)
        assert not any(Path(file).exists() for file in files)
